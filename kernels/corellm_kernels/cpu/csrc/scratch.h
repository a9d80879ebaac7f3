// Memory of one thread that outlives a kernel: touched once, so that no kernel waits for page faults.
#pragma once

#include <cstdint>
#include <cstdlib>

extern "C" {
// glibc's, of what C++ calls for `thread_local` objects: the library needs no other.
int __cxa_thread_atexit_impl(void (*function)(void*), void* object, void* library);
extern void* __dso_handle __attribute__((visibility("hidden")));
}

struct Scratch {
    float* memory;
    int64_t size;

    static void release(void* scratch) { free(((Scratch*)scratch)->memory); }
};

// `count` floats, aligned to cache lines; `PURPOSE` tells apart what is used at the same time. Freed with the thread.
template <int PURPOSE> static float* scratch(int64_t count) {
    static thread_local Scratch own = {nullptr, 0};
    if (own.size < count) {
        if (!own.memory) __cxa_thread_atexit_impl(Scratch::release, &own, &__dso_handle);
        free(own.memory);
        own.size = (count + 1023) / 1024 * 1024;
        own.memory = (float*)aligned_alloc(64, 4 * own.size);
        if (!own.memory) abort();
    }
    return own.memory;
}
