// What a lane multiplies at once: a value in float32, or, where the processor has the instruction (AVX512-BF16), two
// neighbours in bfloat16. Weights of values are then rounded to bfloat16, as in torch's attention.
#pragma once

#include "vectors.h"

namespace attention {

template <class C> struct Units {
    static constexpr int VALUES = 1;

    // 2 * LANES values of a cached row.
    struct Row {
        Floats parts[2];
    };
    static Row load_row(const C* from) {
        TwoFloats two = load_two(from);
        return {two.first, two.second};
    }

    // `sum`, and the products of two vectors of units.
    static Floats add(Floats sum, Floats a, Floats b) { return sum + a * b; }

    // 2 * LANES columns of VALUES cached rows, in the order of `load_two`.
    static TwoFloats load_columns(const C* const* rows, int64_t offset) { return load_two(rows[0] + offset); }

    // Weights `i` to `i + LANES` of a row of units.
    static void store_weights(float* to, int64_t i, Floats weights) { store(to + i, weights); }
};

#if defined(__AVX512BF16__)
template <> struct Units<bfloat16> {
    static constexpr int VALUES = 2;

    struct Row {
        Floats parts[1];
    };
    static Row load_row(const bfloat16* from) { return {load((const float*)from)}; }

    static Floats add(Floats sum, Floats a, Floats b) {
        return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
    }

    static TwoFloats load_columns(const bfloat16* const* rows, int64_t offset) {
        Words first = (Words)load((const float*)(rows[0] + offset)), second = (Words)load((const float*)(rows[1] + offset));
        return {(Floats)((first & 0xffffu) | second << 16), (Floats)(first >> 16 | (second & 0xffff0000u))};
    }

    static void store_weights(float* to, int64_t i, Floats weights) { store((bfloat16*)to + i, weights); }
};
#endif

}  // namespace attention
