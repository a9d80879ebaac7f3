// Products of integers with rows of x in 8 bits.
//
// Weights lie in memory as `formats.h` has them. Values of x in a group of depths share a step: the largest of them becomes
// 127. Where the processor multiplies bytes, a unit of x has four depths, in the order in which the bits of a column's
// weights lie in a 32-bit lane; elsewhere two, as for rows of 16 bits.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "formats.h"
#include "vectors.h"

namespace linear {

// Integers that are multiplied with such rows.
template <class W> struct Narrow {
    W weight;
};
template <class W> constexpr bool NARROW = false;
template <class W> constexpr bool NARROW<Narrow<W>> = true;

// Most values of x in a group, and those in one where weights are in none: `corellm_kernels.int8_inputs.GROUP`.
constexpr int64_t MOST_IN_GROUP = 128;

// Round values `[first, first + group)` of a row of `k` to 8 bits. Return what 1 stands for: NaN if one of the values is no
// number or infinite.
template <class T>
static inline float narrowed(const T* x, int64_t first, int64_t group, int64_t k, uint32_t* rounded) {
    Floats most = {}, invalid = {};
    int64_t i = 0, count = std::max<int64_t>(0, std::min(group, k - first));
    for (; i + LANES <= count; i += LANES) {
        Floats values = load(x + first + i);
        most = at_least(most, at_least(values, -values));
        invalid += values * 0.f;
    }
    float largest_of_all = largest(most), nothing = sum(invalid);
    for (; i < count; i++) {
        largest_of_all = std::max(largest_of_all, fabsf(widened(x[first + i])));
        nothing += widened(x[first + i]) * 0.f;
    }
    float step = largest_of_all / (float)INT8_MAX + nothing, scale = step > 1e-30f ? 1 / step : 0.f;
    for (i = 0; i + LANES <= count; i += LANES) {
        Words values = nearest(apart(load(x + first + i) * scale));
        memcpy(rounded + i, &values, sizeof values);
    }
    for (; i < group; i++) rounded[i] = i < count ? nearest(splat(apart(widened(x[first + i]) * scale)))[0] : 0;
    return step;
}

// Which depths a unit of four has: the first of every so many, and those at these distances behind it. Of integers of 4
// bits, the unit behind it begins at the third.
struct Order {
    int second, third, fourth, depths;
};
constexpr Order IN_ROWS{1, 2, 3, 4};   // of two lines of pairs
constexpr Order OF_8_BITS{2, 1, 3, 4};  // depths at even and odd places lie apart
constexpr Order OF_4_BITS{4, 1, 5, 8};

// Write rounded values as units, `stride` apart: pairs, or fours if the processor multiplies BYTES.
template <bool BYTES>
static inline void write_units(const uint32_t* from, int64_t group, Order order, uint32_t* to, int64_t stride) {
    if constexpr (!BYTES) {
        for (int64_t i = 0; i < group; i += 2, to += stride) *to = (from[i] & 0xffffu) | from[i + 1] << 16;
        return;
    }
    for (int64_t i = 0; i < group; i += order.depths)
        for (const uint32_t* four = from + i; four < from + i + order.depths / 2; four += 2, to += stride)
            *to = (four[0] & 0xffu) | (four[order.second] & 0xffu) << 8 | (four[order.third] & 0xffu) << 16 |
                  four[order.fourth] << 24;
}

static inline uint32_t total(const uint32_t* rounded, int64_t group) {
    uint32_t sum = 0;
    for (int64_t i = 0; i < group; i++) sum += rounded[i];
    return sum;
}

// Of whole rows of x groups of `DEPTHS` are rounded, the last one of which may have fewer; each has units, and one for the
// sum of its values and one for their step.
template <> struct Format<Narrow<int8_t>> {
    static constexpr int GROUP = 0, UNITS = 0;
    static constexpr bool BYTES = multiplies_bytes(8);
    static constexpr int64_t DEPTHS = MOST_IN_GROUP, WIDTH = BYTES ? 4 : 2;
    using Row = uint32_t;
    using Sum = Floats;
    using W = Narrow<int8_t>;

    static constexpr int64_t depths(int64_t) { return DEPTHS; }
    static constexpr int64_t bytes(int64_t) { return DEPTHS * PANEL; }
    static constexpr int64_t units(int64_t) { return DEPTHS / WIDTH + 2; }

    // Multiply a group of so many depths.
    template <int ROWS, int COUNT, bool STREAMS>
    static inline void multiply(const Row* x, const W* const* panels, int64_t depths, Floats (*sum)[COUNT * VECTORS]) {
        if constexpr (STREAMS)
            for (int64_t i = 0; i < DEPTHS * PANEL; i += 64) __builtin_prefetch(panels[0] + GROUPS_AHEAD + i);
        const Row *totals = x + DEPTHS / WIDTH * ROWS, *steps = totals + ROWS;
        const int8_t* from[COUNT];
        for (int i = 0; i < COUNT; i++) from[i] = (const int8_t*)panels[i];
        Ints products[ROWS][COUNT * VECTORS] = {};
        int64_t pairs = (depths + 1) / 2;
        if constexpr (BYTES) {
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
                for (int i = 0; i < COUNT * VECTORS; i++) products[r][i] = (Ints)(totals[r] + Words{});
            for (int64_t four = 0; four < pairs / 2; four++) multiply_four<ROWS, COUNT, true>(x, from, four, products);
            if (pairs % 2) multiply_four<ROWS, COUNT, false>(x, from, pairs / 2, products);
        } else
            for (int64_t k = 0; k < pairs; k++) Format<int8_t>::multiply<ROWS, COUNT>(x, from, k, products);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
            for (int i = 0; i < COUNT * VECTORS; i++) sum[r][i] += bits_of<float>(steps[r]) * floats(products[r][i]);
    }

    // Multiply four depths, or the two that are left of them.
    template <int ROWS, int COUNT, bool WHOLE>
    static inline void
    multiply_four(const Row* x, const int8_t* const* panels, int64_t four, Ints (*products)[COUNT * VECTORS]) {
        Words w[COUNT * VECTORS];
#pragma GCC unroll 16
        for (int i = 0; i < COUNT * VECTORS; i++) w[i] = load_fours<WHOLE>(panels[i / VECTORS] + 4 * four * PANEL);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            Words values = x[four * ROWS + r] + Words{};
#pragma GCC unroll 16
            for (int i = 0; i < COUNT * VECTORS; i++) add_byte_products(products[r][i], w[i], values);
        }
    }

    template <class T>
    static void pack(const T* x, int64_t start, int64_t stop, int64_t k, int64_t, Row* to, int64_t stride) {
        uint32_t rounded[DEPTHS];
        for (int64_t g = start; g < stop; g++) {
            Row* first = to + g * units(0) * stride;
            float step = narrowed(x, g * DEPTHS, DEPTHS, k, rounded);
            write_units<BYTES>(rounded, DEPTHS, IN_ROWS, first, stride);
            first[DEPTHS / WIDTH * stride] = 0u - 128u * total(rounded, DEPTHS);  // weights become unsigned by 128
            first[(DEPTHS / WIDTH + 1) * stride] = bits_of<Row>(step);
        }
    }
};

// Groups are those of the weights.
template <int BITS, Kind KIND> struct Format<Narrow<Grouped<BITS, KIND>>> : Format<Grouped<BITS, KIND>> {
    using Wide = Format<Grouped<BITS, KIND>>;
    using typename Wide::Row, typename Wide::Factors;
    using Wide::together, Wide::header, Wide::bytes, Wide::DEPTHS, Wide::LINE;
    static constexpr bool BYTES = multiplies_bytes(BITS);
    static constexpr int64_t WIDTH = BYTES ? 4 : 2, FOURS = Wide::DEPTHS / 4;
    using W = Narrow<Grouped<BITS, KIND>>;

    static constexpr int64_t units(int64_t group) { return together(group) * (group / WIDTH + 2); }

    template <int ROWS, int COUNT, bool STREAMS>
    static inline void multiply(const Row* x, const W* const* panels, int64_t group, Floats (*sum)[COUNT * VECTORS]) {
        const Grouped<BITS, KIND>* from[COUNT];
        for (int i = 0; i < COUNT; i++) from[i] = (const Grouped<BITS, KIND>*)panels[i];
        for (int64_t g = 0; g < together(group); g++, x += (group / WIDTH + 2) * ROWS) {
            int64_t first = header(group) + g * group / DEPTHS * LINE, size = bytes(group) / together(group);
            if constexpr (STREAMS)
                for (int64_t i = 0; i < size; i += 64) __builtin_prefetch(from[0] + g * size + GROUPS_AHEAD + i);
            Ints products[ROWS][COUNT * VECTORS] = {};
            if constexpr (BYTES)
                multiply_bytes<ROWS, COUNT>(x, from, group / DEPTHS, first, products);
            else
                Wide::template multiply_pairs<ROWS, COUNT>(x, from, group, first, products);
            const Row *totals = x + group / WIDTH * ROWS, *steps = totals + ROWS;
#pragma GCC unroll 16
            for (int i = 0; i < COUNT * VECTORS; i++) {
                Factors column = Wide::factors(from[i / VECTORS], i % VECTORS * LANES, g);
#pragma GCC unroll 16
                for (int r = 0; r < ROWS; r++) {
                    Floats scale = column.scale * bits_of<float>(steps[r]);
                    if constexpr (KIND != ZEROS) {
                        sum[r][i] -= column.zero * bits_of<float>(totals[r]);
                        sum[r][i] += scale * floats(products[r][i]);
                    } else {
                        Floats shifted = floats(products[r][i]) - column.zero * bits_of<float>(totals[r]);
                        sum[r][i] += scale * shifted;
                    }
                }
            }
        }
    }

    template <int ROWS, int COUNT>
    static inline void multiply_bytes(
        const Row* x, const Grouped<BITS, KIND>* const* panels, int64_t lines, int64_t first,
        Ints (*products)[COUNT * VECTORS]) {
        if constexpr (std::is_same_v<ByteSums, Ints>)
            multiply_lines<ROWS, COUNT>(x, panels, first, 0, lines, products);
        else
            for (int64_t line = 0; line < lines; line += LINES_IN_SHORTS) {
                ByteSums some[ROWS][COUNT * VECTORS] = {};
                multiply_lines<ROWS, COUNT>(x, panels, first, line, std::min(lines, line + LINES_IN_SHORTS), some);
#pragma GCC unroll 16
                for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
                    for (int i = 0; i < COUNT * VECTORS; i++)
                        products[r][i] = add_products(products[r][i], (Shorts)some[r][i], (Shorts)(Words{} + 0x10001u));
            }
    }

    template <int ROWS, int COUNT>
    static inline void multiply_lines(
        const Row* x, const Grouped<BITS, KIND>* const* panels, int64_t first, int64_t line, int64_t end,
        ByteSums (*sums)[COUNT * VECTORS]) {
        for (; line < end; line++) {
#pragma GCC unroll 2
            for (int64_t four = 0; four < FOURS; four++) {
                Words w[COUNT * VECTORS];
#pragma GCC unroll 16
                for (int i = 0; i < COUNT * VECTORS; i++) {
                    memcpy(&w[i], panels[i / VECTORS] + first + line * LINE + i % VECTORS * 4 * LANES, sizeof w[i]);
                    if constexpr (BITS == 4) w[i] = (four ? w[i] >> 4 : w[i]) & 0x0f0f0f0fu;
                }
#pragma GCC unroll 16
                for (int r = 0; r < ROWS; r++) {
                    Words values = x[(line * FOURS + four) * ROWS + r] + Words{};
#pragma GCC unroll 16
                    for (int i = 0; i < COUNT * VECTORS; i++) add_byte_products(sums[r][i], w[i], values);
                }
            }
        }
    }

    template <class T>
    static void pack(const T* x, int64_t start, int64_t stop, int64_t k, int64_t group, Row* to, int64_t stride) {
        uint32_t rounded[MOST_IN_GROUP];
        int64_t size = group / WIDTH + 2;
        for (int64_t g = start * together(group); g < stop * together(group); g++) {
            Row* first = to + g * size * stride;
            float step = narrowed(x, g * group, group, k, rounded), sum = (float)(int32_t)total(rounded, group);
            write_units<BYTES>(rounded, group, BITS == 4 ? OF_4_BITS : OF_8_BITS, first, stride);
            first[(size - 2) * stride] = bits_of<Row>(KIND == ZEROS ? sum : sum * step);
            first[(size - 1) * stride] = bits_of<Row>(step);
        }
    }
};

template <int BITS, Kind KIND> struct UnpackedTo<Narrow<Grouped<BITS, KIND>>> {
    using Type = std::conditional_t<
        multiplies_bytes(BITS), Narrow<Grouped<BITS, KIND>>, Narrow<typename UnpackedTo<Grouped<BITS, KIND>>::Type>>;
};

}  // namespace linear
