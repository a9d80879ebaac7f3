// What attention gets, with the rotation before it and the write into the cache.
#pragma once

#include <cstdint>

struct AttentionArgs {
    void* query;  // [tokens, heads, size]; rotated in place
    const void* key;
    const void* value;  // [tokens, kv_heads, size and value_size]
    int64_t query_stride, query_head_stride, key_stride, key_head_stride, value_stride, value_head_stride;
    const void* cos;  // [planes, tokens, rotary_size] or null; of the query's type
    const void* sin;
    int64_t rotary_size;
    int64_t plane_stride;                        // elements between the planes of M-RoPE
    int64_t section_ends[2];                     // of M-RoPE: pairs rotated by the first plane, by the first two; or -1
    void* key_cache;
    void* value_cache;
    int64_t key_strides[3], value_strides[3];  // of block, slot, head
    float* key_scale;                            // of int8 caches: [blocks, slots, kv_heads], contiguous; or null
    float* value_scale;
    const int64_t* slots;                        // [tokens]; -1 for those that are not written; or null, if none are
    const int64_t* tables;                       // [seqs, table_stride]
    int64_t table_stride;
    const int64_t* lens;                         // [seqs]: tokens in the cache, with this step's
    const int32_t* starts;                       // [seqs + 1]: a sequence's query tokens
    const int32_t* visible;                      // [tokens]: its sequence's first tokens that each sees, at least those up
                                                 // to itself; or null, if it sees just those
    const int32_t* span_starts;                  // [tokens]: a token up to each, from which on a window cuts nothing; or
                                                 // null
    const void* sinks;                           // [heads]: one more score of each head, of a value of zero; or null
    int64_t sink_size;                           // bytes of one: 4 of a float, 2 of a bfloat16
    const float* bias;                           // [tokens, heads, distances]: added to scores by how far before its
                                                 // query a key lies; the last to all farther ones; or null
    int64_t bias_stride, distances;              // bias_stride: of a token, 0 if all have the same
    void* out;                                   // [tokens, heads, value_size]
    int64_t out_stride, out_head_stride;
    int64_t tokens, seqs, heads, kv_heads, size, value_size, block_size, window;  // window: 0 for none
    int64_t causal;                              // whether a token sees none behind it
    float scale, softcap;                        // softcap: 0 for none
};
