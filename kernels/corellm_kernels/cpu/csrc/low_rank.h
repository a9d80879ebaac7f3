// Products of low rank that are added to the outputs of a linear layer: for each row those of its own factors.
//
// Each sum has one order, whatever the rows beside it: over the lanes of a row of x, then over ranks from the first on.
#pragma once

#include <algorithm>
#include <type_traits>

#include "scratch.h"
#include "team.h"
#include "vectors.h"

struct LowRankArgs {
    const void* x;  // [rows, inputs]
    int64_t x_stride;
    const void* a;         // [slots, most, inputs]
    const void* b;         // [slots, most, outputs]
    const int64_t* ranks;  // [slots], of the factors in each; 0 for none
    const int64_t* slots;  // [rows]
    void* out;             // [rows, outputs]
    int64_t out_stride;
    float* inner;  // [rows, most]
    int64_t rows, inputs, outputs, most;
};

namespace low_rank {

constexpr int64_t ROWS = 4;       // of one slot, which share loads
constexpr int64_t RANKS = 4;      // at once; `most` is a multiple of it
constexpr int64_t COLUMNS = 512;  // of a piece of work

// The rows in the order of their slots, as `slot * rows + row`: each thread sorts its own.
static inline const int64_t* sorted(const LowRankArgs& a) {
    int64_t* keys = (int64_t*)scratch<0>(2 * a.rows);
    for (int64_t row = 0; row < a.rows; row++) keys[row] = a.slots[row] * a.rows + row;
    if (!std::is_sorted(keys, keys + a.rows)) std::sort(keys, keys + a.rows);
    return keys;
}

template <class T, int COUNT>
static inline void multiply_inward(const LowRankArgs& a, const int64_t* keys, int64_t slot, int64_t rank) {
    const T *x[COUNT], *w = (const T*)a.a + (slot * a.most + rank) * a.inputs;
    for (int i = 0; i < COUNT; i++) x[i] = (const T*)a.x + keys[i] % a.rows * a.x_stride;
    Floats sums[COUNT][RANKS] = {};
    int64_t k = 0;
    for (; k + LANES <= a.inputs; k += LANES) {
        Floats weights[RANKS];
#pragma GCC unroll 4
        for (int j = 0; j < RANKS; j++) weights[j] = load(w + j * a.inputs + k);
#pragma GCC unroll 4
        for (int i = 0; i < COUNT; i++) {
            Floats values = load(x[i] + k);
#pragma GCC unroll 4
            for (int j = 0; j < RANKS; j++) sums[i][j] += values * weights[j];
        }
    }
    for (int i = 0; i < COUNT; i++)
        for (int j = 0; j < RANKS; j++) {
            float total = sum(sums[i][j]);
            for (int64_t last = k; last < a.inputs; last++)
                total += widened(x[i][last]) * widened(w[j * a.inputs + last]);
            a.inner[keys[i] % a.rows * a.most + rank + j] = total;
        }
}

template <class T, int COUNT>
static inline void multiply_outward(
    const LowRankArgs& a, const int64_t* keys, int64_t slot, int64_t column, int64_t stop) {
    const T* w = (const T*)a.b + slot * a.most * a.outputs;
    T* out[COUNT];
    const float* inner[COUNT];
    for (int i = 0; i < COUNT; i++) {
        out[i] = (T*)a.out + keys[i] % a.rows * a.out_stride;
        inner[i] = a.inner + keys[i] % a.rows * a.most;
    }
    int64_t ranks = a.ranks[slot];
    for (; column + LANES <= stop; column += LANES) {
        Floats sums[COUNT] = {};
        for (int64_t rank = 0; rank < ranks; rank++) {
            Floats weights = load(w + rank * a.outputs + column);
#pragma GCC unroll 4
            for (int i = 0; i < COUNT; i++) sums[i] += inner[i][rank] * weights;
        }
#pragma GCC unroll 4
        for (int i = 0; i < COUNT; i++) store(out[i] + column, load(out[i] + column) + sums[i]);
    }
    for (; column < stop; column++)
        for (int i = 0; i < COUNT; i++) {
            float total = 0.f;
            for (int64_t rank = 0; rank < ranks; rank++)
                total += inner[i][rank] * widened(w[rank * a.outputs + column]);
            narrow(out[i] + column, widened(out[i][column]) + total);
        }
}

// Call `each(keys, slot, count)` for rows of one block that have one slot, `count` a constant.
template <class F> static inline void over_runs(const LowRankArgs& a, const int64_t* keys, int64_t block, F each) {
    int64_t stop = std::min(a.rows, (block + 1) * ROWS);
    for (int64_t i = block * ROWS, next; i < stop; i = next) {
        int64_t slot = keys[i] / a.rows;
        for (next = i + 1; next < stop && keys[next] / a.rows == slot; next++) {}
        if (!a.ranks[slot]) continue;
        switch (next - i) {
            case 1: each(keys + i, slot, std::integral_constant<int, 1>()); break;
            case 2: each(keys + i, slot, std::integral_constant<int, 2>()); break;
            case 3: each(keys + i, slot, std::integral_constant<int, 3>()); break;
            default: each(keys + i, slot, std::integral_constant<int, 4>());
        }
    }
}

template <class T> static void run(const void* args, Team& team) {
    auto& a = *(const LowRankArgs*)args;
    const int64_t* keys = sorted(a);
    int64_t blocks = (a.rows + ROWS - 1) / ROWS, parts = a.most / RANKS;
    for (int64_t piece; (piece = team.take()) < blocks * parts;) {
        int64_t rank = piece % parts * RANKS;
        over_runs(a, keys, piece / parts, [&](const int64_t* some, int64_t slot, auto count) {
            if (rank < a.ranks[slot]) multiply_inward<T, count.value>(a, some, slot, rank);
        });
    }
    team.barrier();
    parts = (a.outputs + COLUMNS - 1) / COLUMNS;
    for (int64_t piece; (piece = team.take()) < blocks * parts;) {
        int64_t column = piece % parts * COLUMNS, stop = std::min(a.outputs, column + COLUMNS);
        over_runs(a, keys, piece / parts, [&](const int64_t* some, int64_t slot, auto count) {
            multiply_outward<T, count.value>(a, some, slot, column, stop);
        });
    }
}

}  // namespace low_rank
