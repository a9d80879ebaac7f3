// Functions of each element: of an MLP's inner values, and of a gate that multiplies them.
#pragma once

#include "team.h"
#include "vectors.h"

struct ActivationArgs {
    const void* x;  // [rows, width], or with `gated` [rows, 2 * width]: the gate, then what it multiplies
    int64_t x_stride;
    void* out;  // [rows, width]
    int64_t out_stride;
    int64_t rows, width;
    int32_t gated;
};

namespace activations {

struct Silu {
    static inline Floats of(Floats x) { return x * sigmoid(x); }
};
struct Gelu {
    static inline Floats of(Floats x) { return .5f * x * (1.f + error_function(x * 0.70710678f)); }
};
struct GeluTanh {
    static inline Floats of(Floats x) {
        return .5f * x * (1.f + hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x)));
    }
};
struct QuickGelu {
    static inline Floats of(Floats x) { return x * sigmoid(1.702f * x); }
};
struct Relu {
    static inline Floats of(Floats x) { return x < Floats{} ? Floats{} : x; }
};

template <class T, class F> static void run(const void* args, Team& team) {
    auto& a = *(const ActivationArgs*)args;
    constexpr int64_t PART = 1024;  // values of a piece of work
    int64_t parts = (a.width + PART - 1) / PART, count = a.rows * parts;
    for (int64_t piece = team.first(count); piece < team.last(count); piece++) {
        int64_t row = piece / parts, i = piece % parts * PART, stop = i + PART < a.width ? i + PART : a.width;
        const T* x = (const T*)a.x + row * a.x_stride;
        const T* times = a.gated ? x + a.width : nullptr;
        T* out = (T*)a.out + row * a.out_stride;
        for (; i + LANES <= stop; i += LANES) {
            Floats y = F::of(load(x + i));
            store(out + i, times ? y * load(times + i) : y);
        }
        for (; i < stop; i++) {
            float y = F::of(splat(widened(x[i])))[0];
            narrow(out + i, times ? y * widened(times[i]) : y);
        }
    }
}

}  // namespace activations
