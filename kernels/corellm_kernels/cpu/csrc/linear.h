// Products with packed weights: out = x W^T (+ bias) (+ residual), accumulated in float32, of int8 weights in int32, of
// weights in groups in int32 within each and in float32 over them, as of integers with rows in 8 bits.
//
// Rows of x are packed in blocks of equal height, so that the innermost loop reads both sides in order. How W is packed is
// in `formats.h`.
//
// Each output is summed in order of depth, by one accumulator, whatever the number of rows: a row's results do not depend
// on the rows beside it. Products of low rank of the row's own factors are added before the sum is rounded. Blocking after
// Goto and van de Geijn 2008.
#pragma once

#include <algorithm>
#include <type_traits>

#include "formats.h"
#include "low_rank.h"
#include "narrow.h"
#include "scratch.h"
#include "team.h"
#include "vectors.h"

struct LinearArgs {
    const void* x;
    int64_t x_stride;
    const void* weight;
    const float* scale;    // [n], of int8 weights
    const float* bias;     // [n] or null
    const void* residual;  // [m, n] or null; may be `out`
    int64_t residual_stride;
    void* out;
    int64_t out_stride;
    void* rows;  // room for x packed, and a factor for each row: of 4 bytes each, m * (units + 1)
    int64_t m, n, k;
    int64_t group;  // depths that share a scale, of weights in groups
    LowRankArgs low_rank;  // without parts if nothing is added
};

namespace linear {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int ACCUMULATORS = 24;  // of 32 registers
#else
constexpr int ACCUMULATORS = LANES == 8 ? 12 : 8;  // of 16
#endif
constexpr int MAX_ROWS = LANES == 16 ? 12 : ACCUMULATORS / VECTORS;

// Whether integers in groups are unpacked before many blocks of rows use them. Higher blocks unpack faster than they read
// more memory.
constexpr bool UNPACKS = MAX_ROWS < 12;

constexpr int64_t AHEAD = 512;  // weights, of which 1 or 2 KiB are on their way while a stream of them is read

constexpr int64_t DEPTH_AT_ONCE = 256;  // of which a panel in float32 stays in the first cache

constexpr int64_t ROWS_AT_ONCE = 1 << 17;  // packed values of rows, which stay in the second cache

// Panels multiplied at once by blocks of so many rows: as many as there are accumulators for.
constexpr int panels_at_once(int rows) {
    int panels = 1;
    while (2 * panels * rows * VECTORS <= ACCUMULATORS && panels < 8) panels *= 2;
    return panels;
}

// How the depth of W is divided.
template <class W> struct Groups {
    int64_t size, units, weights, count;  // of each: depths, units of x, elements of W in a panel; how many there are
    int64_t panel;                        // elements of W

    explicit Groups(const LinearArgs& a) {
        if constexpr (GROUPED<W>)
            size = Format<W>::depths(a.group), units = Format<W>::units(a.group), weights = Format<W>::bytes(a.group);
        else
            size = Format<W>::GROUP, units = Format<W>::UNITS, weights = Format<W>::GROUP * PANEL;
        count = (a.k + size - 1) / size;
        panel = std::is_same_v<W, Narrow<int8_t>> ? (a.k + 1) / 2 * 2 * PANEL : count * weights;
    }
};

// Of the `k`th group from where `group` depths are left, its depths, where they are not those of weights in groups.
template <class W> static inline int64_t depths_of(int64_t group, int64_t k) {
    if constexpr (std::is_same_v<W, Narrow<int8_t>>) return std::min(Format<W>::DEPTHS, group - k * Format<W>::DEPTHS);
    return group;
}

// A factor for each row, which follow the packed rows.
template <class W> static inline float* row_factors(const LinearArgs& a) {
    Groups<W> groups(a);
    return (float*)a.rows + a.m * groups.count * groups.units;
}

// The most rows of a block. A block that widens pairs of bfloat16 itself needs one more register, which a row gives up.
template <class W> static int64_t most_rows(int64_t m) {
    int64_t fewer = MAX_ROWS - 1;
    return WIDENS<W> && m <= 3 * fewer ? fewer : MAX_ROWS;
}

// How `m` rows are divided into blocks of equal height, give or take one.
struct Blocks {
    int64_t count, height, higher;

    Blocks(int64_t m, int64_t most) : count((m + most - 1) / most), height(m / count), higher(m % count) {}
    int64_t first(int64_t block) const { return block * height + std::min(block, higher); }
    int64_t rows(int64_t block) const { return height + (block < higher); }
    int64_t most() const { return height + (higher > 0); }
};

template <class T, class W> static void pack_rows(const LinearArgs& a, const Blocks& blocks, Team& team) {
    using Row = typename Format<W>::Row;
    Groups<W> groups(a);
    // long blocks are packed by several threads: the unit of work is a block's part of the depth
    int64_t at_once = GROUPED<W> ? std::max<int64_t>(1, PART / groups.units) : PART;
    int64_t depth = GROUPED<W> ? groups.count : groups.count * groups.units;
    int64_t parts = (depth + at_once - 1) / at_once, count = blocks.count * parts;
    [[maybe_unused]] float* factors = row_factors<W>(a);
    if constexpr (ROUNDS<W> && !NARROW<W>) {
        for (int64_t r = team.first(a.m); r < team.last(a.m); r++)
            factors[r] = Format<W>::step((const T*)a.x + r * a.x_stride, a.k);
        team.barrier();
    }
    for (int64_t piece = team.first(count); piece < team.last(count); piece++) {
        int64_t block = piece / parts, start = piece % parts * at_once, stop = std::min(depth, start + at_once);
        int64_t first = blocks.first(block), rows = blocks.rows(block);
        Row* to = (Row*)a.rows + first * groups.count * groups.units;
        for (int64_t r = 0; r < rows; r++) {
            const T* x = (const T*)a.x + (first + r) * a.x_stride;
            [[maybe_unused]] float scale = 0;
            if constexpr (ROUNDS<W> && !NARROW<W>) scale = factors[first + r] > 1e-30f ? 1 / factors[first + r] : 0.f;
            if constexpr (NARROW<W>)
                Format<W>::pack(x, start, stop, a.k, a.group, to + r, rows);
            else if constexpr (GROUPED<W>)
                Format<W>::pack(x, start, stop, a.k, a.group, scale, to + r, rows);
            else if constexpr (ROUNDS<W>)
                Format<W>::pack(x, start, stop, a.k, scale, to + r, rows);
            else
                for (int64_t k = start; k < stop; k++) to[k * rows + r] = Format<W>::pack(x, k, a.k);
        }
    }
}

// Ask for values that are needed soon; none need be there.
template <int64_t COUNT, class W> static inline void prefetch(const W* values) {
#pragma GCC unroll 4
    for (size_t byte = 0; byte < COUNT * sizeof(W); byte += 64) __builtin_prefetch((const char*)values + byte);
}

// Multiply one block of rows and `COUNT` panels over `depth` groups; `sums` is `[ROWS, COUNT * PANEL]`.
template <class W, int ROWS, int COUNT, bool STREAMS>
static void multiply_block(
    const typename Format<W>::Row* x, const W* weight, int64_t panel_size, int64_t depth, [[maybe_unused]] int64_t group,
    bool add, float* sums) {
    using Sum = typename Format<W>::Sum;
    Sum sum[ROWS][COUNT * VECTORS];
    const W* panels[COUNT];
    for (int i = 0; i < COUNT; i++) panels[i] = weight + i * panel_size;
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
        for (int i = 0; i < COUNT * VECTORS; i++)
            sum[r][i] = add ? bits_of<Sum>(load(sums + (r * COUNT * VECTORS + i) * LANES)) : Sum{};
    for (int64_t k = 0; k < depth; k++) {
        if constexpr (GROUPED<W>) {
            Format<W>::template multiply<ROWS, COUNT, STREAMS>(x, panels, depths_of<W>(group, k), sum);
            for (int i = 0; i < COUNT; i++) panels[i] += Format<W>::bytes(group);
            x += Format<W>::units(group) * ROWS;
        } else {
            if constexpr (STREAMS) {
                constexpr int64_t GROUP = Format<W>::GROUP * PANEL;
                prefetch<GROUP>(weight + k * GROUP + AHEAD);
            }
            Format<W>::template multiply<ROWS, COUNT>(x, panels, k, sum);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
        for (int i = 0; i < COUNT * VECTORS; i++) store(sums + (r * COUNT * VECTORS + i) * LANES, bits_of<Floats>(sum[r][i]));
}

template <class W, int COUNT, bool STREAMS, int ROWS = MAX_ROWS>
static inline void multiply_rows(
    int64_t rows, const typename Format<W>::Row* x, const W* weight, int64_t panel_size, int64_t depth, int64_t group,
    bool add, float* sums) {
    if constexpr (ROWS >= 1) {
        if (rows != ROWS)
            multiply_rows<W, COUNT, STREAMS, ROWS - 1>(rows, x, weight, panel_size, depth, group, add, sums);
        else if constexpr (COUNT <= panels_at_once(ROWS))
            // several panels are streams enough
            multiply_block<W, ROWS, COUNT, STREAMS && COUNT == 1>(x, weight, panel_size, depth, group, add, sums);
    }
}

// Widen a part of a panel into float32: worth it for many blocks of rows, which otherwise would each do so.
static const float* unpacked(const bfloat16* panel, int64_t start, int64_t stop) {
    float* to = scratch<1>((stop - start) * 2 * PANEL);
    for (int64_t k = start; k < stop; k++)
        for (int64_t i = 0; i < PANEL; i += LANES) {
            Words pairs;
            memcpy(&pairs, panel + 2 * (k * PANEL + i), sizeof pairs);
            store(to + 2 * (k - start) * PANEL + i, (Floats)(pairs << 16));
            store(to + (2 * (k - start) + 1) * PANEL + i, (Floats)(pairs & 0xffff0000u));
        }
    return to;
}

template <class W> using Unpacked = typename UnpackedTo<W>::Type;

// Widen groups of `count` panels, which lie `panel_size` apart.
template <int BITS, Kind KIND>
static const Unpacked<Grouped<BITS, KIND>>*
unpacked(const Grouped<BITS, KIND>* weight, int64_t panel_size, int count, int64_t depth, int64_t group) {
    using Packed = Format<Grouped<BITS, KIND>>;
    using Wide = Unpacked<Grouped<BITS, KIND>>;
    int64_t size = depth * Packed::together(group) * Format<Wide>::bytes(group);
    auto* to = (Wide*)scratch<1>(count * size / (int64_t)sizeof(float));
    for (int i = 0; i < count; i++) Packed::unpack(weight + i * panel_size, depth, group, to + i * size);
    return to;
}
template <class W>
static const Unpacked<Narrow<W>>*
unpacked(const Narrow<W>* weight, int64_t panel_size, int count, int64_t depth, int64_t group) {
    return (const Unpacked<Narrow<W>>*)unpacked((const W*)weight, panel_size, count, depth, group);
}

// Write sums `[rows, COUNT * PANEL]`, whose rows start at `row`, and columns at `column`.
template <class T, class W, int COUNT>
static void finish(const LinearArgs& a, int64_t row, int64_t rows, int64_t column, const float* sums) {
    constexpr int64_t width = COUNT * PANEL;
    int64_t columns = std::min(width, a.n - column);
    const LowRankPart* whole = low_rank::whole_part(a.low_rank, column, COUNT);
    float room[low_rank::ROWS * width];
    const float* products[low_rank::ROWS] = {};  // of low rank, of this row and those behind it
    for (int64_t r = row; r < row + rows; r++) {
        int64_t place = (r - row) % low_rank::ROWS;
        if (a.low_rank.num_parts && !place) {
            int64_t some = std::min(low_rank::ROWS, row + rows - r);
            low_rank::multiply_outward<T, COUNT>(a.low_rank, r, some, column, whole, room, products);
        }
        const float* added = products[place];
        T* out = (T*)a.out + r * a.out_stride + column;
        const T* residual = a.residual ? (const T*)a.residual + r * a.residual_stride + column : nullptr;
        const float* from = sums + (r - row) * width;
        for (int64_t i = 0; i < columns; i += 64 / sizeof(T)) {  // rows are too far apart for the processor to foresee them
            __builtin_prefetch(out + 8 * a.out_stride + i, 1);
            if (residual) __builtin_prefetch(residual + 8 * a.residual_stride + i);
        }
        float factor = ROUNDS<W> && !NARROW<W> ? row_factors<W>(a)[r] : 1.f;
        int64_t i = 0;
        for (; i + LANES <= columns; i += LANES) {
            Floats y = floats(bits_of<typename Format<W>::Sum>(load(from + i)));
            if constexpr (std::is_same_v<W, Narrow<int8_t>>)
                y *= load(a.scale + column + i);
            else if constexpr (GROUPED<W>)
                y *= factor;
            else if constexpr (ROUNDS<W>)
                y *= factor * load(a.scale + column + i);
            if (a.bias) y += load(a.bias + column + i);
            if (added) y += load(added + i);
            if (residual) y += load(residual + i);
            store(out + i, y);
        }
        for (; i < columns; i++) {
            float y = from[i];
            if constexpr (std::is_same_v<W, Narrow<int8_t>>)
                y *= a.scale[column + i];
            else if constexpr (GROUPED<W>)
                y *= factor;
            else if constexpr (ROUNDS<W>)
                y = (float)bits_of<int32_t>(from[i]) * (factor * a.scale[column + i]);
            if (a.bias) y += a.bias[column + i];
            if (added) y += added[i];
            if (residual) y += widened(residual[i]);
            narrow(out + i, y);
        }
    }
}

// Multiply blocks of rows from `begin` to `end` and `COUNT` panels from `panel`, a part of the depth after the other.
template <class T, class W, int COUNT>
static void multiply_piece(const LinearArgs& a, const Blocks& blocks, int64_t begin, int64_t end, int64_t panel) {
    Groups<W> groups(a);
    constexpr bool UNPACKED = GROUPED<W> && UNPACKS && !std::is_same_v<W, Unpacked<W>>;
    constexpr int64_t DEPTHS = (NARROW<W> && !UNPACKED ? 4 : 1) * DEPTH_AT_ONCE;  // bytes take a quarter of the cache
    int64_t at_once = blocks.count == 1 ? groups.count : std::max<int64_t>(1, DEPTHS / groups.size / COUNT);
    int64_t count = end - begin, top = blocks.first(begin);
    float* sums = scratch<0>(count * MAX_ROWS * COUNT * PANEL);
    const W* weight = (const W*)a.weight + panel * groups.panel;
    if (a.low_rank.num_parts)
        low_rank::prefetch_factors<T>(a.low_rank, top, blocks.first(end) - top, panel * PANEL, COUNT);
    for (int64_t start = 0; start < groups.count; start += at_once) {
        int64_t stop = std::min(groups.count, start + at_once), depth = stop - start;
        int64_t group = NARROW<W> && !a.group ? a.k - start * groups.size : a.group;
        const W *from = weight + start * groups.weights, *next = weight + stop * groups.weights;
        [[maybe_unused]] const float* wide = nullptr;
        [[maybe_unused]] const Unpacked<W>* integers = nullptr;
        if constexpr (WIDENS<W>)
            if (COUNT == 1 && count >= 3) wide = unpacked(weight, start, stop);
        if constexpr (UNPACKED)
            if (count >= 3) integers = unpacked(from, groups.panel, COUNT, depth, group);
        int64_t share = depth * groups.weights / count;
        for (int64_t block = begin; block < end; block++) {
            if (blocks.count > (WIDENS<W> ? 2 : 3) && !ROUNDS<W>)
                for (int64_t i = (block - begin) * share; i < (block - begin + 1) * share; i += 64 / sizeof(W))
                    __builtin_prefetch(next + i, 0, 2);
            int64_t first = blocks.first(block), rows = blocks.rows(block);
            auto* x = (const typename Format<W>::Row*)a.rows + (first * groups.count + start * rows) * groups.units;
            float* to = sums + (first - top) * COUNT * PANEL;
            if constexpr (WIDENS<W>)
                if (wide) {
                    multiply_rows<float, 1, false>(rows, x, wide, 0, depth * groups.units, 0, start > 0, to);
                    continue;
                }
            if constexpr (UNPACKED)
                if (integers) {
                    int64_t groups_in = depth * Format<W>::together(group);
                    int64_t size = groups_in * Format<Unpacked<W>>::bytes(group);
                    multiply_rows<Unpacked<W>, COUNT, false>(rows, x, integers, size, groups_in, group, start > 0, to);
                    continue;
                }
            if (blocks.count > 2)
                multiply_rows<W, COUNT, false>(rows, x, from, groups.panel, depth, group, start > 0, to);
            else
                multiply_rows<W, COUNT, true>(rows, x, from, groups.panel, depth, group, start > 0, to);
        }
    }
    finish<T, W, COUNT>(a, top, blocks.first(end) - top, panel * PANEL, sums);
}

template <class T, class W, int COUNT> static void multiply_panels(const LinearArgs& a, const Blocks& blocks, Team& team) {
    // as many blocks of rows at once as stay in the second cache while panels are read
    Groups<W> groups(a);
    int64_t depth = groups.count * groups.units;
    int64_t parts = std::min(blocks.count, (a.m * depth + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE);
    int64_t panels = (a.n + PANEL - 1) / PANEL, columns = (panels + COUNT - 1) / COUNT, pieces = parts * columns;
    int64_t pieces_at_once = std::max<int64_t>(1, pieces / (8 * team.size));
    for (int64_t taken; (taken = team.take() * pieces_at_once) < pieces;)
        for (int64_t piece = taken; piece < std::min(pieces, taken + pieces_at_once); piece++) {
            int64_t part = piece / columns, panel = piece % columns * COUNT;
            int64_t begin = blocks.count * part / parts, end = blocks.count * (part + 1) / parts;
            if (panel + COUNT <= panels)
                multiply_piece<T, W, COUNT>(a, blocks, begin, end, panel);
            else
                for (; panel < panels; panel++) multiply_piece<T, W, 1>(a, blocks, begin, end, panel);
        }
}

template <class T, class W, int COUNT = 8>
static void multiply_all(int64_t at_once, const LinearArgs& a, const Blocks& blocks, Team& team) {
    if constexpr (COUNT > 1) {
        if (at_once != COUNT) return multiply_all<T, W, COUNT / 2>(at_once, a, blocks, team);
    }
    if constexpr (COUNT <= panels_at_once(1)) multiply_panels<T, W, COUNT>(a, blocks, team);
}

template <class T, class W> static void run(const void* args, Team& team) {
    auto& a = *(const LinearArgs*)args;
    if (!a.m) return;
    Blocks blocks(a.m, most_rows<W>(a.m));
    pack_rows<T, W>(a, blocks, team);
    if (a.low_rank.num_parts) low_rank::multiply_inward<T>(a.low_rank, team);
    team.barrier();
    multiply_all<T, W>(panels_at_once((int)blocks.most()), a, blocks, team);
}

}  // namespace linear
