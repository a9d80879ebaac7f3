// Memory of one thread that outlives a kernel: touched once, so that no kernel waits for page faults.
#pragma once

#include <cstdint>
#include <cstdlib>

// `count` floats, aligned to cache lines; `PURPOSE` tells apart what is used at the same time.
template <int PURPOSE> static float* scratch(int64_t count) {
    static thread_local float* memory = nullptr;
    static thread_local int64_t size = 0;
    if (size < count) {
        free(memory);
        size = (count + 1023) / 1024 * 1024;
        memory = (float*)aligned_alloc(64, 4 * size);
        if (!memory) abort();
    }
    return memory;
}
