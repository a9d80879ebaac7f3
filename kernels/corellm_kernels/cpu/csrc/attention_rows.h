// The rows of one piece of attention: its queries, what they have seen so far, and the softmax's running maximum and sum
// (Milakov and Gimelshein 2018, arXiv 1805.02867; FlashAttention: Dao et al. 2022, arXiv 2205.14135).
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "attention_arguments.h"
#include "attention_units.h"
#include "rotation.h"
#include "scratch.h"
#include "vectors.h"

namespace attention {

constexpr int64_t KEYS = 64;                                    // of a part; parts begin at multiples of it
constexpr float LOWEST = std::numeric_limits<float>::lowest();  // finite: its difference from a score is a number

static inline int64_t padded(int64_t size) { return (size + 2 * LANES - 1) / (2 * LANES) * (2 * LANES); }

// `count` query tokens of a sequence from `first`; of each of `kv_heads` key/value heads `group` query heads, the first of
// all is `head`. A token's keys of all heads lie side by side, and are read together.
struct Piece {
    int64_t seq, first, count, head, group, kv_heads;

    // The position of the first query in its sequence.
    int64_t position(const AttentionArgs& a) const { return a.lens[seq] - (a.starts[seq + 1] - a.starts[seq]) + first; }

    // Keys of query `i`, where the batch says how many.
    int64_t visible(const AttentionArgs& a, int64_t i) const {
        return std::min<int64_t>(a.visible[a.starts[seq] + first + i], a.lens[seq]);
    }

    // Keys of the query that sees most; none in padding.
    int64_t seen(const AttentionArgs& a) const {
        if (a.lens[seq] < 1) return 0;
        int64_t most = a.causal ? position(a) + count : a.lens[seq];
        if (a.visible)
            for (int64_t i = 0; i < count; i++) most = std::max(most, visible(a, i));
        return most;
    }

    // The first key of query `i`, which is at `own` in its sequence: a window cuts what is before, but not its span.
    int64_t first_key(const AttentionArgs& a, int64_t i, int64_t own) const {
        if (!a.window) return 0;
        int64_t key = std::max<int64_t>(0, own - a.window + 1);
        return a.span_starts ? std::clamp<int64_t>(a.span_starts[a.starts[seq] + first + i], 0, key) : key;
    }

    // Where the parts that the queries see begin.
    int64_t begin(const AttentionArgs& a) const {
        int64_t own = position(a), key = first_key(a, 0, own);
        if (a.window && a.span_starts)
            for (int64_t i = 1; i < count; i++) key = std::min(key, first_key(a, i, own + i));
        return key / KEYS * KEYS;
    }
};

// Up to KEYS keys and their values from `first` on, where the cache has them; those of the next head lie `distance` behind
// them. Behind its end are keys and values that no query sees.
template <class C> struct Part {
    int64_t count, key_distance, value_distance;
    const C *keys[KEYS], *values[KEYS];

    Part() = default;
    Part(const AttentionArgs& a, const Piece& piece, int64_t first)
        : count(std::clamp<int64_t>(piece.seen(a) - first, 0, KEYS)), key_distance(a.key_strides[2]),
          value_distance(a.value_strides[2]) {
        int64_t kv_head = piece.head / (a.heads / a.kv_heads);
        const C* key = (const C*)a.key_cache + kv_head * key_distance;
        const C* value = (const C*)a.value_cache + kv_head * value_distance;
        const int64_t* block = a.tables + piece.seq * a.table_stride + first / a.block_size;
        int64_t within = first % a.block_size, i = 0;
        for (; i < count; i++) {
            keys[i] = key + *block * a.key_strides[0] + within * a.key_strides[1];
            values[i] = value + *block * a.value_strides[0] + within * a.value_strides[1];
            if (++within == a.block_size) within = 0, block++;
        }
        for (; i < KEYS; i++) keys[i] = count ? keys[0] : key, values[i] = count ? values[0] : value;
    }
};

// What the factors of an int8 cache are for a part of keys.
struct Factors {
    float keys[KEYS], values[KEYS];
};

// The 2 * LANES values at `from`; where only `size` are left, a copy in `rest` with zeros behind them.
template <class C> static inline const C* whole(const C* from, int64_t size, C* rest) {
    if (size >= 2 * LANES) return from;
    memset(rest, 0, 2 * LANES * sizeof(C));
    memcpy(rest, from, size * sizeof(C));
    return rest;
}

// Copy a row, with zeros behind it.
template <class C> static inline void copy_padded(const C* from, int64_t size, C* to) {
    memcpy(to, from, size * sizeof(C));
    std::fill(to + size, to + padded(size), C{});
}

// Call `does(count, first row)` for blocks of four rows, then of two, then of one.
template <class F> static inline void in_blocks(int64_t first, int64_t end, F does) {
    int64_t r = first;
    for (; r + 4 <= end; r += 4) does(std::integral_constant<int, 4>(), r);
    for (; r + 2 <= end; r += 2) does(std::integral_constant<int, 2>(), r);
    if (r < end) does(std::integral_constant<int, 1>(), r);
}

// Ask for 2 * LANES values from `i` on of the row at `from`, before they are read.
template <class C> static inline void ask_for(const C* from, int64_t i) {
    constexpr int64_t LINE = 64 / sizeof(C);
    if (i % LINE == 0)
#pragma GCC unroll 4
        for (int64_t next = 0; next < 2 * LANES; next += LINE) __builtin_prefetch(from + i + next);
}

// Add weighted values to `2 * PAIRS` vectors of ROWS rows of the output, from `column` on. `values(unit, column)` gives two
// vectors of a unit of values; `count` units have weights.
template <int ROWS, int PAIRS, class C, class F>
static inline void add_values(
    const float* weights, F values, int64_t count, int64_t column, int64_t width, float* out) {
    TwoFloats total[ROWS][PAIRS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int i = 0; i < PAIRS; i++) total[r][i] = load_two(out + r * width + column + i * 2 * LANES);
    for (int64_t unit = 0; unit < count; unit++) {
#pragma GCC unroll 8
        for (int i = 0; i < PAIRS; i++) {
            TwoFloats v = values(unit, column + i * 2 * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                Floats weight = in_all_lanes(weights + r * KEYS + unit);
                total[r][i].first = Units<C>::add(total[r][i].first, weight, v.first);
                total[r][i].second = Units<C>::add(total[r][i].second, weight, v.second);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int i = 0; i < PAIRS; i++) {
            store(out + r * width + column + i * 2 * LANES, total[r][i].first);
            store(out + r * width + column + i * 2 * LANES + LANES, total[r][i].second);
        }
}

// The same for all columns, for `count` keys.
template <int ROWS, class C, class F>
static inline void add_all(const float* weights, F values, int64_t count, int64_t width, float* out) {
    constexpr int PAIRS = 4 / ROWS, AT_ONCE = PAIRS * 2 * LANES;
    int64_t units = (count + Units<C>::VALUES - 1) / Units<C>::VALUES, i = 0;
    for (; i + AT_ONCE <= width; i += AT_ONCE) add_values<ROWS, PAIRS, C>(weights, values, units, i, width, out);
    for (; i < width; i += 2 * LANES) add_values<ROWS, 1, C>(weights, values, units, i, width, out);
}

// Its rows: for each key/value head, for each token, `group` queries.
template <class T, class C> struct Rows {
    static constexpr bool ZIPPED = std::is_same_v<C, bfloat16>;  // outputs are in the order of `load_two`
    static constexpr bool PAIRED = Units<C>::VALUES == 2;        // queries are not scaled, and no longer floats

    const AttentionArgs& a;
    const Piece piece;
    const int64_t heads_of_one = a.heads / a.kv_heads, kv_head = piece.head / heads_of_one;
    const int64_t of_one = piece.count * piece.group, all = of_one * piece.kv_heads;  // of one key/value head, of all
    const int64_t width = padded(a.size), value_width = padded(a.value_size);
    const int64_t units = width / Units<C>::VALUES;
    const int64_t position = piece.position(a), seen = piece.seen(a);
    float* const queries = scratch<1>(all * (units + value_width + 2));  // [all, units]
    float* const outs = queries + all * units;                           // [all, value_width]
    float *const mosts = outs + all * value_width, *const totals = mosts + all;  // [all]

    Rows(const AttentionArgs& a, const Piece& piece) : a(a), piece(piece) {
        for (int64_t row = 0; row < all; row++) {
            const T* from = (const T*)a.query + place(row, a.query_stride, a.query_head_stride);
            float* to = queries + row * units;
            if constexpr (PAIRED) {
                copy_padded(from, a.size, (T*)to);
            } else {
                for (int64_t i = 0; i < a.size; i++) to[i] = widened(from[i]) * a.scale;
                std::fill(to + a.size, to + width, 0.f);
                if (ZIPPED)
                    for (int64_t i = 0; i < width; i += 2 * LANES) unzip(to + i);
            }
        }
        std::fill(outs, outs + all * value_width, 0.f);
        std::fill(mosts, mosts + all, LOWEST);
        std::fill(totals, totals + all, 0.f);
        if (a.sinks) begin_with_sinks();
    }

    // The last key that a row sees, and the first.
    int64_t last_key(int64_t row) const {
        if (a.visible) return piece.visible(a, token(row)) - 1;
        return a.causal ? position + token(row) : seen - 1;
    }
    int64_t first_key(int64_t row) const { return piece.first_key(a, token(row), position + token(row)); }

    // The last key that any of `count` rows sees.
    int64_t last_key(int64_t row, int64_t count) const {
        int64_t last = last_key(row + count - 1);
        if (a.visible)
            for (int64_t r = 0; r < count - 1; r++) last = std::max(last, last_key(row + r));
        return last;
    }

    // The first key that any of `count` rows sees.
    int64_t first_key(int64_t row, int64_t count) const {
        int64_t key = first_key(row);
        if (a.window && a.span_starts)
            for (int64_t r = 1; r < count; r++) key = std::min(key, first_key(row + r));
        return key;
    }

    // The first rows of a key/value head, as many as see none of the keys from `first` on.
    int64_t blind(int64_t first) const {
        int64_t tokens = a.causal ? std::clamp<int64_t>(first - position, 0, piece.count) : 0;
        if (a.visible)
            for (int64_t i = 0; i < tokens; i++)
                if (piece.visible(a, i) > first) return i * piece.group;
        return tokens * piece.group;
    }

    // Of the key/value head `h` of the piece.
    void read_factors(int64_t first, int64_t count, int64_t h, Factors& factors) const {
        const int64_t* blocks = a.tables + piece.seq * a.table_stride;
        for (int64_t i = 0; i < KEYS; i++) {
            int64_t key = first + std::min(i, count - 1);
            int64_t slot = blocks[key / a.block_size] * a.block_size + key % a.block_size;
            factors.keys[i] = a.key_scale[slot * a.kv_heads + kv_head + h];
            factors.values[i] = a.value_scale[slot * a.kv_heads + kv_head + h];
        }
    }

    // Turn a row's scores with `count` keys from `first` on into weights. In copies of this function the compiler could
    // contract other products and sums, and results would depend on which rows are computed together.
    ONE_COPY void weigh(int64_t row, int64_t first, int64_t count, const Factors& factors, float* scores) {
        int64_t whole = (count + LANES - 1) / LANES * LANES, last = last_key(row), begin = first_key(row);
        if (first > last || first + count <= begin) {
            std::fill(scores, scores + whole, 0.f);
            return;
        }
        Floats most = splat(mosts[row]);
        for (int64_t i = 0; i < whole; i += LANES) {
            Floats s = load(scores + i);
            if (PAIRED) s *= a.scale;
            if (sizeof(C) == 1) s *= load(factors.keys + i);
            if (a.softcap > 0) s = a.softcap * hyperbolic_tangent(s / a.softcap);
            if (a.bias) s += bias(row, first + i);
            if (first + i + LANES > last + 1 || first + i < begin) {
                Ints key = lane_numbers() + (int32_t)(first + i);
                s = (key > (int32_t)last) | (key < (int32_t)begin) ? splat(-INFINITY) : s;
            }
            store(scores + i, s);
            most = at_least(most, s);
        }
        float now = largest(most), shrink = weight_of(splat(mosts[row] - now))[0];
        Floats added = {};
        for (int64_t i = 0; i < whole; i += LANES) {
            Floats weight = weight_of(load(scores + i) - now);
            added += weight;
            Units<C>::store_weights(scores, i, sizeof(C) == 1 ? weight * load(factors.values + i) : weight);
        }
        totals[row] = totals[row] * shrink + sum(added);
        if (shrink != 1.f) {
            float* out = outs + row * value_width;
            for (int64_t i = 0; i < value_width; i += LANES) store(out + i, load(out + i) * shrink);
        }
        mosts[row] = now;
    }

    void write() {
        for (int64_t row = 0; row < all; row++) {
            float total = totals[row], inverse = total > 0 ? 1.f / total : (total == total ? 0.f : total);
            float* out = outs + row * value_width;
            for (int64_t i = 0; i < value_width; i += 2 * LANES) {
                store(out + i, load(out + i) * inverse);
                store(out + i + LANES, load(out + i + LANES) * inverse);
                if (ZIPPED) zip(out + i);
            }
            keep((T*)a.out + place(row, a.out_stride, a.out_head_stride), out, a.value_size, nullptr);
        }
    }

  private:
    // A row's token, of those of the piece, and its head, of all.
    int64_t token(int64_t row) const { return row % of_one / piece.group; }
    int64_t head(int64_t row) const { return piece.head + row / of_one * heads_of_one + row % piece.group; }

    // What is added to a row's scores with the keys from `key` on.
    Floats bias(int64_t row, int64_t key) const {
        int64_t token_of_all = a.starts[piece.seq] + piece.first + token(row), distance = position + token(row) - key;
        const float* from = a.bias + token_of_all * a.bias_stride + head(row) * a.distances;
        Floats some = {};
        for (int64_t i = 0; i < LANES; i++) some[i] = from[std::clamp<int64_t>(distance - i, 0, a.distances - 1)];
        return some;
    }

    int64_t place(int64_t row, int64_t token_stride, int64_t head_stride) const {
        return (a.starts[piece.seq] + piece.first + token(row)) * token_stride + head(row) * head_stride;
    }

    // The softmax so far, of the sink alone. One of minus infinity has no weight, and no difference from such scores.
    void begin_with_sinks() {
        for (int64_t row = 0; row < all; row++) {
            float sink = a.sink_size == sizeof(float) ? ((const float*)a.sinks)[head(row)]
                                                      : widened(((const bfloat16*)a.sinks)[head(row)]);
            if (!(sink < LOWEST)) mosts[row] = sink, totals[row] = 1.f;
        }
    }
};

}  // namespace attention
