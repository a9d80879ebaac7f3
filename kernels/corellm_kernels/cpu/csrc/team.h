// The threads that run a list of kernels together: barriers, and work that is handed out in pieces.
#pragma once

#include <sched.h>

#include <cstdint>

struct alignas(64) Shared {
    alignas(64) uint32_t arrived = 0;
    alignas(64) uint32_t generation = 0;
    alignas(64) int64_t next = 0;
};

static inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// One thread's view of the team.
struct Team {
    Shared* shared;
    int thread, size;

    // Wait for all threads. What they wrote before is visible after; pieces are handed out from 0 again.
    void barrier() {
        if (size == 1) {
            shared->next = 0;
            return;
        }
        uint32_t before = __atomic_load_n(&shared->generation, __ATOMIC_ACQUIRE);
        if (__atomic_add_fetch(&shared->arrived, 1, __ATOMIC_ACQ_REL) == (uint32_t)size) {
            __atomic_store_n(&shared->next, 0, __ATOMIC_RELAXED);
            __atomic_store_n(&shared->arrived, 0, __ATOMIC_RELAXED);
            __atomic_store_n(&shared->generation, before + 1, __ATOMIC_RELEASE);
            return;
        }
        for (int spins = 0; __atomic_load_n(&shared->generation, __ATOMIC_ACQUIRE) == before; spins++)
            spins < 2000 ? relax() : (void)sched_yield();  // the thread that is waited for may need this processor
    }

    // Take a piece of work: returns its number, counted from 0 since the last barrier.
    int64_t take() { return __atomic_fetch_add(&shared->next, 1, __ATOMIC_RELAXED); }

    // This thread's part of `count` equal pieces.
    int64_t first(int64_t count) const { return count * thread / size; }
    int64_t last(int64_t count) const { return count * (thread + 1) / size; }
};
