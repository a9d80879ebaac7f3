// Paged attention of a flat batch: after rotation and the write of new keys and values, attention over the cache, for
// decodes and chunks of prompts alike: causal, where the batch does not say that a token sees some behind it. For encoders
// a batch's own keys and values take the place of the cache: each of its rows is a block, and every token sees all of it.
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

// The pieces of a batch, as one thread takes them.
class Pieces {
    const AttentionArgs& a;
    Team& team;
    int64_t tile, group = a.heads / a.kv_heads, at_once, groups, together;
    int64_t seq = 0, before = 0;  // pieces of the sequences before
    Piece taken;
    bool is_ahead = false;

  public:
    Pieces(const AttentionArgs& a, Team& team) : a(a), team(team) {
        int64_t most = MOST_ROWS;
        while (most > LEAST_ROWS && a.tokens * a.heads < 4 * team.size * most) most /= 2;  // work for all threads
        at_once = std::min(group, most), groups = (group + at_once - 1) / at_once, tile = most / at_once;
        // key/value heads of a decode that are read together: of few sequences, each has work for all threads
        int64_t pieces = a.seqs < 4 * team.size ? std::min<int64_t>(team.size, a.kv_heads) : 1;
        together = groups == 1 ? (a.kv_heads + pieces - 1) / pieces : 1;
    }

    // Take the next piece; null if there is none.
    const Piece* take() {
        if (is_ahead) {
            is_ahead = false;
            return &taken;
        }
        int64_t number = team.take();
        for (; seq < a.seqs; seq++) {
            int64_t tokens = a.starts[seq + 1] - a.starts[seq], tiles = (tokens + tile - 1) / tile;
            int64_t kv_heads = tokens == 1 ? together : 1, columns = (a.kv_heads + kv_heads - 1) / kv_heads * groups;
            if (number < before + tiles * columns) {
                int64_t column = (number - before) / tiles, first = (number - before) % tiles * tile;
                int64_t kv_head = column / groups * kv_heads, skipped = column % groups * at_once;
                taken = {seq, first, std::min(tile, tokens - first), kv_head * group + skipped,
                         std::min(at_once, group - skipped), std::min(kv_heads, a.kv_heads - kv_head)};
                return &taken;
            }
            before += tiles * columns;
        }
        return nullptr;
    }

    // Take the piece that `take` returns next.
    const Piece* ahead() {
        is_ahead = take() != nullptr;
        return is_ahead ? &taken : nullptr;
    }
};

template <class T, class C> static void attend(const AttentionArgs& a, const Piece& piece, Pieces& pieces) {
    Rows<T, C> rows(a, piece);
    if (rows.of_one > FEW_ROWS)
        attend_many(rows);
    else if (rows.width == a.size && rows.value_width == a.value_size)
        attend_in_place(rows, [&] { return pieces.ahead(); });
    else
        attend_padded(rows);
    rows.write();
}

template <class T, class C> static void run(const void* args, Team& team) {
    auto& a = *(const AttentionArgs*)args;
    rotate_and_write<T, C>(a, team);
    team.barrier();
    Pieces pieces(a, team);
    while (const Piece* piece = pieces.take()) attend<T, C>(a, *piece, pieces);
}

}  // namespace attention
