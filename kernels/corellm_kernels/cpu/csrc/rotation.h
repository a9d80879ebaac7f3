// Rotation of queries and keys, and the write of keys and values into the paged cache.
#pragma once

#include <algorithm>

#include "attention_arguments.h"
#include "scratch.h"
#include "team.h"
#include "vectors.h"

namespace attention {

// Rotate one head into `to`, in float32: pairs (i, i + half), as GPT-NeoX orders them (Su et al. 2021, arXiv 2104.09864).
template <class T> static inline void rotate(const AttentionArgs& a, const T* from, int64_t token, float* to) {
    int64_t half = a.rotary_size / 2, rest = a.cos ? a.rotary_size : 0;
    if (a.cos) {
        const T* cos = (const T*)a.cos + token * a.rotary_size;
        const T* sin = (const T*)a.sin + token * a.rotary_size;
        int64_t i = 0;
        if (a.section_ends[0] < 0) {
            for (; i + LANES <= half; i += LANES) {
                Floats x = load(from + i), y = load(from + half + i);
                store(to + i, x * load(cos + i) - y * load(sin + i));
                store(to + half + i, y * load(cos + half + i) + x * load(sin + half + i));
            }
        }
        for (; i < half; i++) {
            int64_t plane = a.section_ends[0] < 0 ? 0 : (i >= a.section_ends[0]) + (i >= a.section_ends[1]);
            int64_t at = plane * a.plane_stride + i;
            float x = widened(from[i]), y = widened(from[half + i]);
            to[i] = x * widened(cos[at]) - y * widened(sin[at]);
            to[half + i] = y * widened(cos[at + half]) + x * widened(sin[at + half]);
        }
    }
    for (int64_t i = rest; i < a.size; i++) to[i] = widened(from[i]);
}

// Store a row in the cache's type; int8 with a factor, by which the largest magnitude becomes 127.
template <class T> static inline void keep(T* to, const float* from, int64_t size, float*) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) store(to + i, load(from + i));
    for (; i < size; i++) narrow(to + i, from[i]);
}

static inline void keep(int8_t* to, const float* from, int64_t size, float* scale) {
    float most = 0, nothing = 0;
    for (int64_t i = 0; i < size; i++) most = std::max(most, std::fabs(from[i])), nothing += from[i] * 0.f;
    *scale = most / 127.f + nothing;  // NaN if one is no number, or infinite
    float inverse = *scale > 1e-30f ? 127.f / most : 0.f;
    for (int64_t i = 0; i < size; i++) to[i] = (int8_t)std::lrintf(from[i] * inverse);
}

template <class T, class C> static void rotate_and_write(const AttentionArgs& a, Team& team) {
    if (!a.cos && !a.slots) return;
    float* row = scratch<0>(std::max(a.size, a.value_size));
    for (int64_t token = team.first(a.tokens); token < team.last(a.tokens); token++) {
        if (a.cos) {
            for (int64_t head = 0; head < a.heads; head++) {
                T* query = (T*)a.query + token * a.query_stride + head * a.query_head_stride;
                rotate(a, query, token, row);
                keep(query, row, a.rotary_size, nullptr);
            }
        }
        int64_t slot = a.slots ? a.slots[token] : -1;
        if (slot < 0) continue;
        int64_t block = slot / a.block_size, within = slot % a.block_size;
        for (int64_t head = 0; head < a.kv_heads; head++) {
            rotate(a, (const T*)a.key + token * a.key_stride + head * a.key_head_stride, token, row);
            C* key = (C*)a.key_cache + block * a.key_strides[0] + within * a.key_strides[1] + head * a.key_strides[2];
            keep(key, row, a.size, sizeof(C) == 1 ? a.key_scale + slot * a.kv_heads + head : nullptr);
            const T* value = (const T*)a.value + token * a.value_stride + head * a.value_head_stride;
            for (int64_t i = 0; i < a.value_size; i++) row[i] = widened(value[i]);
            C* kept = (C*)a.value_cache + block * a.value_strides[0] + within * a.value_strides[1] +
                      head * a.value_strides[2];
            keep(kept, row, a.value_size, sizeof(C) == 1 ? a.value_scale + slot * a.kv_heads + head : nullptr);
        }
    }
}

}  // namespace attention
