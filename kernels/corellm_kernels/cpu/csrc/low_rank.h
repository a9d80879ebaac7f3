// Products of low rank that are added to the outputs of linear layers: to each row those of its own factors.
//
// They are made inside a linear layer's product: the inner ones while its rows are packed, the outer ones when its sums are
// written. A row without factors costs a look at its slot. Each sum has one order, whatever the rows beside it: over the
// lanes of a row of x, then over ranks from the first on; the inner product is rounded to the type of x in between.
#pragma once

#include <algorithm>
#include <type_traits>

#include "formats.h"
#include "scratch.h"
#include "team.h"
#include "vectors.h"

// The factors for some of the outputs: one of the layers that were joined into one.
struct LowRankPart {
    const void* a;         // [slots, most, inputs]
    const void* b;         // [slots, panels of outputs, most / GROUP, PANEL, GROUP]: packed as in `formats.h`
    const int64_t* ranks;  // [slots], of the factors in each; 0 for none
    int64_t most, column, outputs;
    int64_t inner;  // its place in a row of inner products
};

struct LowRankArgs {
    const void* x;  // [rows, inputs]
    int64_t x_stride;
    const LowRankPart* parts;  // in any order
    int64_t num_parts;
    const int64_t* slots;  // [rows]; slot 0 has no factors
    void* inner;           // [rows, inner_stride], of 4 bytes
    int64_t inner_stride, rows, inputs;
    void* out;  // [rows, outputs]; not used inside a linear layer
    int64_t out_stride, outputs;
};

namespace low_rank {

constexpr int64_t ROWS = 4;            // of one slot, which share loads
constexpr int64_t RANKS = 4;           // at once; `most` is a multiple of it
constexpr int64_t RANKS_AT_ONCE = 16;  // of a piece of work
constexpr int64_t AHEAD = 8;           // ranks whose factors are on their way
constexpr int MOST_SUMS = LANES == 16 ? 16 : 8;  // vectors of a few rows' outer products, which stay in registers
constexpr int PANELS = 8;              // of a row's outer products that are made together

// A row and its slot, which comes first in their order.
struct Key {
    uint64_t bits;

    Key() = default;
    Key(int64_t slot, int64_t row) : bits((uint64_t)slot << 40 | (uint64_t)row) {}
    int64_t slot() const { return (int64_t)(bits >> 40); }
    int64_t row() const { return (int64_t)(bits & ((uint64_t)1 << 40) - 1); }
    bool operator<(const Key& other) const { return bits < other.bits; }
};

// The rows that have factors, in the order of their slots: each thread sorts its own.
struct Keys {
    Key* first;
    int64_t count = 0;

    explicit Keys(const LowRankArgs& a) : first((Key*)scratch<0>(2 * a.rows)) {
        for (int64_t row = 0; row < a.rows; row++)
            if (a.slots[row]) first[count++] = Key(a.slots[row], row);
        if (!std::is_sorted(first, first + count)) std::sort(first, first + count);
    }
};

// Add products of 2 * LANES values of two rows to `sum`.
template <class T> static inline Floats add_products_of(Floats sum, const T* x, const T* w) {
    TwoFloats a = load_two(x), b = load_two(w);
    return sum + a.first * b.first + a.second * b.second;
}

#if defined(__AVX512BF16__)
template <> inline Floats add_products_of(Floats sum, const bfloat16* x, const bfloat16* w) {
    __m512bh a = bits_of<__m512bh>(_mm512_loadu_si512(x)), b = bits_of<__m512bh>(_mm512_loadu_si512(w));
    return (Floats)_mm512_dpbf16_ps((__m512)sum, a, b);
}
#endif

template <class T, int COUNT>
static inline void multiply_inward(const LowRankArgs& a, const LowRankPart& part, const Key* keys, int64_t rank) {
    using Packed = linear::Format<T>;
    const T *x[COUNT], *w = (const T*)part.a + (keys->slot() * part.most + rank) * a.inputs;
    for (int i = 0; i < COUNT; i++) x[i] = (const T*)a.x + keys[i].row() * a.x_stride;
    Floats sums[COUNT][RANKS] = {};
    int64_t k = 0;
    for (; k + 2 * LANES <= a.inputs; k += 2 * LANES) {
        for (int j = 0; j < RANKS; j++) __builtin_prefetch(w + (AHEAD + j) * a.inputs + k);  // none need be there
#pragma GCC unroll 4
        for (int i = 0; i < COUNT; i++)
#pragma GCC unroll 4
            for (int j = 0; j < RANKS; j++) sums[i][j] = add_products_of<T>(sums[i][j], x[i] + k, w + j * a.inputs + k);
    }
    for (int i = 0; i < COUNT; i++) {
        T inner[RANKS];
        for (int j = 0; j < RANKS; j++) {
            float total = sum(sums[i][j]);
            for (int64_t last = k; last < a.inputs; last++)
                total += widened(x[i][last]) * widened(w[j * a.inputs + last]);
            narrow(inner + j, total);
        }
        constexpr int64_t UNITS = RANKS / Packed::GROUP * Packed::UNITS;
        auto* to = (typename Packed::Row*)a.inner + keys[i].row() * a.inner_stride + part.inner + rank / RANKS * UNITS;
        for (int64_t unit = 0; unit < UNITS; unit++) to[unit] = Packed::pack(inner, unit, RANKS);
    }
}

// Make all inner products: to be called by all threads, after a barrier and before one.
template <class T> static void multiply_inward(const LowRankArgs& a, Team& team) {
    Keys keys(a);
    if (!keys.count) return;
    int64_t most = 0, blocks = (keys.count + ROWS - 1) / ROWS;
    for (int64_t i = 0; i < a.num_parts; i++) most = std::max(most, a.parts[i].most);
    int64_t groups = (most + RANKS_AT_ONCE - 1) / RANKS_AT_ONCE, pieces = blocks * a.num_parts * groups;
    for (int64_t piece; (piece = team.take()) < pieces;) {
        int64_t group = piece % groups, block = piece / groups % blocks;
        const LowRankPart& part = a.parts[piece / groups / blocks];
        int64_t stop = std::min(keys.count, (block + 1) * ROWS);
        for (int64_t i = block * ROWS, next; i < stop; i = next) {
            int64_t slot = keys.first[i].slot();
            for (next = i + 1; next < stop && keys.first[next].slot() == slot; next++) {}
            int64_t last = std::min(part.ranks[slot], (group + 1) * RANKS_AT_ONCE);
            for (int64_t rank = group * RANKS_AT_ONCE; rank < last; rank += RANKS) {
                const Key* some = keys.first + i;
                switch (next - i) {
                    case 1: multiply_inward<T, 1>(a, part, some, rank); break;
                    case 2: multiply_inward<T, 2>(a, part, some, rank); break;
                    case 3: multiply_inward<T, 3>(a, part, some, rank); break;
                    default: multiply_inward<T, 4>(a, part, some, rank);
                }
            }
        }
    }
}

// The part that has all of `count` panels of outputs from `column` on, as whole panels of its own; null if none has.
static inline const LowRankPart* whole_part(const LowRankArgs& a, int64_t column, int64_t count) {
    for (const LowRankPart* part = a.parts; part < a.parts + a.num_parts; part++) {
        int64_t first = column - part->column;
        if (first >= 0 && first % PANEL == 0 && first + count * PANEL <= part->outputs) return part;
    }
    return nullptr;
}

template <class T> static inline const T* panel_of(const LowRankPart& part, int64_t slot, int64_t panel) {
    int64_t panels = (part.outputs + PANEL - 1) / PANEL;
    return (const T*)part.b + (slot * panels + panel) * part.most * PANEL;
}

// The outer products of a row and a slot for `COUNT` panels of a part.
template <class T, int COUNT>
static inline void multiply_panels(
    const LowRankArgs& a, const LowRankPart& part, int64_t row, int64_t slot, int64_t panel, float* to) {
    using Packed = linear::Format<T>;
    auto* x = (const typename Packed::Row*)a.inner + row * a.inner_stride + part.inner;
    const T* panels[COUNT];
    for (int i = 0; i < COUNT; i++) panels[i] = panel_of<T>(part, slot, panel + i);
    int64_t depth = (part.ranks[slot] + Packed::GROUP - 1) / Packed::GROUP;
    Floats sums[1][COUNT * linear::VECTORS] = {};
    for (int64_t k = 0; k < depth; k++) Packed::template multiply<1, COUNT>(x, panels, k, sums);
#pragma GCC unroll 16
    for (int i = 0; i < COUNT * linear::VECTORS; i++) store(to + i * LANES, sums[0][i]);
}

// The outer products of a row for `COUNT` panels of outputs from `column` on, written to `to`; null if it has none there.
// `whole` is what `whole_part` says.
template <class T, int COUNT>
static inline const float* multiply_outward(
    const LowRankArgs& a, int64_t row, int64_t column, const LowRankPart* whole, float* to) {
    int64_t slot = a.slots[row];
    if (!slot) return nullptr;
    if (whole) {
        if (!whole->ranks[slot]) return nullptr;
        multiply_panels<T, COUNT>(a, *whole, row, slot, (column - whole->column) / PANEL, to);
        return to;
    }
    const float* result = nullptr;
    constexpr int64_t width = COUNT * PANEL;
    for (const LowRankPart* part = a.parts; part < a.parts + a.num_parts; part++) {
        int64_t first = std::max<int64_t>(0, column - part->column);
        int64_t last = std::min(part->outputs, column + width - part->column);
        if (!part->ranks[slot] || first >= last) continue;
        if (!result) memset(to, 0, width * sizeof *to);
        result = to;
        for (int64_t panel = first / PANEL; panel * PANEL < last; panel++) {
            float some[PANEL];
            multiply_panels<T, 1>(a, *part, row, slot, panel, some);
            int64_t at = part->column + panel * PANEL - column;
            for (int64_t i = std::max<int64_t>(0, -at); i < PANEL && at + i < width; i++) to[at + i] += some[i];
        }
    }
    return result;
}

// The same for `rows` rows, at most ROWS, from `row` on, into rows of `to` and `added`. Each of a row's products alone waits
// for the one before: those of several rows of the same rank are made in turns.
template <class T, int COUNT>
static inline void multiply_outward(
    const LowRankArgs& a, int64_t row, int64_t rows, int64_t column, const LowRankPart* whole, float* to,
    const float** added) {
    using Packed = linear::Format<T>;
    constexpr int WIDTH = COUNT * linear::VECTORS;
    if constexpr (ROWS * WIDTH <= MOST_SUMS) {
        int64_t rank = whole ? whole->ranks[a.slots[row]] : 0;
        bool alike = rank && rows == ROWS;
        for (int64_t i = 1; alike && i < ROWS; i++) alike = whole->ranks[a.slots[row + i]] == rank;
        if (alike) {
            const typename Packed::Row* x[ROWS];
            const T* panels[ROWS][COUNT];
            for (int64_t i = 0; i < ROWS; i++) {
                x[i] = (const typename Packed::Row*)a.inner + (row + i) * a.inner_stride + whole->inner;
                for (int j = 0; j < COUNT; j++)
                    panels[i][j] = panel_of<T>(*whole, a.slots[row + i], (column - whole->column) / PANEL + j);
            }
            Floats sums[ROWS][1][WIDTH] = {};
            for (int64_t k = 0; k < (rank + Packed::GROUP - 1) / Packed::GROUP; k++)
#pragma GCC unroll 4
                for (int64_t i = 0; i < ROWS; i++) Packed::template multiply<1, COUNT>(x[i], panels[i], k, sums[i]);
#pragma GCC unroll 4
            for (int64_t i = 0; i < ROWS; i++) {
                added[i] = to + i * COUNT * PANEL;
#pragma GCC unroll 16
                for (int j = 0; j < WIDTH; j++) store(to + i * COUNT * PANEL + j * LANES, sums[i][0][j]);
            }
            return;
        }
    }
    for (int64_t i = 0; i < rows; i++)
        added[i] = multiply_outward<T, COUNT>(a, row + i, column, whole, to + i * COUNT * PANEL);
}

// Ask for the factors of some rows and `count` panels, which are needed when the rows' products are done.
template <class T>
static inline void prefetch_factors(const LowRankArgs& a, int64_t row, int64_t rows, int64_t column, int64_t count) {
    const LowRankPart* part = whole_part(a, column, count);
    if (!part) return;
    uint64_t asked = 0;  // of 64 slots; that others share a bit with one of them costs some time
    for (int64_t r = row; r < row + rows; r++) {
        int64_t slot = a.slots[r];
        uint64_t bit = (uint64_t)1 << (slot & 63);
        if (!part->ranks[slot] || (asked & bit)) continue;
        asked |= bit;
        const char* from = (const char*)panel_of<T>(*part, slot, (column - part->column) / PANEL);
        for (int64_t byte = 0; byte < (int64_t)sizeof(T) * count * part->most * PANEL; byte += 64)
            __builtin_prefetch(from + byte);
    }
}

template <class T> static void run(const void* args, Team& team) {
    auto& a = *(const LowRankArgs*)args;
    multiply_inward<T>(a, team);
    team.barrier();
    constexpr int64_t COLUMNS = PANELS * PANEL;
    int64_t parts = (a.outputs + COLUMNS - 1) / COLUMNS;
    float room[COLUMNS];
    for (int64_t piece = team.first(a.rows * parts); piece < team.last(a.rows * parts); piece++) {
        int64_t row = piece / parts, column = piece % parts * COLUMNS, width = std::min(a.outputs - column, COLUMNS);
        auto* added = multiply_outward<T, PANELS>(a, row, column, whole_part(a, column, PANELS), room);
        if (!added) continue;
        T* out = (T*)a.out + row * a.out_stride + column;
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) store(out + i, load(out + i) + load(added + i));
        for (; i < width; i++) narrow(out + i, widened(out[i]) + added[i]);
    }
}

}  // namespace low_rank
