// RMSNorm and LayerNorm of rows, optionally of the sum with a residual, which is kept.
//
// Arithmetic in float32 with one rounding. RMSNorm: Zhang and Sennrich 2019, arXiv 1910.07467. LayerNorm: Ba et al. 2016,
// arXiv 1607.06450.
#pragma once

#include "scratch.h"
#include "team.h"
#include "vectors.h"

struct NormArgs {
    const void* x;  // [rows, heads, width]; a row's heads lie side by side
    int64_t x_stride;
    void* residual;  // [rows, width] or null: becomes x + residual, of which the norm is taken
    int64_t residual_stride;
    const void* weight;
    const void* bias;  // or null
    void* out;
    int64_t out_stride;
    int64_t rows, heads, width;
    float eps;
    int32_t centered;  // LayerNorm
};

namespace norms {

// Sum of f(value) over a row, in a fixed order.
template <class F> static inline float sum_over(const float* row, int64_t width, F f) {
    Floats total = {};
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) total += f(load(row + i));
    float rest = 0;
    for (; i < width; i++) rest += f(splat(row[i]))[0];
    return sum(total) + rest;
}

template <class T, class P> static void run(const void* args, Team& team) {
    auto& a = *(const NormArgs*)args;
    int64_t count = a.rows * a.heads;
    float* row = scratch<0>(a.width);
    for (int64_t piece = team.first(count); piece < team.last(count); piece++) {
        int64_t r = piece / a.heads, offset = piece % a.heads * a.width;
        const T* x = (const T*)a.x + r * a.x_stride + offset;
        T* residual = a.residual ? (T*)a.residual + r * a.residual_stride + offset : nullptr;
        T* out = (T*)a.out + r * a.out_stride + offset;
        int64_t i = 0;
        for (; i + LANES <= a.width; i += LANES) {
            Floats value = load(x + i);
            if (residual) {
                value += load(residual + i);
                store(residual + i, value);
                value = load(residual + i);  // as the next layers read it: rounded
            }
            store(row + i, value);
        }
        for (; i < a.width; i++) {
            float value = widened(x[i]);
            if (residual) {
                narrow(residual + i, value + widened(residual[i]));
                value = widened(residual[i]);
            }
            row[i] = value;
        }
        float mean = a.centered ? sum_over(row, a.width, [](Floats v) { return v; }) / a.width : 0.f;
        float squares = sum_over(row, a.width, [mean](Floats v) { return (v - mean) * (v - mean); });
        float factor = 1.f / std::sqrt(squares / a.width + a.eps);
        const P *weight = (const P*)a.weight, *bias = (const P*)a.bias;
        for (i = 0; i + LANES <= a.width; i += LANES) {
            Floats y = (load(row + i) - mean) * factor * load(weight + i);
            store(out + i, bias ? y + load(bias + i) : y);
        }
        for (; i < a.width; i++) {
            float y = (row[i] - mean) * factor * widened(weight[i]);
            narrow(out + i, bias ? y + widened(bias[i]) : y);
        }
    }
}

}  // namespace norms
