// How weights are packed, and multiplied with rows of x.
//
// W is packed in panels of 16 output columns. Within a panel, rows of depth follow each other; for bfloat16 two at a time,
// interleaved: a 32-bit lane then holds the values of one column for depths k and k + 1, which AVX512-BF16 multiplies in
// one instruction, and which one shift and one mask widen elsewhere. Int8 weights, with a factor for each column, are in
// pairs, too: rows of x then become 16-bit integers, each row as fine as sums of 32 bits allow.
//
// Grouped weights are integers of 4 or 8 bits with a scale and a zero for each column and group of depths. Of a panel's
// group, a line of scales and zeros comes first, then the integers in lines: a 16-bit lane has those of one column for
// depths k, k + 2, ..., its neighbour those for k + 1, k + 3, ..., so that a shift and a mask make pairs of a line. Groups
// with minima have two lines of floats instead: scales, and minima, which are subtracted after the scale. Where groups are in
// blocks of 256 depths, a block begins with two lines of floats, which its groups' scales and minima of 8 bits are multiplied
// with, and a line of those for every two groups, 16 scales and 16 minima of each; then come the integers of all of them.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "team.h"
#include "vectors.h"

static constexpr int64_t PANEL = 16;

namespace linear {

constexpr int VECTORS = PANEL / LANES;  // of a panel's row
constexpr int64_t PART = 256;           // values or pairs of a row that are packed at once
constexpr int64_t GROUPS_AHEAD = 1024;  // bytes of weights in groups that are on their way while a stream of them is read

// How rows of x and a panel of W are stored and multiplied: `GROUP` depths of W together, as `UNITS` values of x.
template <class W> struct Format {  // float
    static constexpr int GROUP = 1, UNITS = 1;
    using Row = float;
    using Sum = Floats;

    template <int ROWS, int COUNT>
    static inline void multiply(const Row* x, const W* const* panels, int64_t k, Floats (*sum)[COUNT * VECTORS]) {
        Floats w[COUNT * VECTORS];
#pragma GCC unroll 16
        for (int i = 0; i < COUNT * VECTORS; i++)
            w[i] = load(panels[i / VECTORS] + k * PANEL + i % VECTORS * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
            for (int i = 0; i < COUNT * VECTORS; i++) sum[r][i] += x[k * ROWS + r] * w[i];
    }

    template <class T> static inline Row pack(const T* x, int64_t k, int64_t) { return widened(x[k]); }
};

#if defined(__AVX512BF16__)
template <> struct Format<bfloat16> {
    static constexpr int GROUP = 2, UNITS = 1;
    using Row = uint32_t;
    using Sum = Floats;

    template <int ROWS, int COUNT>
    static inline void multiply(const Row* x, const bfloat16* const* panels, int64_t k, Floats (*sum)[COUNT]) {
        __m512bh w[COUNT];
#pragma GCC unroll 16
        for (int i = 0; i < COUNT; i++) w[i] = bits_of<__m512bh>(_mm512_loadu_si512(panels[i] + k * 2 * PANEL));
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            __m512bh pair = bits_of<__m512bh>(_mm512_set1_epi32((int)x[k * ROWS + r]));
#pragma GCC unroll 16
            for (int i = 0; i < COUNT; i++) sum[r][i] = (Floats)_mm512_dpbf16_ps((__m512)sum[r][i], pair, w[i]);
        }
    }

    static inline Row pack(const bfloat16* x, int64_t group, int64_t k) {
        if (2 * group + 1 == k) return x[2 * group].bits;
        Row pair;
        memcpy(&pair, x + 2 * group, sizeof pair);
        return pair;
    }
};
#else
template <> struct Format<bfloat16> {
    static constexpr int GROUP = 2, UNITS = 2;
    using Row = float;
    using Sum = Floats;

    template <int ROWS, int COUNT>
    static inline void multiply(const Row* x, const bfloat16* const* panels, int64_t k, Floats (*sum)[COUNT * VECTORS]) {
        Floats w[COUNT * VECTORS];
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; odd++) {
            asm volatile("" ::: "memory");  // load twice: registers are scarcer than loads
#pragma GCC unroll 16
            for (int i = 0; i < COUNT * VECTORS; i++) {
                Words pairs;
                memcpy(&pairs, panels[i / VECTORS] + 2 * (k * PANEL + i % VECTORS * LANES), sizeof pairs);
                w[i] = (Floats)(odd ? pairs & 0xffff0000u : pairs << 16);
            }
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
                for (int i = 0; i < COUNT * VECTORS; i++) sum[r][i] += x[(2 * k + odd) * ROWS + r] * w[i];
        }
    }

    static inline Row pack(const bfloat16* x, int64_t k, int64_t depth) { return k < depth ? widened(x[k]) : 0.f; }
};
#endif

template <> struct Format<int8_t> {
    static constexpr int GROUP = 2, UNITS = 1;
    using Row = uint32_t;
    using Sum = Ints;

    template <int ROWS, int COUNT>
    static inline void multiply(const Row* x, const int8_t* const* panels, int64_t k, Ints (*sum)[COUNT * VECTORS]) {
        Shorts w[COUNT * VECTORS];
#pragma GCC unroll 16
        for (int i = 0; i < COUNT * VECTORS; i++)
            w[i] = load_pairs(panels[i / VECTORS] + 2 * (k * PANEL + i % VECTORS * LANES));
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            Shorts pair = (Shorts)(x[k * ROWS + r] + Words{});
#pragma GCC unroll 16
            for (int i = 0; i < COUNT * VECTORS; i++) sum[r][i] = add_products(sum[r][i], pair, w[i]);
        }
    }

    // Round values `[2 * start, 2 * stop)` of a row of `k`, and write pairs of them `stride` apart.
    template <class T>
    static void pack(const T* x, int64_t start, int64_t stop, int64_t k, float scale, Row* to, int64_t stride) {
        uint32_t rounded[2 * PART];
        int64_t i = 2 * start, last = std::min(2 * stop, k);
        for (; i + LANES <= last; i += LANES) {
            Words values = nearest(load(x + i) * scale);
            memcpy(rounded + i - 2 * start, &values, sizeof values);
        }
        for (; i < 2 * stop; i++) rounded[i - 2 * start] = i < last ? nearest(splat(widened(x[i]) * scale))[0] : 0;
        for (int64_t pair = start; pair < stop; pair++) {
            const uint32_t* two = rounded + 2 * (pair - start);
            to[pair * stride] = (two[0] & 0xffffu) | two[1] << 16;
        }
    }

    // What 1 stands for in the integers of a row: NaN if one of its values is no number or infinite, or if their magnitudes
    // together exceed 2.6e36.
    template <class T> static float step(const T* x, int64_t k, float largest_weight = 127.f) {
        Floats most = {}, all = {}, invalid = {};
        int64_t i = 0;
        for (; i + LANES <= k; i += LANES) {
            Floats values = load(x + i);
            Floats magnitudes = at_least(values, -values);
            most = at_least(most, magnitudes);
            all += magnitudes;
            invalid += values * 0.f;
        }
        float largest_of_all = largest(most), total = sum(all), nothing = sum(invalid);
        for (; i < k; i++) {
            largest_of_all = std::max(largest_of_all, fabsf(widened(x[i])));
            total += fabsf(widened(x[i]));
            nothing += widened(x[i]) * 0.f;
        }
        // sums of products with integers up to `largest_weight`: each of k integers is up to 1/2 larger than its value; `total` is rounded
        float fits = largest_weight * total * 1.001f / ((float)INT32_MAX - 64.f * (float)k);
        return std::max(largest_of_all / (float)INT16_MAX, fits) + nothing;
    }
};

// What groups have beside their integers.
enum Kind { ZEROS, MINIMA, BLOCKS };

// Bytes of weights in groups: integers of 4 or 8 bits, or, unpacked for many rows, of 16.
template <int BITS, Kind KIND = ZEROS> struct Grouped {
    uint8_t byte;
};

// What weights in groups are unpacked to.
template <class W> struct UnpackedTo {
    using Type = W;
};
template <int BITS, Kind KIND> struct UnpackedTo<Grouped<BITS, KIND>> {
    using Type = Grouped<16, KIND == ZEROS ? ZEROS : MINIMA>;
};

// A group has as many depths as the caller says, a multiple of those of a line; x has a unit for each two of them, and one
// for their sum.
template <int BITS, Kind KIND> struct Format<Grouped<BITS, KIND>> {
    static constexpr int GROUP = 0, UNITS = 0;
    static constexpr bool FLOATS = BITS == 16 || KIND == MINIMA;  // scales and zeros, a line of each
    static constexpr int64_t LINE = 64, DEPTHS = 32 / BITS, BLOCK = 256;
    static constexpr int PAIRS = 16 / BITS;  // of depths in a line
    using Row = uint32_t;
    using Sum = Floats;
    using W = Grouped<BITS, KIND>;

    // Groups that are stored together.
    static constexpr int64_t together(int64_t group) { return KIND == BLOCKS ? BLOCK / group : 1; }
    // Bytes of their factors, their depths, their bytes, and their units of x.
    static constexpr int64_t header(int64_t group) {
        return KIND == BLOCKS ? (2 + together(group) / 2) * LINE : FLOATS ? 2 * LINE : LINE;
    }
    static constexpr int64_t depths(int64_t group) { return together(group) * group; }
    static constexpr int64_t bytes(int64_t group) { return header(group) + depths(group) / DEPTHS * LINE; }
    static constexpr int64_t units(int64_t group) { return together(group) * (group / 2 + 1); }

    // A pair of depths of a line's integers.
    static inline Shorts integers(const W* line, int pair) {
        UnsignedShorts lanes;
        memcpy(&lanes, line, sizeof lanes);
        lanes >>= BITS * pair;
        constexpr uint16_t MASK = (1 << BITS) - 1;
        return (Shorts)(pair + 1 < PAIRS ? lanes & MASK : lanes);
    }

    struct Factors {
        Floats scale, zero;
    };

    // Of `LANES` columns of the `g`th group: two floats, which with blocks are multiplied with a byte each; or the first 24
    // bits of one, and a zero in multiples of 1 or 1/8.
    static inline Factors factors(const W* header, int64_t column, [[maybe_unused]] int64_t g) {
        if constexpr (KIND == BLOCKS) {
            auto* bytes = (const int8_t*)(header + 2 * LINE + g * 2 * PANEL + column);
            Floats scale = floats(load_widened(bytes)), minimum = floats(load_widened(bytes + PANEL));
            return {load((const float*)header + column) * scale, load((const float*)(header + LINE) + column) * minimum};
        }
        if constexpr (FLOATS) return {load((const float*)header + column), load((const float*)(header + LINE) + column)};
        Words words;
        memcpy(&words, header + 4 * column, sizeof words);
        return {(Floats)(words & ~0xffu), floats((Ints)(words & 0xffu)) * (BITS == 4 ? .125f : 1.f)};
    }

    template <int ROWS, int COUNT, bool STREAMS>
    static inline void multiply(const Row* x, const W* const* panels, int64_t group, Floats (*sum)[COUNT * VECTORS]) {
        for (int64_t g = 0; g < together(group); g++, x += (group / 2 + 1) * ROWS) {
            int64_t first = header(group) + g * group / DEPTHS * LINE, size = bytes(group) / together(group);
            if constexpr (STREAMS)
                for (int64_t i = 0; i < size; i += 64) __builtin_prefetch(panels[0] + g * size + GROUPS_AHEAD + i);
            multiply_group<ROWS, COUNT>(x, panels, group, first, g, sum);
        }
    }

    // Add the products of integers within a group, which begins at byte `first` of each panel.
    template <int ROWS, int COUNT>
    static inline void multiply_pairs(
        const Row* x, const W* const* panels, int64_t group, int64_t first, Ints (*products)[COUNT * VECTORS]) {
        for (int64_t line = 0; line < group / DEPTHS; line++) {
#pragma GCC unroll 4
            for (int pair = 0; pair < PAIRS; pair++) {
                asm volatile("" ::: "memory");  // load again: registers are scarcer than loads
                Shorts w[COUNT * VECTORS];
#pragma GCC unroll 16
                for (int i = 0; i < COUNT * VECTORS; i++)
                    w[i] = integers(panels[i / VECTORS] + first + line * LINE + i % VECTORS * 4 * LANES, pair);
#pragma GCC unroll 16
                for (int r = 0; r < ROWS; r++) {
                    Shorts two = (Shorts)(x[(line * PAIRS + pair) * ROWS + r] + Words{});
#pragma GCC unroll 16
                    for (int i = 0; i < COUNT * VECTORS; i++) products[r][i] = add_products(products[r][i], two, w[i]);
                }
            }
        }
    }

    template <int ROWS, int COUNT>
    static inline void multiply_group(
        const Row* x, const W* const* panels, int64_t group, int64_t first, int64_t g, Floats (*sum)[COUNT * VECTORS]) {
        Ints products[ROWS][COUNT * VECTORS] = {};
        multiply_pairs<ROWS, COUNT>(x, panels, group, first, products);
        const Row* totals = x + group / 2 * ROWS;
#pragma GCC unroll 16
        for (int i = 0; i < COUNT * VECTORS; i++) {
            Factors column = factors(panels[i / VECTORS], i % VECTORS * LANES, g);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) {
                if constexpr (KIND != ZEROS) {
                    // one product in each: no choice of which one is fused with the sum
                    sum[r][i] -= column.zero * bits_of<float>(totals[r]);
                    sum[r][i] += column.scale * floats(products[r][i]);
                } else {
                    Floats shifted = floats(products[r][i]) - column.zero * bits_of<float>(totals[r]);
                    sum[r][i] += column.scale * shifted;
                }
            }
        }
    }

    // Round groups of a row of `k`, those that are stored together from `start` to `stop`, and write their units `stride`
    // apart.
    template <class T>
    static void
    pack(const T* x, int64_t start, int64_t stop, int64_t k, int64_t group, float scale, Row* to, int64_t stride) {
        int64_t units = group / 2 + 1;
        for (int64_t g = start * together(group); g < stop * together(group); g++) {
            Row* first = to + g * units * stride;
            Format<int8_t>::pack(x, g * group / 2, (g + 1) * group / 2, k, scale, first - g * group / 2 * stride, stride);
            int32_t total = 0;
            for (int64_t pair = 0; pair < group / 2; pair++) {
                Row two = first[pair * stride];
                total += (int16_t)(two & 0xffffu) + (int16_t)(two >> 16);
            }
            first[group / 2 * stride] = bits_of<Row>((float)total);
        }
    }

    template <class T> static float step(const T* x, int64_t k) { return Format<int8_t>::step(x, k, 0.f); }

    // Widen groups of a panel, for many rows, which otherwise would each do so.
    static void unpack(const W* from, int64_t count, int64_t group, typename UnpackedTo<W>::Type* to) {
        using Wide = Format<typename UnpackedTo<W>::Type>;
        for (int64_t all = 0; all < count * together(group); all++, to += Wide::bytes(group)) {
            int64_t g = all % together(group);
            if (all && !g) from += bytes(group);
            for (int64_t i = 0; i < LINE; i += 4 * LANES) {
                Factors columns = factors(from, i / 4, g);
                store((float*)(to + i), columns.scale);
                store((float*)(to + LINE + i), columns.zero);
            }
            auto* line = to + Wide::header(group);
            const W* packed = from + header(group) + g * group / DEPTHS * LINE;
            for (const W* end = packed + group / DEPTHS * LINE; packed < end; packed += LINE)
                for (int pair = 0; pair < PAIRS; pair++, line += LINE)
                    for (int64_t i = 0; i < LINE; i += 4 * LANES) {
                        Shorts wide = integers(packed + i, pair);
                        memcpy(line + i, &wide, sizeof wide);
                    }
        }
    }
};

// Whether products widen W to float32, with x packed as float32 is.
template <class W> constexpr bool WIDENS = Format<W>::UNITS == 2;
// Whether weights are in groups, whose size is known when they are multiplied.
template <class W> constexpr bool GROUPED = !Format<W>::GROUP;
// Whether rows become integers.
template <class W> constexpr bool ROUNDS = GROUPED<W> || std::is_same_v<typename Format<W>::Sum, Ints>;

}  // namespace linear

struct PackArgs {
    const void* weight;  // [n, k], rows `stride` elements apart
    int64_t stride;
    void* packed;  // [panels, groups, 16, group]
    int64_t n, k;
    float* scale;  // [n], for the factors of rows that are rounded
};

struct PackGroupsArgs {
    const uint8_t* integers;  // [n, k]
    const uint32_t* factors;  // [n, groups], [n, groups, 2] with minima, [n, blocks, 2 + groups of a block / 2] with blocks
    void* packed;             // [panels, groups or blocks, lines of factors and of integers]
    int64_t n, k, group;
};

namespace packing {

// Some depths of all columns at once, so that what is written stays in the first cache.
constexpr int64_t GROUPS_AT_ONCE = 64;

// Pack groups `start` to `stop` of a panel; the last one may have fewer depths, and the panel fewer columns.
template <class W> static void panel_part(const PackArgs& a, int64_t panel, int64_t start, int64_t stop, W* to) {
    constexpr int GROUP = linear::Format<W>::GROUP;
    int64_t whole = std::min(stop, a.k / GROUP);
    for (int64_t column = 0; column < PANEL; column++) {
        int64_t row = panel * PANEL + column;
        const W* from = (const W*)a.weight + row * a.stride;
        int64_t group = start;
        if (row < a.n)
            for (; group < whole; group++)
                memcpy(to + (group * PANEL + column) * GROUP, from + group * GROUP, GROUP * sizeof(W));
        for (; group < stop; group++)
            for (int64_t k = group * GROUP; k < (group + 1) * GROUP; k++)
                to[(group * PANEL + column) * GROUP + k % GROUP] = row < a.n && k < a.k ? from[k] : W{};
    }
}

template <class W> static void run(const void* args, Team& team) {
    auto& a = *(const PackArgs*)args;
    constexpr int GROUP = linear::Format<W>::GROUP;
    int64_t groups = (a.k + GROUP - 1) / GROUP, panels = (a.n + PANEL - 1) / PANEL;
    for (int64_t panel = team.first(panels); panel < team.last(panels); panel++)
        for (int64_t start = 0; start < groups; start += GROUPS_AT_ONCE)
            panel_part(
                a, panel, start, std::min(groups, start + GROUPS_AT_ONCE),
                (W*)a.packed + panel * groups * PANEL * GROUP);
}

// The largest absolute value of a row; NaN if one is. As integers, absolute values of floats are in order, NaN behind all.
template <class T> static float largest(const T* x, int64_t count) {
    uint32_t most = 0;
    for (int64_t k = 0; k < count; k++) most = std::max(most, bits_of<uint32_t>(widened(x[k])) & 0x7fffffffu);
    return bits_of<float>(most);
}

// Pack rows that are rounded to 8 bits, each by a factor of its own, as `int8_linear.round_rows` rounds them.
template <class T> static void run_rounded(const void* args, Team& team) {
    auto& a = *(const PackArgs*)args;
    constexpr int GROUP = linear::Format<int8_t>::GROUP;
    constexpr float TO_WHOLE = 12582912;  // from the sum of it and a small number, whole ones are left, halves to even
    int64_t groups = (a.k + GROUP - 1) / GROUP, panels = (a.n + PANEL - 1) / PANEL;
    int8_t rounded[PANEL][GROUPS_AT_ONCE * GROUP];
    for (int64_t panel = team.first(panels); panel < team.last(panels); panel++) {
        int64_t first = panel * PANEL, rows = std::min(PANEL, a.n - first);
        for (int64_t row = first; row < first + rows; row++)
            a.scale[row] = largest((const T*)a.weight + row * a.stride, a.k) / 127;
        for (int64_t start = 0; start < groups; start += GROUPS_AT_ONCE) {
            int64_t stop = std::min(groups, start + GROUPS_AT_ONCE), depths = std::min(a.k, stop * GROUP) - start * GROUP;
            for (int64_t column = 0; column < rows; column++) {
                const T* from = (const T*)a.weight + (first + column) * a.stride + start * GROUP;
                float factor = a.scale[first + column] > 0 ? a.scale[first + column] : 1;
                for (int64_t k = 0; k < depths; k++)
                    rounded[column][k] = (int8_t)(int32_t)(widened(from[k]) / factor + TO_WHOLE - TO_WHOLE);
            }
            PackArgs part{rounded, GROUPS_AT_ONCE * GROUP, nullptr, rows, depths, nullptr};
            panel_part(part, 0, 0, stop - start, (int8_t*)a.packed + (panel * groups + start) * PANEL * GROUP);
        }
    }
}

// Packs integers that have a byte each.
template <int BITS, linear::Kind KIND = linear::ZEROS> static void run_grouped(const void* args, Team& team) {
    using Packed = linear::Format<linear::Grouped<BITS, KIND>>;
    auto& a = *(const PackGroupsArgs*)args;
    int64_t depths = Packed::depths(a.group), factors = Packed::header(a.group) / Packed::LINE;
    int64_t groups = (a.k + depths - 1) / depths, panels = (a.n + PANEL - 1) / PANEL, size = Packed::bytes(a.group);
    for (int64_t piece = team.first(panels * groups); piece < team.last(panels * groups); piece++) {
        uint8_t* to = (uint8_t*)a.packed + piece * size;
        memset(to, 0, size);
        int64_t panel = piece / groups, g = piece % groups, columns = std::min(PANEL, a.n - panel * PANEL);
        for (int64_t column = 0; column < columns; column++) {
            int64_t row = panel * PANEL + column;
            const uint32_t* given = a.factors + (row * groups + g) * factors;
            for (int64_t i = 0; i < factors; i++)
                for (int64_t byte = 0; byte < 4; byte++) {
                    bool apart = KIND == linear::BLOCKS && i >= 2;  // bytes, not floats
                    int64_t place = apart ? byte * PANEL + column : 4 * column + byte;
                    to[i * Packed::LINE + place] = (uint8_t)(given[i] >> 8 * byte);
                }
            const uint8_t* from = a.integers + row * a.k + g * depths;
            uint8_t* lines = to + Packed::header(a.group);
            for (int64_t k = 0; k < std::min(depths, a.k - g * depths); k++) {
                int64_t line = k / Packed::DEPTHS, pair = k % Packed::DEPTHS / 2, bit = BITS * pair;
                lines[line * Packed::LINE + 4 * column + 2 * (k % 2) + bit / 8] |= (uint8_t)(from[k] << bit % 8);
            }
        }
    }
}

}  // namespace packing
