// What adapters add to the rows of a product: y += scale * (x Aᵀ) Bᵀ, each row with the matrices of its own adapter.
//
// A and B are packed weights of float or bfloat16, see ../linear_packed/packed.h: lanes are ranks of A, and outputs of B.
// Inputs that are of bfloat16 as A is meet it as they meet other weights (../linear_packed/multiply.h), by tiles where there
// are some. Others, and what comes of A, stay floats, so that weights are widened where they meet them, and nothing is
// rounded on the way: A is then summed apart over even and over odd inputs, B over its ranks in order. A row has the same
// bits whatever rows are beside it, and whoever computes them.
#pragma once

#include "../linear_packed/multiply.h"

#include <vector>

namespace stentor {
namespace low_rank {

// What an adapter adds to some columns. The layouts are those of __init__.py.
struct Part {
    Packed up;              // B
    int64_t column, first;  // of the product; among the ranks of all parts
    double scale;
};

struct Adapter {
    Packed down;  // the A of all parts
    const Part* parts;
    int64_t count;
};

// The adapters of a product, by slot; null where one adds nothing.
struct Slots {
    const Adapter* const* adapters;
    int64_t count;

    const Adapter* at(int64_t slot) const { return slot < count ? adapters[slot] : nullptr; }
};

// Rows that have adapters: those of slots[g] are rows[starts[g]] to rows[starts[g + 1]], ascending.
struct Rows {
    int64_t groups;
    const int64_t *slots, *starts, *rows;
};

// Some of the rows of one slot: places [first, last) in the list of rows.
struct Span {
    int64_t slot, first, last;
};

// Rows of a span, where one item of work computes it: of many as many as tiles take together.
constexpr int64_t MOST = 32;
static inline int64_t rows_of_span(int64_t rows, int64_t threads) { return rows < 2 * MOST * threads ? 12 : MOST; }

static inline int64_t padded_ranks(const Adapter& adapter) { return ceil_div(adapter.down.outputs, TILE) * TILE; }

// All rows, in spans of at most `most`.
static inline std::vector<Span> spans_of(const Rows& of, int64_t most) {
    std::vector<Span> out;
    for (int64_t g = 0; g < of.groups; ++g)
        for (int64_t first = of.starts[g]; first < of.starts[g + 1]; first += most)
            out.push_back({of.slots[g], first, std::min(first + most, of.starts[g + 1])});
    return out;
}

// The rows of [begin, end).
static inline void spans_between(const Rows& of, int64_t begin, int64_t end, std::vector<Span>* out) {
    for (int64_t g = 0; g < of.groups; ++g) {
        const int64_t *const from = of.rows + of.starts[g], *const to = of.rows + of.starts[g + 1];
        const int64_t first = std::lower_bound(from, to, begin) - of.rows, last = std::lower_bound(from, to, end) - of.rows;
        if (first < last) out->push_back({of.slots[g], first, last});
    }
}

// low[place] = scale · (A x) for the places of a span, `stride` floats apart. Defined in native.cpp, as is what follows.
void shrink(const Adapter& adapter, const Span& span, const int64_t* rows, const Prepared& x, ActivationFormat format,
            float* low, int64_t stride);

// Adds to rows what B's tiles [tile, last) make of low[r], out[r] being where the first of these tiles goes.
void expand_tiles(const Packed& up, int64_t tile, int64_t last, const float* const* low, float* const* out, int64_t count);

// Adds to the rows of a span what tiles [tile, last) of a part make of `low`; row(place) is where the first of these tiles
// goes.
template <class Row>
static inline void expand(const Part& part, int64_t tile, int64_t last, const Span& span, const float* low,
                          int64_t stride, const Row& row) {
    const float* from[MOST];
    float* to[MOST];
    for (int64_t place = span.first; place < span.last; place += MOST) {
        const int64_t count = std::min(MOST, span.last - place);
        for (int64_t i = 0; i < count; ++i) {
            from[i] = low + (place + i) * stride + part.first;
            to[i] = row(place + i);
        }
        expand_tiles(part.up, tile, last, from, to, count);
    }
}

static inline int64_t tiles_of(const Adapter& adapter) {
    int64_t tiles = 0;
    for (int64_t p = 0; p < adapter.count; ++p) tiles += ceil_div(adapter.parts[p].up.outputs, TILE);
    return tiles;
}

// The same of piece `piece` of `pieces` of all parts; row(place) is where a row of the product begins.
template <class Row>
static inline void expand_piece(const Adapter& adapter, int64_t piece, int64_t pieces, const Span& span,
                                const float* low, int64_t stride, const Row& row) {
    const int64_t all = tiles_of(adapter), begin = all * piece / pieces, end = all * (piece + 1) / pieces;
    int64_t before = 0;
    for (int64_t p = 0; p < adapter.count; ++p) {
        const Part& part = adapter.parts[p];
        const int64_t tiles = ceil_div(part.up.outputs, TILE);
        const int64_t tile = std::max<int64_t>(begin - before, 0), last = std::min(end - before, tiles);
        before += tiles;
        if (tile < last)
            expand(part, tile, last, span, low, stride,
                   [&](int64_t place) { return row(place) + part.column + tile * TILE; });
    }
}

// The same of the columns [begin, end), which are whole tiles of each part that has some of them; row(place) is where a
// row of these columns begins.
template <class Row>
static inline void expand_columns(const Adapter& adapter, int64_t begin, int64_t end, const Span& span, const float* low,
                                  int64_t stride, const Row& row) {
    for (int64_t p = 0; p < adapter.count; ++p) {
        const Part& part = adapter.parts[p];
        const int64_t first = std::max(begin, part.column), last = std::min(end, part.column + part.up.outputs);
        if (first < last)
            expand(part, (first - part.column) / TILE, ceil_div(last - part.column, TILE), span, low, stride,
                   [&](int64_t place) { return row(place) + (first - begin); });
    }
}

}  // namespace low_rank
}  // namespace stentor
