// A batch made of some of another batch's rows: those that multiply codes directly, or those that expand them.
#pragma once

#include "program.h"

#include <algorithm>
#include <vector>

namespace stentor {

// Returns the first sequence whose first token is not among the first `coded`; -1 if there is none.
static inline int64_t first_behind(const Batch& batch) {
    const int32_t *const begin = batch.query_start, *const end = begin + batch.sequences;
    const int32_t* const found = std::find(begin, end, (int32_t)batch.coded);
    return found == end ? -1 : found - begin;
}

// Tokens [first, end) of a batch, which are its sequences [from, to), as a batch of their own. Rows of buffers count
// from their first one.
struct Piece {
    Bound program;
    Batch batch;
    std::vector<Buffer> buffers;
    std::vector<int32_t> query_start;
    std::vector<int64_t> slots, starts, rows;  // of the rows with adapters

    Piece(const Bound& whole, const Batch& of, int64_t first, int64_t end, int64_t from, int64_t to)
        : program(whole), batch(of), buffers(whole.buffers, whole.buffers + whole.buffer_count), starts{0} {
        for (Buffer& buffer : buffers) buffer.rows += first * buffer.stride;
        for (int slot = 0; slot < 2; ++slot) program.prepared[slot] += first * whole.prepared_bytes[slot];
        program.buffers = buffers.data();
        for (int64_t s = from; s <= to && of.sequences; ++s) query_start.push_back(of.query_start[s] - (int32_t)first);
        batch.tokens = end - first, batch.sequences = to - from, batch.query_start = query_start.data();
        if (of.ids) batch.ids += first;
        if (of.positions) batch.positions += first;
        if (of.slots) batch.slots += first;
        if (of.sequences) batch.seq_lens += from, batch.tables += from * of.table_width;
        for (int64_t g = 0; g < of.adapted.groups; ++g) {
            for (int64_t at = of.adapted.starts[g]; at < of.adapted.starts[g + 1]; ++at)
                // a row outside the batch goes to one of the pieces, which refuses it
                if (const int64_t row = of.adapted.rows[at]; first ? row >= first : row < end) rows.push_back(row - first);
            if ((int64_t)rows.size() == starts.back()) continue;
            slots.push_back(of.adapted.slots[g]);
            starts.push_back((int64_t)rows.size());
        }
        batch.adapted = {(int64_t)slots.size(), slots.data(), starts.data(), rows.data()};
    }
    Piece(const Piece&) = delete;
};

}  // namespace stentor
