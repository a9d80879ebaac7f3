// Attention of many rows, as in prompts: the keys and values of one key/value head are copied as units, once for all rows,
// with keys in columns, so that a vector holds scores with as many keys as it has lanes.
#pragma once

#include "attention_rows.h"

namespace attention {

constexpr int VECTORS = LANES == 16 ? 4 : 2;  // of scores, at once
constexpr int64_t COLUMNS = VECTORS * LANES;

// Copy LANES cached rows into columns, KEYS of which are side by side.
template <class C>
static inline void copy_columns(const C* const* from, int64_t distance, int64_t size, float* to) {
    constexpr int VALUES = Units<C>::VALUES, PARTS = 2 / VALUES;
    for (int64_t i = 0; i < size; i += 2 * LANES) {
        Floats parts[PARTS][LANES];
#pragma GCC unroll 16
        for (int key = 0; key < LANES; key++) {
            C rest[2 * LANES];
            auto row = Units<C>::load_row(whole(from[key] + distance + i, size - i, rest));
#pragma GCC unroll 2
            for (int p = 0; p < PARTS; p++) parts[p][key] = row.parts[p];
        }
#pragma GCC unroll 2
        for (int p = 0; p < PARTS; p++) {
            transpose(parts[p]);
#pragma GCC unroll 16
            for (int j = 0; j < LANES; j++) store(to + (i / VALUES + p * LANES + j) * KEYS, parts[p][j]);
        }
    }
}

// Copy units of values.
template <class C>
static inline void copy_units(const C* const* from, int64_t distance, int64_t size, float* to) {
    for (int64_t i = 0; i < size; i += 2 * LANES) {
        C rest[Units<C>::VALUES][2 * LANES];
        const C* rows[Units<C>::VALUES];
        for (int v = 0; v < Units<C>::VALUES; v++) rows[v] = whole(from[v] + distance + i, size - i, rest[v]);
        TwoFloats two = Units<C>::load_columns(rows, 0);
        store(to + i, two.first);
        store(to + i + LANES, two.second);
    }
}

// Scores of ROWS queries, `units` apart, with COLUMNS keys of `depth` units: to `scores`, rows KEYS apart. What `score`
// adds in one lane is added here in one sum, and the sums in the order in which it adds lanes: the results are the same.
// Where there are fewer keys, the scores behind them have no meaning, and are not read.
template <int ROWS, class C>
static inline void score_columns(const float* queries, int64_t units, const float* keys, int64_t depth, float* scores) {
    constexpr int LEVELS = LANES == 16 ? 4 : LANES == 8 ? 3 : 2;
    Floats held[LEVELS + 1][ROWS][VECTORS];  // at level n the sum of 2^n lanes
#pragma GCC unroll 16
    for (int lane = 0; lane < LANES; lane++) {
        Floats sum[ROWS][VECTORS] = {};
        for (int64_t i = lane; i < depth; i += LANES) {
            Floats k[VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) k[v] = load(keys + i * KEYS + v * LANES);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) {
                Floats query = in_all_lanes(queries + r * units + i);
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) sum[r][v] = Units<C>::add(sum[r][v], query, k[v]);
            }
        }
        int level = 0;
#pragma GCC unroll 4
        for (; lane >> level & 1; level++)
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) sum[r][v] = held[level][r][v] + sum[r][v];
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) held[level][r][v] = sum[r][v];
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) store(scores + r * KEYS + v * LANES, held[LEVELS][r][v]);
}

template <class T, class C> static void attend_many(Rows<T, C>& rows) {
    constexpr int VALUES = Units<C>::VALUES;
    const int64_t units = rows.units, value_width = rows.value_width;
    const int64_t depth = rows.ZIPPED && VALUES == 1 ? units : (rows.a.size + VALUES - 1) / VALUES;  // zeros behind it
    float* const scores = scratch<2>(KEYS * (4 + units + value_width));  // [4, KEYS]
    float* const keys = scores + 4 * KEYS;                               // [units, KEYS]
    float* const values = keys + KEYS * units;                           // [KEYS / VALUES, value_width]
    auto value = [&](int64_t unit, int64_t column) { return load_two(values + unit * value_width + column); };
    for (int64_t first = rows.piece.begin(rows.a); first < rows.seen; first += KEYS) {
        Part<C> part(rows.a, rows.piece, first);
        for (int64_t h = 0; h < rows.piece.kv_heads; h++) {
            for (int64_t i = 0; i < part.count; i += LANES)
                copy_columns(part.keys + i, h * part.key_distance, rows.a.size, keys + i);
            for (int64_t i = 0; i < part.count; i += VALUES)
                copy_units(
                    part.values + i, h * part.value_distance, rows.a.value_size, values + i / VALUES * value_width);
            Factors factors;
            if (sizeof(C) == 1) rows.read_factors(first, part.count, h, factors);
            in_blocks(h * rows.of_one + rows.blind(first), (h + 1) * rows.of_one, [&](auto block, int64_t row) {
                int64_t count = std::min(part.count, rows.last_key(row, block) + 1 - first);
                if (count < 1 || first + count <= rows.first_key(row, block)) return;  // behind what they see, or before it
                for (int64_t i = 0; i < count; i += COLUMNS)
                    score_columns<block, C>(rows.queries + row * units, units, keys + i, depth, scores + i);
                for (int r = 0; r < block; r++) rows.weigh(row + r, first, count, factors, scores + r * KEYS);
                add_all<block, C>(scores, value, count, value_width, rows.outs + row * value_width);
            });
        }
    }
}

}  // namespace attention
