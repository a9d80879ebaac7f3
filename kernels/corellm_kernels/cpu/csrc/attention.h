// Paged attention of a flat batch: after rotation and the write of new keys and values, causal attention over the cache,
// for decodes and chunks of prompts alike.
//
// The unit of work is a piece: some query tokens of a sequence with the heads that share a key/value head. It reads each
// key and value once, `KEYS` at a time from wherever their blocks lie. Parts of `KEYS` begin at multiples of `KEYS`, sums
// have the same order however keys are read, and finite keys and values that a query does not see add exactly nothing: a
// query's result depends neither on its piece nor on the chunk.
#pragma once

#include "attention_few_rows.h"
#include "attention_many_rows.h"
#include "team.h"

namespace attention {

constexpr int64_t FEW_ROWS = 8;                      // many would widen each key and value many times
constexpr int64_t LEAST_ROWS = 32, MOST_ROWS = 128;  // of a key/value head in a piece; the most fit into the second cache

template <class T, class C> static void attend(const AttentionArgs& a, const Piece& piece) {
    Rows<T, C> rows(a, piece);
    if (rows.of_one > FEW_ROWS)
        attend_many(rows);
    else if (rows.width == a.size && rows.value_width == a.value_size)
        attend_in_place(rows);
    else
        attend_padded(rows);
    rows.write();
}

template <class T, class C> static void run(const void* args, Team& team) {
    auto& a = *(const AttentionArgs*)args;
    rotate_and_write<T, C>(a, team);
    team.barrier();
    int64_t most = MOST_ROWS;
    while (most > LEAST_ROWS && a.tokens * a.heads < 4 * team.size * most) most /= 2;  // work for all threads
    int64_t group = a.heads / a.kv_heads, at_once = std::min(group, most), groups = (group + at_once - 1) / at_once;
    int64_t tile = most / at_once;
    // key/value heads of a decode that are read together: of few sequences, each has work for all threads
    int64_t pieces = a.seqs < 4 * team.size ? std::min<int64_t>(team.size, a.kv_heads) : 1;
    int64_t together = groups == 1 ? (a.kv_heads + pieces - 1) / pieces : 1;
    int64_t taken = team.take(), before = 0;
    for (int64_t seq = 0; seq < a.seqs; seq++) {
        int64_t tokens = a.starts[seq + 1] - a.starts[seq], tiles = (tokens + tile - 1) / tile;
        int64_t kv_heads = tokens == 1 ? together : 1, columns = (a.kv_heads + kv_heads - 1) / kv_heads * groups;
        for (; taken < before + tiles * columns; taken = team.take()) {
            int64_t column = (taken - before) / tiles, first = (taken - before) % tiles * tile;
            int64_t kv_head = column / groups * kv_heads, skipped = column % groups * at_once;
            Piece piece{seq, first, std::min(tile, tokens - first), kv_head * group + skipped,
                        std::min(at_once, group - skipped), std::min(kv_heads, a.kv_heads - kv_head)};
            attend<T, C>(a, piece);
        }
        before += tiles * columns;
    }
}

}  // namespace attention
