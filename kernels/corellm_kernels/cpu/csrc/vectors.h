// Vectors of float as wide as the processor's registers, and what they are loaded from and stored to.
//
// GCC's vector types: one source for SSE, AVX2, AVX-512 and NEON. Everything is static: this header is compiled once for
// each instruction set, and the linker must not mix them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(4 * LANES)));  // two for each lane
typedef uint16_t UnsignedShorts __attribute__((vector_size(4 * LANES)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));
typedef int8_t BytePairs __attribute__((vector_size(2 * LANES)));

#if defined(__clang__)
#define ONE_COPY __attribute__((noinline))
#else
#define ONE_COPY __attribute__((noipa))
#endif

struct bfloat16 {
    uint16_t bits;
};

static_assert(sizeof(bfloat16) == 2, "arrays of it are arrays of uint16");

static inline Floats splat(float x) { return x - Floats{}; }

// The 32 bits at `from`, a float or two values of bfloat16, in each lane.
static inline Floats in_all_lanes(const float* from) {
    uint32_t bits;
    memcpy(&bits, from, sizeof bits);
    return (Floats)(bits - Words{});
}

template <class To, class From> static inline To bits_of(From value) {
    static_assert(sizeof(To) == sizeof(From), "bits are not converted");
    To to;
    memcpy(&to, &value, sizeof to);
    return to;
}

// What the compiler must not fuse with a sum.
template <class T> static inline T apart(T x) {
#if defined(__x86_64__) && defined(__AVX512F__)
    asm("" : "+v"(x));
#elif defined(__x86_64__)
    asm("" : "+x"(x));
#elif defined(__aarch64__)
    asm("" : "+w"(x));
#endif
    return x;
}

// --- loads and stores of LANES values, of any alignment ---------------------------------------------------------------

static inline Floats load(const float* from) {
    Floats values;
    memcpy(&values, from, sizeof values);
    return values;
}

// Loads that widen, one instruction each; GCC 12 compiles `__builtin_convertvector` of these types to up to thirty.
static inline Words load_widened(const uint16_t* from) {
#if defined(__AVX512F__)
    return (Words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u*)from));
#elif defined(__AVX2__)
    return (Words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i_u*)from));
#else
    Halves halves;
    memcpy(&halves, from, sizeof halves);
    return __builtin_convertvector(halves, Words);
#endif
}

static inline Ints load_widened(const int8_t* from) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i_u*)from));
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i_u*)from));
#else
    Bytes bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, Ints);
#endif
}

static inline Shorts load_pairs(const int8_t* from) {
#if defined(__AVX512BW__)
    return (Shorts)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i_u*)from));
#elif defined(__AVX2__)
    return (Shorts)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i_u*)from));
#else
    BytePairs bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, Shorts);
#endif
}

static inline Floats load(const bfloat16* from) { return (Floats)(load_widened(&from->bits) << 16); }
static inline Floats load(const int8_t* from) { return __builtin_convertvector(load_widened(from), Floats); }

// 2 * LANES values in the order that is cheapest to load them in: of bfloat16, those at even places and those at odd ones.
struct TwoFloats {
    Floats first, second;
};

static inline TwoFloats load_two(const float* from) { return {load(from), load(from + LANES)}; }
static inline TwoFloats load_two(const int8_t* from) { return {load(from), load(from + LANES)}; }
static inline TwoFloats load_two(const bfloat16* from) {
    Words pairs;
    memcpy(&pairs, from, sizeof pairs);
    return {(Floats)(pairs << 16), (Floats)(pairs & 0xffff0000u)};
}

// Put 2 * LANES values into the order of `load_two(const bfloat16*)`, and back.
static inline void unzip(float* values) {
    Floats a = load(values), b = load(values + LANES);
#if LANES == 16
    Floats even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    Floats odd = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif LANES == 8
    Floats even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
    Floats odd = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#else
    Floats even = __builtin_shufflevector(a, b, 0, 2, 4, 6), odd = __builtin_shufflevector(a, b, 1, 3, 5, 7);
#endif
    memcpy(values, &even, sizeof even);
    memcpy(values + LANES, &odd, sizeof odd);
}

// The first halves of two vectors, lane by lane, and their second halves.
static inline TwoFloats interleaved(Floats a, Floats b) {
#if LANES == 16
    return {__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
            __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)};
#elif LANES == 8
    return {__builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11),
            __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)};
#else
    return {__builtin_shufflevector(a, b, 0, 4, 1, 5), __builtin_shufflevector(a, b, 2, 6, 3, 7)};
#endif
}

static inline void zip(float* values) {
    TwoFloats two = interleaved(load(values), load(values + LANES));
    memcpy(values, &two.first, sizeof two.first);
    memcpy(values + LANES, &two.second, sizeof two.second);
}

// Transpose LANES vectors: the first half interleaved with the second, as often as LANES can be halved.
static inline void transpose(Floats* rows) {
#pragma GCC unroll 4
    for (int width = LANES; width > 1; width /= 2) {
        Floats from[LANES];
        memcpy(from, rows, sizeof from);
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            TwoFloats two = interleaved(from[i], from[i + LANES / 2]);
            rows[2 * i] = two.first, rows[2 * i + 1] = two.second;
        }
    }
}

static inline void store(float* to, Floats values) { memcpy(to, &values, sizeof values); }

#if defined(__AVX512BF16__)
static inline void store(bfloat16* to, Floats values) {
    __m256bh halves = _mm512_cvtneps_pbh((__m512)values);  // to nearest, ties to even; 0 for what is no normal number
    memcpy(to, &halves, sizeof halves);
}
#else
static inline void store(bfloat16* to, Floats values) {
    Words bits = (Words)values;
    Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
    Words quiet = (bits >> 16) | 0x40;
    Words bits16 = values == values ? rounded : quiet;
#if defined(__AVX512F__)
    __m256i halves = _mm512_cvtepi32_epi16((__m512i)bits16);
#elif defined(__AVX2__)
    __m256i packed = _mm256_packus_epi32((__m256i)bits16, (__m256i)bits16);  // within each half of the register
    __m128i halves = _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000));
#else
    Halves halves = __builtin_convertvector(bits16, Halves);
#endif
    memcpy(to, &halves, sizeof halves);
}
#endif

static inline Floats floats(Floats values) { return values; }
static inline Floats floats(Ints values) { return __builtin_convertvector(values, Floats); }

// --- integers ---------------------------------------------------------------------------------------------------------

// The nearest integers, of values below 2^22: the low bits of their sums with 1.5 * 2^23.
static inline Words nearest(Floats x) { return (Words)(x + 12582912.f) - 0x4b400000u; }

// Each lane of `sum` and the products of its two pairs of integers.
static inline Ints add_products(Ints sum, Shorts a, Shorts b) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
    return sum + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return sum + (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    Ints low_a = (Ints)((Words)(Ints)a << 16) >> 16, low_b = (Ints)((Words)(Ints)b << 16) >> 16;
    return sum + low_a * low_b + ((Ints)a >> 16) * ((Ints)b >> 16);
#endif
}

// Whether products of bytes are faster than those of 16 bits, with weights of so many bits: sums of two products of larger
// ones do not fit in 16 bits.
constexpr bool multiplies_bytes(int bits) {
#if defined(__AVX512VNNI__)
    return bits <= 8;
#elif defined(__AVX2__)
    return bits == 4;
#else
    return bits < 0;
#endif
}

#if defined(__AVX512VNNI__) || !defined(__AVX2__)
typedef Ints ByteSums;
#else
typedef Shorts ByteSums;
#endif
constexpr int64_t LINES_IN_SHORTS = 4;  // of weights of 4 bits: sums of 16 products with values up to 127

// Add the products of each lane's four bytes, unsigned ones of `a` with signed ones of `b`.
static inline void add_byte_products([[maybe_unused]] ByteSums& sum, [[maybe_unused]] Words a, [[maybe_unused]] Words b) {
#if defined(__AVX512VNNI__)
    sum = (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
    sum += (Shorts)_mm512_maddubs_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    sum += (Shorts)_mm256_maddubs_epi16((__m256i)a, (__m256i)b);
#endif
}

// Four depths of each column from two lines of pairs, made unsigned by 128; or two, and zeros.
template <bool WHOLE> static inline Words load_fours([[maybe_unused]] const int8_t* from) {
#if defined(__AVX512VNNI__)
    __m512i pairs = WHOLE ? _mm512_loadu_si512(from) : _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i_u*)from));
    Shorts x = (Shorts)pairs;
    return (Words)__builtin_shufflevector(
               x, x, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
               14, 30, 15, 31) ^
           0x80808080u;
#else
    return Words{};
#endif
}

static inline Ints lane_numbers() {
    Ints numbers;
    for (int i = 0; i < LANES; i++) numbers[i] = i;
    return numbers;
}

// --- single values ----------------------------------------------------------------------------------------------------

static inline float widened(float x) { return x; }
static inline float widened(bfloat16 x) { return bits_of<float>((uint32_t)x.bits << 16); }
static inline float widened(int8_t x) { return x; }

static inline void narrow(float* to, float x) { *to = x; }
static inline void narrow(bfloat16* to, float x) {
    uint32_t bits = bits_of<uint32_t>(x);
    to->bits = (uint16_t)(x == x ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : (bits >> 16) | 0x40);
}

// --- functions of each lane -------------------------------------------------------------------------------------------

// `a > b ? a : b`: b, where one is NaN. One instruction, which GCC 12 does not find by itself.
static inline Floats at_least(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}

static inline Floats at_most(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return a < b ? a : b;
#endif
}

// x as n ln 2 + r, with ln 2 in two parts (Cody and Waite 1980); e^r by its Taylor polynomial up to r^7 / 7!. To some 2 units
// in the last place.
struct Exponential {
    Words n;
    Floats power;  // e^r
};

__attribute__((always_inline)) static inline Exponential parts_of_exponential(Floats x) {
    Floats shifted = x * 1.44269504f + 12582912.f;  // 1.5 * 2^23: the sum's low bits are the nearest integer
    Floats n = shifted - 12582912.f;
    Floats r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Floats p = splat(1.f / 5040);
    p = p * r + 1.f / 720;
    p = p * r + 1.f / 120;
    p = p * r + 1.f / 24;
    p = p * r + 1.f / 6;
    p = p * r + .5f;
    p = p * r + 1.f;
    p = p * r + 1.f;
    return {(Words)shifted - 0x4b400000u, p};
}

// e^x; 0 below -87.3, where the result would be no normal number, infinite above 88.7. Keeps NaN.
static inline Floats exponential(Floats x) {
    Exponential parts = parts_of_exponential(at_most(at_least(x, splat(-87.3f)), splat(88.7f)));
    Floats power = (Floats)((Words)parts.power + (parts.n << 23));
    power = x < splat(-87.3f) ? Floats{} : power;
    power = x > splat(88.7f) ? splat(INFINITY) : power;
    return x == x ? power : x;
}

// e^x of no positive x, in fewer instructions; 0 below -87.7. Keeps NaN.
__attribute__((always_inline)) static inline Floats weight_of(Floats x) {
    Exponential parts = parts_of_exponential(at_least(splat(-88.f), x));  // n = -127 makes the factor 0
    return parts.power * (Floats)((parts.n + 127) << 23);
}

static inline Floats sigmoid(Floats x) { return 1.f / (1.f + exponential(-x)); }
static inline Floats hyperbolic_tangent(Floats x) { return 1.f - 2.f / (exponential(2.f * x) + 1.f); }

// The error function to 1.5e-7: Abramowitz and Stegun 1964, 7.1.26.
static inline Floats error_function(Floats x) {
    Floats a = x < Floats{} ? -x : x;
    Floats t = 1.f / (1.f + 0.3275911f * a);
    Floats p = splat(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    Floats y = 1.f - p * t * exponential(-a * a);
    return x < Floats{} ? -y : y;
}

// --- sums over lanes --------------------------------------------------------------------------------------------------

// Lanes from WIDTH on in front of the others.
template <int WIDTH> static inline Floats turned(Floats x) {
#if LANES == 16
    return __builtin_shufflevector(
        x, x, WIDTH, WIDTH + 1, WIDTH + 2, WIDTH + 3, WIDTH + 4, WIDTH + 5, WIDTH + 6, WIDTH + 7, WIDTH + 8, WIDTH + 9,
        WIDTH + 10, WIDTH + 11, WIDTH + 12, WIDTH + 13, WIDTH + 14, WIDTH + 15);
#elif LANES == 8
    return __builtin_shufflevector(
        x, x, WIDTH, WIDTH + 1, WIDTH + 2, WIDTH + 3, WIDTH + 4, WIDTH + 5, WIDTH + 6, WIDTH + 7);
#else
    return __builtin_shufflevector(x, x, WIDTH, WIDTH + 1, WIDTH + 2, WIDTH + 3);
#endif
}

// All lanes as one, of two lanes each time.
template <int WIDTH = LANES / 2, class F> static inline float folded(Floats x, F both) {
    x = both(turned<WIDTH>(x), x);
    if constexpr (WIDTH > 1)
        return folded<WIDTH / 2>(x, both);
    else
        return x[0];
}

static inline float sum(Floats x) {
    return folded(x, [](Floats a, Floats b) { return a + b; });
}

// NaN only if the first lane is.
static inline float largest(Floats x) { return folded(x, at_least); }

// Lane i of the result is the sum over the lanes of x[i].
static inline Floats sums(const Floats* x) {
#if LANES == 16
#define PAIRS(a, b) (__builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) + \
                     __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#define FOURS(a, b) (__builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) + \
                     __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
#define EIGHTS(a, b) (__builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) + \
                      __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    Floats halves[2];
    for (int i = 0; i < 2; i++, x += 8)
        halves[i] = EIGHTS(FOURS(PAIRS(x[0], x[1]), PAIRS(x[2], x[3])), FOURS(PAIRS(x[4], x[5]), PAIRS(x[6], x[7])));
    return __builtin_shufflevector(halves[0], halves[1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(halves[0], halves[1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
#undef EIGHTS
#elif LANES == 8
#define PAIRS(a, b) (__builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14) + \
                     __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15))
#define FOURS(a, b) (__builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) + \
                     __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15))
    Floats low = FOURS(PAIRS(x[0], x[1]), PAIRS(x[2], x[3])), high = FOURS(PAIRS(x[4], x[5]), PAIRS(x[6], x[7]));
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15);
#else
#define PAIRS(a, b) (__builtin_shufflevector(a, b, 0, 4, 2, 6) + __builtin_shufflevector(a, b, 1, 5, 3, 7))
#define FOURS(a, b) (__builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7))
    return FOURS(PAIRS(x[0], x[1]), PAIRS(x[2], x[3]));
#endif
#undef PAIRS
#undef FOURS
}
