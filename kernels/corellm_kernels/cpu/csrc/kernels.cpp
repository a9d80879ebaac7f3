// The library: kernels by name, and `corellm_run`, which runs a list of them on OpenMP's threads.
//
// It is compiled once for each instruction set and links to nothing but the C library. The functions of the OpenMP runtime
// that torch has loaded are given to it: a second runtime's threads would spin against torch's.
#include "activations.h"
#include "attention.h"
#include "experts.h"
#include "linear.h"
#include "low_rank.h"
#include "norms.h"
#include "rounding.h"
#include "sampling.h"

typedef void (*Kernel)(const void* args, Team& team);

struct Call {
    Kernel kernel;
    const void* args;
};

namespace {

struct Named {
    const char* name;
    Kernel kernel;
    int64_t size;  // of its arguments
};

template <class T, class W> constexpr Kernel narrow = linear::run<T, linear::Narrow<W>>;

const Named NAMED[] = {
    {"linear_float32", linear::run<float, float>, sizeof(LinearArgs)},
    {"linear_bfloat16", linear::run<bfloat16, bfloat16>, sizeof(LinearArgs)},
    {"linear_float32_int8", linear::run<float, int8_t>, sizeof(LinearArgs)},
    {"linear_bfloat16_int8", linear::run<bfloat16, int8_t>, sizeof(LinearArgs)},
    {"linear_float32_int4_groups", linear::run<float, linear::Grouped<4>>, sizeof(LinearArgs)},
    {"linear_bfloat16_int4_groups", linear::run<bfloat16, linear::Grouped<4>>, sizeof(LinearArgs)},
    {"linear_float32_int8_groups", linear::run<float, linear::Grouped<8>>, sizeof(LinearArgs)},
    {"linear_bfloat16_int8_groups", linear::run<bfloat16, linear::Grouped<8>>, sizeof(LinearArgs)},
    {"linear_float32_int4_minima", linear::run<float, linear::Grouped<4, linear::MINIMA>>, sizeof(LinearArgs)},
    {"linear_float32_int4_blocks", linear::run<float, linear::Grouped<4, linear::BLOCKS>>, sizeof(LinearArgs)},
    {"linear_bfloat16_int4_minima", linear::run<bfloat16, linear::Grouped<4, linear::MINIMA>>, sizeof(LinearArgs)},
    {"linear_bfloat16_int4_blocks", linear::run<bfloat16, linear::Grouped<4, linear::BLOCKS>>, sizeof(LinearArgs)},
    {"linear_float32_int8_minima", linear::run<float, linear::Grouped<8, linear::MINIMA>>, sizeof(LinearArgs)},
    {"linear_float32_int8_blocks", linear::run<float, linear::Grouped<8, linear::BLOCKS>>, sizeof(LinearArgs)},
    {"linear_bfloat16_int8_minima", linear::run<bfloat16, linear::Grouped<8, linear::MINIMA>>, sizeof(LinearArgs)},
    {"linear_bfloat16_int8_blocks", linear::run<bfloat16, linear::Grouped<8, linear::BLOCKS>>, sizeof(LinearArgs)},
    {"linear_float32_int8_int8_rows", narrow<float, int8_t>, sizeof(LinearArgs)},
    {"linear_float32_int4_groups_int8_rows", narrow<float, linear::Grouped<4>>, sizeof(LinearArgs)},
    {"linear_float32_int4_minima_int8_rows", narrow<float, linear::Grouped<4, linear::MINIMA>>, sizeof(LinearArgs)},
    {"linear_float32_int4_blocks_int8_rows", narrow<float, linear::Grouped<4, linear::BLOCKS>>, sizeof(LinearArgs)},
    {"linear_float32_int8_groups_int8_rows", narrow<float, linear::Grouped<8>>, sizeof(LinearArgs)},
    {"linear_float32_int8_minima_int8_rows", narrow<float, linear::Grouped<8, linear::MINIMA>>, sizeof(LinearArgs)},
    {"linear_float32_int8_blocks_int8_rows", narrow<float, linear::Grouped<8, linear::BLOCKS>>, sizeof(LinearArgs)},
    {"linear_bfloat16_int8_int8_rows", narrow<bfloat16, int8_t>, sizeof(LinearArgs)},
    {"linear_bfloat16_int4_groups_int8_rows", narrow<bfloat16, linear::Grouped<4>>, sizeof(LinearArgs)},
    {"linear_bfloat16_int4_minima_int8_rows", narrow<bfloat16, linear::Grouped<4, linear::MINIMA>>, sizeof(LinearArgs)},
    {"linear_bfloat16_int4_blocks_int8_rows", narrow<bfloat16, linear::Grouped<4, linear::BLOCKS>>, sizeof(LinearArgs)},
    {"linear_bfloat16_int8_groups_int8_rows", narrow<bfloat16, linear::Grouped<8>>, sizeof(LinearArgs)},
    {"linear_bfloat16_int8_minima_int8_rows", narrow<bfloat16, linear::Grouped<8, linear::MINIMA>>, sizeof(LinearArgs)},
    {"linear_bfloat16_int8_blocks_int8_rows", narrow<bfloat16, linear::Grouped<8, linear::BLOCKS>>, sizeof(LinearArgs)},
    {"experts_float32", experts::run, sizeof(ExpertsArgs)},
    {"experts_bfloat16", experts::run, sizeof(ExpertsArgs)},
    {"experts_sum_float32", experts::add_up<float>, sizeof(ExpertsSumArgs)},
    {"experts_sum_bfloat16", experts::add_up<bfloat16>, sizeof(ExpertsSumArgs)},
    {"low_rank_float32", low_rank::run<float>, sizeof(LowRankArgs)},
    {"low_rank_bfloat16", low_rank::run<bfloat16>, sizeof(LowRankArgs)},
    {"pack_float32", packing::run<float>, sizeof(PackArgs)},
    {"pack_bfloat16", packing::run<bfloat16>, sizeof(PackArgs)},
    {"pack_float32_int8", packing::run_rounded<float>, sizeof(PackArgs)},
    {"pack_bfloat16_int8", packing::run_rounded<bfloat16>, sizeof(PackArgs)},
    {"pack_int4_groups", packing::run_grouped<4>, sizeof(PackGroupsArgs)},
    {"pack_int8_groups", packing::run_grouped<8>, sizeof(PackGroupsArgs)},
    {"pack_int4_minima", packing::run_grouped<4, linear::MINIMA>, sizeof(PackGroupsArgs)},
    {"pack_int4_blocks", packing::run_grouped<4, linear::BLOCKS>, sizeof(PackGroupsArgs)},
    {"pack_int8_minima", packing::run_grouped<8, linear::MINIMA>, sizeof(PackGroupsArgs)},
    {"pack_int8_blocks", packing::run_grouped<8, linear::BLOCKS>, sizeof(PackGroupsArgs)},
    {"round_groups_float32", rounding::run<float>, sizeof(RoundGroupsArgs)},
    {"round_groups_bfloat16", rounding::run<bfloat16>, sizeof(RoundGroupsArgs)},
    {"norm_float32", norms::run<float, float>, sizeof(NormArgs)},
    {"norm_bfloat16", norms::run<bfloat16, bfloat16>, sizeof(NormArgs)},
    {"silu_float32", activations::run<float, activations::Silu>, sizeof(ActivationArgs)},
    {"silu_bfloat16", activations::run<bfloat16, activations::Silu>, sizeof(ActivationArgs)},
    {"gelu_float32", activations::run<float, activations::Gelu>, sizeof(ActivationArgs)},
    {"gelu_bfloat16", activations::run<bfloat16, activations::Gelu>, sizeof(ActivationArgs)},
    {"gelu_tanh_float32", activations::run<float, activations::GeluTanh>, sizeof(ActivationArgs)},
    {"gelu_tanh_bfloat16", activations::run<bfloat16, activations::GeluTanh>, sizeof(ActivationArgs)},
    {"quick_gelu_float32", activations::run<float, activations::QuickGelu>, sizeof(ActivationArgs)},
    {"quick_gelu_bfloat16", activations::run<bfloat16, activations::QuickGelu>, sizeof(ActivationArgs)},
    {"relu_float32", activations::run<float, activations::Relu>, sizeof(ActivationArgs)},
    {"relu_bfloat16", activations::run<bfloat16, activations::Relu>, sizeof(ActivationArgs)},
    {"attention_float32", attention::run<float, float>, sizeof(AttentionArgs)},
    {"attention_bfloat16", attention::run<bfloat16, bfloat16>, sizeof(AttentionArgs)},
    {"attention_float32_int8", attention::run<float, int8_t>, sizeof(AttentionArgs)},
    {"attention_bfloat16_int8", attention::run<bfloat16, int8_t>, sizeof(AttentionArgs)},
    {"sample_float32", sampling::run<float>, sizeof(SampleArgs)},
    {"sample_bfloat16", sampling::run<bfloat16>, sizeof(SampleArgs)},
};

struct Runtime {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;  // GOMP_parallel
    int (*thread)() = nullptr;                                               // omp_get_thread_num
    int (*threads)() = nullptr;                                              // omp_get_num_threads
} runtime;

struct Run {
    const Call* calls;
    int64_t count;
    Shared shared;
};

void run_calls(Run& run, Team team) {
    for (int64_t i = 0; i < run.count; i++) {
        run.calls[i].kernel(run.calls[i].args, team);
        team.barrier();
    }
}

void run_on_thread(void* given) {
    Run& run = *(Run*)given;
    run_calls(run, {&run.shared, runtime.thread(), runtime.threads()});
}

}  // namespace

extern "C" {

// Whether this processor has the instructions that the library was compiled for.
__attribute__((visibility("default"))) int corellm_supported() {
#if defined(__AVX512BF16__)
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#elif defined(__AVX512F__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#elif defined(__AVX2__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
    return 1;
#endif
}

// Use an OpenMP runtime. Without one, kernels run on the calling thread.
__attribute__((visibility("default"))) void corellm_use(void* parallel, void* thread, void* threads) {
    runtime = {
        (decltype(runtime.parallel))parallel, (decltype(runtime.thread))thread, (decltype(runtime.threads))threads};
}

// The kernel of a name whose arguments have that size; null if there is none.
__attribute__((visibility("default"))) void* corellm_kernel(const char* name, int64_t size) {
    for (const Named& named : NAMED)
        if (!strcmp(named.name, name) && named.size == size) return (void*)named.kernel;
    return nullptr;
}

// Run calls one after another, each on all threads.
__attribute__((visibility("default"))) void corellm_run(const Call* calls, int64_t count, int64_t threads) {
    Run run{calls, count, {}};
    if (threads > 1 && runtime.parallel)
        runtime.parallel(run_on_thread, &run, (unsigned)threads, 0);
    else
        run_calls(run, {&run.shared, 0, 1});
}

}
