// Attention of few rows, as in decodes: keys and values are widened in registers, as often as there are blocks of rows.
#pragma once

#include "attention_rows.h"

namespace attention {

// Asks for the keys and values of some heads before they are read, one line of the processor's cache after the other: it
// does not foresee them, as blocks are scattered.
template <class C> class Prefetch {
    static constexpr int64_t LINE = 64;

    const Part<C>& part;
    int64_t key_bytes, value_bytes, next = 0;
    bool at_values = true;
    const char *at = nullptr, *end = nullptr;

    bool advance() {
        if (at_values && next >= part.count) return false;
        at_values = !at_values;
        at = (const char*)(at_values ? part.values[next++] : part.keys[next]);
        end = at + (at_values ? value_bytes : key_bytes);
        return true;
    }

  public:
    Prefetch(const Part<C>& part, int64_t heads)
        : part(part), key_bytes(heads * part.key_distance * sizeof(C)),
          value_bytes(heads * part.value_distance * sizeof(C)) {}

    int64_t lines() const { return std::max<int64_t>(part.count, 0) * ((key_bytes + value_bytes) / LINE + 2); }

    void ask(int64_t lines) {
        for (; lines > 0 && (at < end || advance()); lines--, at += LINE) __builtin_prefetch(at);
    }
};

// Scores of ROWS queries, `width` apart, with LANES keys, `distance` behind `keys`: to `scores`, rows KEYS apart.
template <int ROWS, class C>
static inline void score(const float* queries, const C* const* keys, int64_t distance, int64_t width, float* scores) {
    constexpr int AT_ONCE = LANES / ROWS;  // keys, as many as there are registers for
    Floats products[ROWS][LANES];
#pragma GCC unroll 4
    for (int first = 0; first < LANES; first += AT_ONCE) {
        Floats sum[ROWS][AT_ONCE] = {};
        for (int64_t i = 0; i < width; i += 2 * LANES) {
            TwoFloats q[ROWS];
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) q[r] = load_two(queries + r * width + i);
#pragma GCC unroll 16
            for (int key = 0; key < AT_ONCE; key++) {
                TwoFloats k = load_two(keys[first + key] + distance + i);
#pragma GCC unroll 4
                for (int r = 0; r < ROWS; r++) sum[r][key] += q[r].first * k.first;
#pragma GCC unroll 4
                for (int r = 0; r < ROWS; r++) sum[r][key] += q[r].second * k.second;
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
            for (int key = 0; key < AT_ONCE; key++) products[r][first + key] = sum[r][key];
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) store(scores + r * KEYS, sums(products[r]));
}

// Attend to a part of keys, the first of which is at `first`, for `heads` key/value heads from `head`; `pause` is called
// between some keys of a head. `scores` are [all, KEYS].
template <class T, class C, class E, class F>
static inline void attend_part(
    Rows<T, C>& rows, int64_t first, const Part<E>& part, int64_t head, int64_t heads, float* scores, F pause) {
    for (int64_t i = 0; i < part.count; i += LANES)
        for (int64_t h = 0; h < heads; h++) {
            pause();
            in_blocks((head + h) * rows.of_one, (head + h + 1) * rows.of_one, [&](auto count, int64_t row) {
                score<count>(
                    rows.queries + row * rows.width, part.keys + i, h * part.key_distance, rows.width,
                    scores + row * KEYS + i);
            });
        }
    Factors factors;
    for (int64_t h = head; h < head + heads; h++) {
        if (sizeof(C) == 1) rows.read_factors(first, part.count, h, factors);
        for (int64_t row = h * rows.of_one; row < (h + 1) * rows.of_one; row++)
            rows.weigh(row, first, part.count, factors, scores + row * KEYS);
    }
    for (int64_t i = 0; i < part.count; i += LANES)
        for (int64_t h = 0; h < heads; h++) {
            pause();
            in_blocks((head + h) * rows.of_one, (head + h + 1) * rows.of_one, [&](auto count, int64_t row) {
                add_all<count>(
                    scores + row * KEYS + i, part.values + i, h * part.value_distance,
                    std::min<int64_t>(LANES, part.count - i), rows.value_width, rows.outs + row * rows.value_width);
            });
        }
}

// Keys and values are read where the cache has them, for all key/value heads of the piece.
template <class T, class C> static void attend_in_place(Rows<T, C>& rows) {
    float* const scores = scratch<2>(rows.all * KEYS);
    const int64_t heads = rows.piece.kv_heads;
    int64_t first = rows.begin();
    Part<C> part = rows.part(first);
    for (; first < rows.seen; first += KEYS) {
        // the next keys and values are on their way while these are read
        Part<C> next = rows.part(first + KEYS);
        Prefetch<C> prefetch(next, heads);
        int64_t pauses = 2 * heads * ((part.count + LANES - 1) / LANES), lines = (prefetch.lines() + pauses - 1) / pauses;
        attend_part(rows, first, part, 0, heads, scores, [&] { prefetch.ask(lines); });
        part = next;
    }
}

// The same for rows that are no whole vectors: copies of keys and values, one key/value head after the other.
template <class T, class C> static void attend_padded(Rows<T, C>& rows) {
    const int64_t width = rows.width, value_width = rows.value_width;
    float* const scores = scratch<2>(rows.all * KEYS + KEYS * (width + value_width));
    float *const keys = scores + rows.all * KEYS, *const values = keys + KEYS * width;  // [KEYS, width and value_width]
    for (int64_t first = rows.begin(); first < rows.seen; first += KEYS) {
        Part<C> part = rows.part(first);
        Part<float> copied;
        copied.count = part.count, copied.key_distance = copied.value_distance = 0;
        for (int64_t i = 0; i < KEYS; i++)
            copied.keys[i] = keys + std::min(i, part.count - 1) * width, copied.values[i] = values + i * value_width;
        for (int64_t h = 0; h < rows.piece.kv_heads; h++) {
            for (int64_t i = 0; i < part.count; i++) {
                copy_row(part.keys[i] + h * part.key_distance, rows.a.size, keys + i * width);
                copy_row(part.values[i] + h * part.value_distance, rows.a.value_size, values + i * value_width);
            }
            attend_part(rows, first, copied, h, 1, scores, [] {});
        }
    }
}

}  // namespace attention
