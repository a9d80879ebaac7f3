// Rounding of weights to 4 bits in groups: of several ranges, each group takes the one with the least error.
//
// Every operation is one that torch has, in the same order, so that results are those of `corellm_quantization.rounding`
// bit for bit, with every instruction set: sums are of SUMS parts side by side, whatever the registers' width, and no
// product is fused with a sum.
#pragma once

#include <algorithm>

#include "scratch.h"
#include "team.h"
#include "vectors.h"

struct RoundGroupsArgs {
    const void* weight;  // [n, k], finite
    int64_t stride;      // from row to row
    uint8_t* integers;   // [n, k]
    float* scales;       // [n, groups]
    float* zeros;        // [n, groups]
    int64_t n, k, group;  // inputs in a group
    const float* shares;  // of a group's range, which are tried
    int64_t num_shares;
    float steps;         // of zeros in an integer
    float least;         // scale
    int32_t dropped;     // last bits of a scale, which are rounded to 0
    int32_t symmetric;   // whether all zeros are the middle of the integers
};

namespace rounding {

constexpr int SUMS = 16;
constexpr float LARGEST = 15, MIDDLE = 8;

// The nearest whole number, ties to even, of one between -2^22 and 2^22; NaN stays.
static inline Floats nearest(Floats x) { return apart(x + 12582912.f) - 12582912.f; }

// NaN stays.
static inline Floats clamped(Floats x, float low, float high) {
    x = x < splat(low) ? splat(low) : x;
    return x > splat(high) ? splat(high) : x;
}

static inline Floats a_number(Floats x) { return x == x ? x : Floats{}; }

// Sums of f over `width` values, SUMS side by side, then by halves.
template <class F> static inline float sum_of(int64_t width, F f) {
    constexpr int COUNT = SUMS / LANES;
    Floats parts[COUNT] = {};
    for (int64_t i = 0; i < width; i += SUMS)
        for (int part = 0; part < COUNT; part++) parts[part] = parts[part] + f(i + part * LANES);
    for (int half = COUNT / 2; half; half /= 2)
        for (int part = 0; part < half; part++) parts[part] = parts[part] + parts[part + half];
    return sum(parts[0]);
}

// Rounds one group; WHOLE if it has values up to `width`.
template <bool WHOLE> struct Group {
    const RoundGroupsArgs& a;
    const float* values;  // followed by zeros up to `width`, a multiple of SUMS
    const float* inside;  // 1 for each value, then 0
    float* integers;
    int64_t width;
    float scale = 0, zero = 0, error = 0;

    Floats of_values(Floats x, int64_t i) const {
        if constexpr (WHOLE) return x;
        return load(inside + i) != Floats{} ? x : Floats{};
    }

    float kept(float scale) const {
        scale = scale < a.least ? a.least : scale;
        uint32_t bits = bits_of<uint32_t>(scale), half = (1u << (a.dropped - 1)) - 1, mask = ~0u << a.dropped;
        bool finite = (bits & 0x7f800000u) != 0x7f800000u;
        return bits_of<float>((finite ? bits + half + ((bits >> a.dropped) & 1) : bits) & mask);
    }

    // Take a scale and a zero if they are better; `first` is in any case.
    void attempt(float scale, float zero, bool first) {
        Floats divisor = splat(scale), middle = splat(zero);
        auto integer = [&](int64_t i) {
            return clamped(nearest(clamped(load(values + i) / divisor + middle, -1, LARGEST + 1)), 0, LARGEST);
        };
        float* made = scratch<1>(width);
        float error = sum_of(width, [&](int64_t i) {
            Floats whole = integer(i);
            store(made + i, whole);
            Floats wrong = apart((whole - middle) * divisor) - load(values + i);
            return of_values(apart(wrong * wrong), i);
        });
        if (!first && !(error < this->error)) return;
        this->scale = scale, this->zero = zero, this->error = error;
        memcpy(integers, made, 4 * width);
    }

    void attempt_range(float low, float high, bool first) {
        float scale = a.symmetric ? std::max(-low / MIDDLE, high / (MIDDLE - 1)) : (high - low) / LARGEST;
        scale = kept(scale != 0 ? scale : 1);
        float zero = MIDDLE;
        if (!a.symmetric) {
            float most = LARGEST * a.steps;
            zero = clamped(nearest(clamped(apart(splat(-low / scale * a.steps)), -1, most + 1)), 0, most)[0] / a.steps;
        }
        attempt(scale, zero, first);
    }

    void round(float* to_scale, float* to_zero) {
        Floats least = {}, most = {};
        for (int64_t i = 0; i < width; i += LANES) {
            Floats some = load(values + i);
            least = some < least ? some : least, most = some > most ? some : most;
        }
        float low = -largest(-least), high = largest(most);
        for (int64_t i = 0; i < a.num_shares; i++)
            attempt_range(apart(low * a.shares[i]), apart(high * a.shares[i]), i == 0);
        Floats middle = splat(zero);
        auto shifted = [&](int64_t i) { return load(integers + i) - middle; };
        float product = sum_of(width, [&](int64_t i) { return apart(load(values + i) * shifted(i)); });
        float squares = sum_of(width, [&](int64_t i) { return of_values(apart(shifted(i) * shifted(i)), i); });
        attempt(kept(product / std::max(squares, 1e-6f)), zero, false);
        for (int64_t i = 0; i < width; i += LANES) store(integers + i, a_number(load(integers + i)));
        *to_scale = scale, *to_zero = a_number(splat(zero))[0];
    }
};

template <class T> static void run(const void* args, Team& team) {
    auto& a = *(const RoundGroupsArgs*)args;
    int64_t groups = (a.k + a.group - 1) / a.group, width = (a.group + SUMS - 1) / SUMS * SUMS;
    float *values = scratch<0>(3 * width), *inside = values + width, *integers = inside + width;
    for (int64_t row = team.first(a.n); row < team.last(a.n); row++) {
        const T* from = (const T*)a.weight + row * a.stride;
        for (int64_t g = 0; g < groups; g++) {
            int64_t start = g * a.group, count = std::min(a.group, a.k - start);
            for (int64_t i = 0; i < width; i++)
                values[i] = i < count ? widened(from[start + i]) : 0.f, inside[i] = i < count;
            float *scale = a.scales + row * groups + g, *zero = a.zeros + row * groups + g;
            if (count == width)
                Group<true>{a, values, inside, integers, width}.round(scale, zero);
            else
                Group<false>{a, values, inside, integers, width}.round(scale, zero);
            uint8_t* to = a.integers + row * a.k + start;
            for (int64_t i = 0; i < count; i++) to[i] = (uint8_t)(int32_t)integers[i];
        }
    }
}

}  // namespace rounding
