// The sequences of a batch, and the places of their tokens in a paged cache [blocks, size, dim].
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace stentor {
namespace paged {

constexpr int64_t RUN = 16;  // contiguous tokens in every block, whatever its size

struct Sequences {
    const int32_t *query_start, *seq_lens, *tables;
    int64_t count, tokens, size, blocks, table_width;

    // The slot of the token at `position`.
    int64_t slot(int64_t sequence, int64_t position) const {
        return (int64_t)tables[sequence * table_width + position / size] * size + position % size;
    }

    // The first sequence whose lengths or blocks are outside the tensors, or -1.
    int64_t find_fault() const {
        for (int64_t s = 0; s < count; ++s) {
            const int64_t begin = query_start[s], end = query_start[s + 1], length = seq_lens[s];
            if (begin < 0 || begin > end || end > tokens || length < end - begin) return s;
            if (begin == end) continue;
            const int64_t last = (length - 1) / size;
            if (last >= table_width) return s;
            for (int64_t b = 0; b <= last; ++b) {
                const int64_t block = tables[s * table_width + b];
                if (block < 0 || block >= blocks) return s;
            }
        }
        return -1;
    }

    // Calls body(sequence, token, position) for each new token.
    template <class Body>
    void each_token(const Body& body) const {
        each_span(1, [&](int64_t sequence, int64_t token, int64_t, int64_t position) { body(sequence, token, position); });
    }

    // Calls body(sequence, token, count, position) for up to `most` neighbouring new tokens of a sequence, the first of them
    // at `position`.
    template <class Body>
    void each_span(int64_t most, const Body& body) const {
        for (int64_t s = 0; s < count; ++s)
            for (int64_t token = query_start[s], end = query_start[s + 1]; token < end; token += most)
                body(s, token, std::min(most, end - token), seq_lens[s] - end + token);
    }
};

}  // namespace paged
}  // namespace stentor
