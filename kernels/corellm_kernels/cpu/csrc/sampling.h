// The next token of each row of logits: the best one, or one drawn after temperature, top-k, top-p and min-p.
//
// Nothing is sorted. Each truncation is a least weight, which is found by its bits from the highest on: counts or masses of
// weights by their first bits, then, of those with the right ones, by the next (a radix sort that follows one bucket). What
// is kept is drawn by inverting the cumulative distribution in the order of the vocabulary. Masses are summed in float64.
#pragma once

#include <algorithm>

#include "scratch.h"
#include "team.h"
#include "vectors.h"

struct SampleArgs {
    const void* logits;
    int64_t stride, rows, vocab;
    const double* temperature;  // [rows]; 0 for the best token; null if all take it
    const int32_t* top_k;       // [rows]; 0 for all; null if no row uses it
    const double* top_p;        // [rows]; 1 for all; null if no row uses it
    const double* min_p;        // [rows]; 0 for all; null if no row uses it
    const double* uniforms;     // [rows], in [0, 1)
    const int32_t* masks;       // [masks, words]: the tokens allowed, a bit each; null if no row has one
    int64_t words;
    const int64_t* mask_of;     // [rows]; -1 for rows whose tokens are all allowed; null if no row has one
    int64_t* tokens;            // [rows]; -1 for rows that are not finite, or without any token
    float* peaks;               // [rows]: the largest logit, infinity where one is no number
};

namespace sampling {

constexpr int64_t BLOCK = 256;  // tokens, among which one is drawn after their block was
constexpr int BITS = 10, BUCKETS = 1 << BITS;  // weights are at most 1: none has more than 3 * BITS bits set

// The largest logit of a row; infinity where one is no number.
template <class T> static float largest_logit(const T* row, int64_t vocab) {
    constexpr int CHAINS = 4;
    Floats most[CHAINS];
    Ints invalid = {};
    for (int c = 0; c < CHAINS; c++) most[c] = splat(-INFINITY);
    int64_t i = 0;
    for (; i + CHAINS * LANES <= vocab; i += CHAINS * LANES)
        for (int c = 0; c < CHAINS; c++) {
            Floats x = load(row + i + c * LANES);
            invalid |= x != x;
            most[c] = at_least(x, most[c]);
        }
    for (; i < vocab; i++) {
        float x = widened(row[i]);
        invalid[0] |= x != x;
        most[0][0] = std::max(most[0][0], x);
    }
    for (int lane = 0; lane < LANES; lane++)
        if (invalid[lane]) return INFINITY;
    return largest(at_least(at_least(most[0], most[1]), at_least(most[2], most[3])));
}

template <class T> static int64_t place_of(const T* row, int64_t vocab, float logit) {
    int64_t i = 0;
    for (; i + LANES <= vocab; i += LANES) {
        Ints same = load(row + i) == logit;
        int32_t any = 0;
        for (int lane = 0; lane < LANES; lane++) any |= same[lane];
        if (any) break;
    }
    while (i < vocab - 1 && widened(row[i]) != logit) i++;
    return i;
}

// Weights of a row's tokens relative to the best one.
template <class T> static void weigh(const T* row, int64_t vocab, float peak, float temperature, float* weights) {
    int64_t i = 0;
    for (; i + LANES <= vocab; i += LANES) store(weights + i, exponential((load(row + i) - peak) / temperature));
    for (; i < vocab; i++) weights[i] = exponential(splat((widened(row[i]) - peak) / temperature))[0];
}

// The sum of the weights that are at least `floor`.
static double mass_of(const float* weights, int64_t vocab, float floor) {
    double mass = 0;
    for (int64_t i = 0; i < vocab; i++) mass += weights[i] >= floor ? weights[i] : 0.f;
    return mass;
}

// The largest weight for which those at least as large reach `target` together, by their number or by their mass. Those
// below `floor` do not count; if the others do not suffice, the least of them.
template <bool BY_MASS> static float weight_at(const float* weights, int64_t vocab, float floor, double target) {
    uint32_t known = 0;  // the bits found so far
    for (int shift = 2 * BITS; shift >= 0; shift -= BITS) {
        double sums[BUCKETS] = {};
        bool filled[BUCKETS] = {};
        for (int64_t i = 0; i < vocab; i++) {
            uint32_t bits = bits_of<uint32_t>(weights[i]);
            if (weights[i] < floor || weights[i] <= 0 || (uint64_t)bits >> (shift + BITS) != known) continue;
            uint32_t bucket = bits >> shift & (BUCKETS - 1);
            sums[bucket] += BY_MASS ? weights[i] : 1;
            filled[bucket] = true;
        }
        int bucket = BUCKETS - 1, least = -1;
        for (; bucket >= 0; bucket--) {
            if (!filled[bucket]) continue;
            least = bucket;
            if (sums[bucket] >= target) break;
            target -= sums[bucket];
        }
        if (bucket < 0) bucket = std::max(least, 0), target = INFINITY;  // not enough: the least of all
        known = known << BITS | (uint32_t)bucket;
    }
    return bits_of<float>(known);
}

// The first token with which the sum of the weights that are kept passes `share` of it.
static int64_t draw(const float* weights, int64_t vocab, float floor, double share) {
    int64_t blocks = (vocab + BLOCK - 1) / BLOCK;
    double* masses = (double*)scratch<1>(2 * blocks);
    double all = 0;
    for (int64_t b = 0; b < blocks; b++)
        all += masses[b] = mass_of(weights + b * BLOCK, std::min(BLOCK, vocab - b * BLOCK), floor);
    double target = share * all, before = 0;
    int64_t block = 0, last = 0;
    for (; block < blocks; block++) {
        if (masses[block] > 0) last = block;
        if (masses[block] > 0 && before + masses[block] > target) break;
        before += masses[block];
    }
    if (block == blocks) block = last, before = all - masses[last];
    int64_t token = 0;
    for (int64_t i = block * BLOCK; i < std::min(vocab, (block + 1) * BLOCK); i++) {
        if (weights[i] < floor || weights[i] <= 0) continue;
        token = i, before += weights[i];
        if (before > target) break;
    }
    return token;
}

// A row's token, of its weights after temperature and truncations; -1 if it has no finite logit.
template <class T> static int64_t chosen(const SampleArgs& a, int64_t r, const T* row, float peak) {
    if (std::fabs(peak) == INFINITY) return -1;
    float temperature = a.temperature ? (float)a.temperature[r] : 0.f;
    int64_t top_k = a.top_k && a.top_k[r] > 0 && a.top_k[r] < a.vocab ? a.top_k[r] : 0;
    if (temperature <= 0 || top_k == 1) return place_of(row, a.vocab, peak);
    float *weights = scratch<0>(a.vocab), floor = 0;
    weigh(row, a.vocab, peak, temperature, weights);
    if (top_k) floor = weight_at<false>(weights, a.vocab, floor, (double)top_k);
    if (a.top_p && a.top_p[r] < 1)
        floor = weight_at<true>(weights, a.vocab, floor, a.top_p[r] * mass_of(weights, a.vocab, floor));
    if (a.min_p) floor = std::max(floor, (float)a.min_p[r]);
    return draw(weights, a.vocab, floor, a.uniforms[r]);
}

// The row with minus infinity for tokens whose bit is not set.
template <class T> static const float* masked(const T* row, int64_t vocab, const int32_t* mask) {
    float* kept = scratch<2>(vocab);
    for (int64_t first = 0; first < vocab; first += 32) {
        int64_t end = std::min(first + 32, vocab);
        uint32_t bits = (uint32_t)mask[first / 32];
        if (!bits)
            std::fill(kept + first, kept + end, -INFINITY);
        else
            for (int64_t i = first; i < end; i++) kept[i] = bits >> (i - first) & 1 ? widened(row[i]) : -INFINITY;
    }
    return kept;
}

template <class T> static void run(const void* args, Team& team) {
    auto& a = *(const SampleArgs*)args;
    for (int64_t r; (r = team.take()) < a.rows;) {
        const T* row = (const T*)a.logits + r * a.stride;
        float peak = a.peaks[r] = largest_logit(row, a.vocab);
        int64_t mask = a.mask_of ? a.mask_of[r] : -1;
        if (mask < 0 || std::fabs(peak) == INFINITY) {
            a.tokens[r] = chosen(a, r, row, peak);
        } else {
            const float* kept = masked(row, a.vocab, a.masks + mask * a.words);
            a.tokens[r] = chosen(a, r, kept, largest_logit(kept, a.vocab));
        }
    }
}

}  // namespace sampling
