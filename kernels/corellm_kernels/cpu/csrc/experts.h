// Products of the experts of a mixture: each token's with the weights of those that were chosen for it, and their sum.
//
// Rows are put in order of their experts, and each expert's rows are a product of `linear.h`, made by all threads: a row's
// sums do not depend on the rows beside it, nor on the experts of others. A token's outputs are added up in the order in
// which its experts were chosen.
#pragma once

#include <cstring>

#include "linear.h"
#include "team.h"
#include "vectors.h"

struct ExpertsArgs {
    void (*product)(const void* args, Team& team);  // `linear::run` of the types
    LinearArgs first;       // the product of the first expert, of no rows
    int64_t weight_bytes;   // from one expert's weight to the next
    int64_t num_experts;
    const int64_t* chosen;  // [tokens, top_k]: experts; nothing is computed for other numbers. Null: rows are in order
    int64_t* starts;        // [num_experts + 1]: where the rows of each expert start; written unless they are in order
    int64_t* places;        // [tokens, top_k]: where each one's row is, -1 for none; written likewise
    const void* x;          // [tokens, k], or rows in order
    int64_t x_stride;       // bytes
    void* ordered;          // [tokens * top_k, k]: room for rows of x in order
    int64_t x_bytes, out_bytes, room_bytes;  // of a row
    int64_t tokens, top_k;
};

struct ExpertsSumArgs {
    const void* x;          // [tokens * top_k, width], in the order of experts
    const int64_t* places;  // as above
    const float* shares;    // [tokens, top_k]: what each expert's outputs are multiplied by
    void* out;              // [tokens, width]
    int64_t tokens, top_k, width;
};

namespace experts {

// Put what was chosen in order of experts, and of tokens for each.
static void sort(const ExpertsArgs& a) {
    int64_t count = a.tokens * a.top_k;
    int64_t* next = a.starts + 1;  // where the next row of each goes; in the end, where those of the one behind start
    memset(a.starts, 0, (a.num_experts + 1) * sizeof *a.starts);
    auto is_known = [&](int64_t expert) { return expert >= 0 && expert < a.num_experts; };
    for (int64_t i = 0; i < count; i++)
        if (is_known(a.chosen[i])) next[a.chosen[i]]++;
    int64_t total = 0;
    for (int64_t expert = 0; expert < a.num_experts; expert++) {
        int64_t rows = next[expert];
        next[expert] = total;
        total += rows;
    }
    for (int64_t i = 0; i < count; i++) a.places[i] = is_known(a.chosen[i]) ? next[a.chosen[i]]++ : -1;
}

static void run(const void* args, Team& team) {
    auto& a = *(const ExpertsArgs*)args;
    int64_t count = a.tokens * a.top_k;
    if (a.chosen) {
        if (team.thread == 0) sort(a);
        team.barrier();
        for (int64_t i = team.first(count); i < team.last(count); i++)
            if (a.places[i] >= 0)
                memcpy((char*)a.ordered + a.places[i] * a.x_bytes, (const char*)a.x + i / a.top_k * a.x_stride, a.x_bytes);
        team.barrier();
    }
    const char* rows = (const char*)(a.chosen ? a.ordered : a.x);
    for (int64_t expert = 0; expert < a.num_experts; expert++) {
        int64_t start = a.starts[expert], m = a.starts[expert + 1] - start;
        if (!m) continue;
        LinearArgs product = a.first;
        product.x = rows + start * a.x_bytes;
        product.weight = (const char*)product.weight + expert * a.weight_bytes;
        if (product.scale) product.scale += expert * product.n;
        if (product.bias) product.bias += expert * product.n;
        product.out = (char*)product.out + start * a.out_bytes;
        product.rows = (char*)product.rows + start * a.room_bytes;
        product.m = m;
        a.product(&product, team);
    }
}

template <class T> static void add_up(const void* args, Team& team) {
    auto& a = *(const ExpertsSumArgs*)args;
    for (int64_t token = team.first(a.tokens); token < team.last(a.tokens); token++) {
        const int64_t* places = a.places + token * a.top_k;
        const float* shares = a.shares + token * a.top_k;
        T* out = (T*)a.out + token * a.width;
        int64_t i = 0;
        for (; i + LANES <= a.width; i += LANES) {
            Floats sum{};
            for (int64_t k = 0; k < a.top_k; k++)
                if (places[k] >= 0) sum += shares[k] * load((const T*)a.x + places[k] * a.width + i);
            store(out + i, sum);
        }
        for (; i < a.width; i++) {
            float sum = 0;
            for (int64_t k = 0; k < a.top_k; k++)
                if (places[k] >= 0) sum += shares[k] * widened(((const T*)a.x)[places[k] * a.width + i]);
            narrow(out + i, sum);
        }
    }
}

}  // namespace experts
