// Attention of few rows, as in decodes: keys and values are read where the cache has them, as often as there are blocks of
// rows.
#pragma once

#include "attention_rows.h"

namespace attention {

// Scores of ROWS queries of `units` with LANES keys, `distance` behind `keys`: to `scores`, rows KEYS
// apart. What is at `asked` is asked for meanwhile.
template <int ROWS, class C>
static inline void score(
    const float* queries, int64_t units, const C* const* keys, int64_t distance, const C* const* asked, float* scores) {
    constexpr int AT_ONCE = LANES / ROWS;  // keys, as many as there are registers for
    constexpr int PARTS = 2 / Units<C>::VALUES;
    Floats products[ROWS][LANES];
#pragma GCC unroll 4
    for (int first = 0; first < LANES; first += AT_ONCE) {
        Floats sum[ROWS][AT_ONCE] = {};
        for (int64_t i = 0; i < units; i += PARTS * LANES) {
            Floats q[ROWS][PARTS];
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
                for (int p = 0; p < PARTS; p++) q[r][p] = load(queries + r * units + i + p * LANES);
#pragma GCC unroll 16
            for (int key = 0; key < AT_ONCE; key++) {
                ask_for(asked[first + key], i * Units<C>::VALUES);
                auto k = Units<C>::load_row(keys[first + key] + distance + i * Units<C>::VALUES);
#pragma GCC unroll 2
                for (int p = 0; p < PARTS; p++)
#pragma GCC unroll 4
                    for (int r = 0; r < ROWS; r++) sum[r][key] = Units<C>::add(sum[r][key], q[r][p], k.parts[p]);
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

// Rows of the cache that are read next, those of the next head `distance` behind them. While LANES rows are read, one head
// after the other, as many of these are asked for, a few at a time and in the order in which they lie in memory: any other
// takes up to twice as long.
template <class C> struct Upcoming {
    const C* const* rows;
    int64_t distance;

    // What to ask for with the rows of one head.
    void ask_with(int64_t head, int64_t heads, const C** asked) const {
        int64_t row = head * LANES / heads, of_row = head * LANES % heads;
        for (int i = 0; i < LANES; i++) {
            asked[i] = rows[row] + of_row * distance;
            if (++of_row == heads) of_row = 0, row++;
        }
    }
};

// Attend to a part of keys, the first of which is at `first`, for `heads` key/value heads from `head`; the keys of `next`
// are read next. `scores` are [all, KEYS].
template <class T, class C>
static inline void attend_part(
    Rows<T, C>& rows, int64_t first, const Part<C>& part, const Part<C>& next, int64_t head, int64_t heads, float* scores) {
    constexpr int VALUES = Units<C>::VALUES;
    const C* asked[LANES];
    for (int64_t i = 0; i < part.count; i += LANES) {
        Upcoming<C> upcoming{part.values, part.value_distance};
        if (i + LANES < part.count) upcoming = {part.keys + i + LANES, part.key_distance};
        for (int64_t h = 0; h < heads; h++) {
            upcoming.ask_with(h, heads, asked);
            in_blocks((head + h) * rows.of_one, (head + h + 1) * rows.of_one, [&](auto count, int64_t row) {
                score<count>(
                    rows.queries + row * rows.units, rows.units, part.keys + i, h * part.key_distance, asked,
                    scores + row * KEYS + i);
            });
        }
    }
    Factors factors;
    for (int64_t h = head; h < head + heads; h++) {
        if (sizeof(C) == 1) rows.read_factors(first, part.count, h, factors);
        for (int64_t row = h * rows.of_one; row < (h + 1) * rows.of_one; row++)
            rows.weigh(row, first, part.count, factors, scores + row * KEYS);
    }
    for (int64_t i = 0; i < part.count; i += LANES) {
        Upcoming<C> upcoming{next.keys, next.key_distance};
        if (i + LANES < part.count) upcoming = {part.values + i + LANES, part.value_distance};
        for (int64_t h = 0; h < heads; h++) {
            upcoming.ask_with(h, heads, asked);
            auto values = [&](int64_t unit, int64_t column) {
                for (int v = 0; v < VALUES; v++) ask_for(asked[unit * VALUES + v], column);
                return Units<C>::load_columns(part.values + i + unit * VALUES, h * part.value_distance + column);
            };
            in_blocks((head + h) * rows.of_one, (head + h + 1) * rows.of_one, [&](auto count, int64_t row) {
                add_all<count, C>(
                    scores + row * KEYS + i / VALUES, values, std::min<int64_t>(LANES, part.count - i), rows.value_width,
                    rows.outs + row * rows.value_width);
            });
        }
    }
}

// For all key/value heads of the piece. `ahead` returns the piece behind it, or null.
template <class T, class C, class F> static void attend_in_place(Rows<T, C>& rows, F ahead) {
    float* const scores = scratch<2>(rows.all * KEYS);
    int64_t first = rows.piece.begin(rows.a);
    Part<C> part(rows.a, rows.piece, first), next;
    for (; first < rows.seen; first += KEYS, part = next) {
        const Piece* behind = first + KEYS < rows.seen ? nullptr : ahead();
        next = behind ? Part<C>(rows.a, *behind, behind->begin(rows.a)) : Part<C>(rows.a, rows.piece, first + KEYS);
        attend_part(rows, first, part, next, 0, rows.piece.kv_heads, scores);
    }
}

// The same for rows that are no whole vectors: from copies of keys and values, one key/value head after the other.
template <class T, class C> static void attend_padded(Rows<T, C>& rows) {
    const int64_t width = rows.width, value_width = rows.value_width;
    float* const scores = scratch<2>(rows.all * KEYS + KEYS * (width + value_width));
    C *const keys = (C*)(scores + rows.all * KEYS), *const values = keys + KEYS * width;  // [KEYS, width and value_width]
    for (int64_t first = rows.piece.begin(rows.a); first < rows.seen; first += KEYS) {
        Part<C> part(rows.a, rows.piece, first), copied = part;
        copied.key_distance = copied.value_distance = 0;
        for (int64_t i = 0; i < KEYS; i++) copied.keys[i] = keys + i * width, copied.values[i] = values + i * value_width;
        for (int64_t h = 0; h < rows.piece.kv_heads; h++) {
            for (int64_t i = 0; i < std::min(KEYS, part.count + LANES); i++) {
                copy_padded(part.keys[i] + h * part.key_distance, rows.a.size, keys + i * width);
                copy_padded(part.values[i] + h * part.value_distance, rows.a.value_size, values + i * value_width);
            }
            attend_part(rows, first, copied, copied, h, 1, scores);
        }
    }
}

}  // namespace attention
