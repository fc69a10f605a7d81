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

// Bytes that A and B are fetched ahead. They pass as fast as memory gives them, and nothing of them is there from the step
// before: nearer is too late.
constexpr int64_t FAR = 6144;

// Rows that meet a line of A, and of B, in as many tiles: their sums and the line stay in registers.
constexpr int SHRUNK = LANES == 16 ? 6 : 2, EXPANDED = LANES == 16 ? 6 : LANES == 8 ? 4 : 2;
constexpr int WIDE = REGISTERS == 1 ? 2 : 1;

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

// How the weights of input k are read: `half` is 0 of an even input, 1 of the odd one behind it.
struct Single {
    static vf read(const uint8_t* codes, int64_t k, int half, int i) {
        return load((const float*)(codes + (k + half) * VECTOR) + i * LANES);
    }
    static void ahead(const uint8_t* codes, int64_t k) {
        fetch(codes + k * VECTOR, FAR), fetch(codes + (k + 1) * VECTOR, FAR);
    }
};
struct Brain {
    static vf read(const uint8_t* codes, int64_t k, int half, int i) {
        const vu pairs = load_as<vu>(codes + k / 2 * VECTOR + i * sizeof(vu));
        return (vf)(half ? pairs & 0xffff0000u : pairs << 16);
    }
    static void ahead(const uint8_t* codes, int64_t k) { fetch(codes + k / 2 * VECTOR, FAR); }
};

// Calls body for some rows at a time, [0, count) in all: R is how many.
template <int R, class Body>
static inline void in_groups(int64_t count, const Body& body, int64_t row = 0) {
    for (; row + R <= count; row += R) body(std::integral_constant<int, R>{}, row);
    if constexpr (R > 1)
        if (row < count) in_groups<R - 1>(count, body, row);
}

// What R rows of x, `inputs` long, make of a tile of A. By itself, as is what follows: within the loop over numbers of rows
// GCC keeps sums and addresses of all of them in memory.
template <class Weights, int R>
__attribute__((noinline)) static void shrink_tile(const uint8_t* codes, int64_t inputs, const float* const* from,
                                                  float* const* to) {
    const float* x[R];
    for (int r = 0; r < R; ++r) x[r] = from[r];
    vf sums[R][2][REGISTERS] = {};
    const auto take = [&](int64_t k, int half) {
        for (int i = 0; i < REGISTERS; ++i) {
            const vf w = Weights::read(codes, k, half, i);
            for (int r = 0; r < R; ++r) sums[r][half][i] = fma(set1(x[r][k + half]), w, sums[r][half][i]);
        }
    };
    int64_t k = 0;
    for (; k + 2 <= inputs; k += 2) {
        Weights::ahead(codes, k);
        take(k, 0);
        take(k, 1);
    }
    if (k < inputs) take(k, 0);
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < REGISTERS; ++i) store(to[r] + i * LANES, sums[r][0][i] + sums[r][1][i]);
}

// Adds to R rows what T tiles of B make of `low`; of the last tile `columns` are there.
template <class Weights, int R, int T>
__attribute__((noinline)) static void expand_tiles(const uint8_t* codes, int64_t apart, int64_t ranks,
                                                   const float* const* from, float* const* to, int64_t columns) {
    const float* low[R];
    for (int r = 0; r < R; ++r) low[r] = from[r];
    vf sums[R][T * REGISTERS] = {};
    const auto take = [&](int64_t k, int half) {
        for (int j = 0; j < T * REGISTERS; ++j) {
            const vf w = Weights::read(codes + j / REGISTERS * apart, k, half, j % REGISTERS);
            for (int r = 0; r < R; ++r) sums[r][j] = fma(set1(low[r][k + half]), w, sums[r][j]);
        }
    };
    int64_t k = 0;
    for (; k + 2 <= ranks; k += 2) {
        for (int t = 0; t < T; ++t) Weights::ahead(codes + t * apart, k);
        take(k, 0);
        take(k, 1);
    }
    if (k < ranks) take(k, 0);
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < T * REGISTERS; ++j) {
            float* const at = to[r] + j * LANES;
            const int64_t left = std::min<int64_t>(columns + (T - 1) * TILE - j * LANES, LANES);
            if (left == LANES)
                store(at, load(at) + sums[r][j]);
            else if (left > 0)
                store_part(at, load_part(at, left) + sums[r][j], left);
        }
}

// Adds to rows what B's tiles [tile, last) make of low[r], out[r] being where the first of these tiles goes.
template <class Weights>
static void expand_range(const Packed& up, int64_t tile, int64_t last, const float* const* low, float* const* out,
                         int64_t count) {
    const int64_t apart = tile_bytes(up.kind, up.inputs), first = tile;
    const auto some = [&](auto tiles) {
        constexpr int T = decltype(tiles)::value;
        const int64_t columns = std::min<int64_t>(TILE, up.outputs - (tile + T - 1) * TILE);
        in_groups<EXPANDED>(count, [&](auto rows, int64_t row) {
            constexpr int R = decltype(rows)::value;
            float* to[R];
            for (int r = 0; r < R; ++r) to[r] = out[row + r] + (tile - first) * TILE;
            expand_tiles<Weights, R, T>(up.codes + tile * apart, apart, up.inputs, low + row, to, columns);
        });
    };
    for (; tile + WIDE <= last; tile += WIDE) some(std::integral_constant<int, WIDE>{});
    if (tile < last) some(std::integral_constant<int, 1>{});
}

// A row that is there in the form that some weight takes, as floats: where it lies, or in `room`.
static inline const float* plain_row(const void* row, ActivationFormat format, int64_t inputs, float* room) {
    if (format == ActivationFormat::F32) return (const float*)row;
    if (format == ActivationFormat::BF16) {
        for (int64_t k = 0; k < inputs; k += LANES) store(room + k, load((const bf16*)row + k));  // whole blocks
        return room;
    }
    for (int64_t k = 0; k < inputs; k += BLOCK) {
        const ByteBlock& block = ((const ByteBlock*)row)[k / BLOCK];
        for (int64_t i = 0; i < BLOCK; i += LANES)
            store(room + k + i, load((const i8*)block.q + i) * block.scale);
        room[k + block.peak_at] = block.scale * ((float)block.q[block.peak_at] + block.beyond) + block.excess;
    }
    return room;
}

// low[place] = A x for the places of a span, `stride` floats apart, with inputs of bfloat16.
static inline void shrink_brain(const Packed& down, const Span& span, const int64_t* rows, const Prepared& x, float* low,
                                int64_t stride) {
    int32_t index[MOST];
    const int64_t count = span.last - span.first, first = rows[span.first];
    bool apart = false;
    for (int64_t i = 0; i < count; ++i) {
        index[i] = (int32_t)rows[span.first + i];
        apart |= index[i] != first + i;
    }
    const Prepared own{apart ? x.rows : x.at(first), x.stride, apart ? index : nullptr};
    multiply_tiles(down, 0, ceil_div(down.outputs, TILE), own, 0, count, {low + span.first * stride, stride, nullptr});
}

// The same with inputs of any form, by vectors.
static inline void shrink_plain(const Packed& down, const Span& span, const int64_t* rows, const Prepared& x,
                                ActivationFormat format, float* low, int64_t stride) {
    static thread_local std::vector<float> room;
    const int64_t inputs = down.inputs, width = ceil_div(inputs, BLOCK) * BLOCK, count = span.last - span.first;
    if ((int64_t)room.size() < count * width) room.resize((size_t)(count * width));
    const float* from[MOST];
    float* to[MOST];
    for (int64_t i = 0; i < count; ++i) {
        from[i] = plain_row(x.at(rows[span.first + i]), format, inputs, room.data() + i * width);
        to[i] = low + (span.first + i) * stride;
    }
    const int64_t apart = tile_bytes(down.kind, inputs);
    for (int64_t tile = 0; tile * TILE < down.outputs; ++tile) {
        const uint8_t* const codes = down.codes + tile * apart;
        in_groups<SHRUNK>(count, [&](auto together, int64_t row) {
            constexpr int R = decltype(together)::value;
            float* out[R];
            for (int r = 0; r < R; ++r) out[r] = to[row + r] + tile * TILE;
            if (down.kind == F32)
                shrink_tile<Single, R>(codes, inputs, from + row, out);
            else
                shrink_tile<Brain, R>(codes, inputs, from + row, out);
        });
    }
}

// low[place] = scale · (A x) for the places of a span, `stride` floats apart.
static inline void shrink(const Adapter& adapter, const Span& span, const int64_t* rows, const Prepared& x,
                          ActivationFormat format, float* low, int64_t stride) {
    if (format == ActivationFormat::BF16 && adapter.down.kind == BF16)
        shrink_brain(adapter.down, span, rows, x, low, stride);
    else
        shrink_plain(adapter.down, span, rows, x, format, low, stride);
    for (int64_t p = 0; p < adapter.count; ++p) {
        const Part& part = adapter.parts[p];
        for (int64_t place = span.first; place < span.last; ++place)
            for (int64_t r = 0; r < part.up.inputs; ++r) low[place * stride + part.first + r] *= (float)part.scale;
    }
}

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
        if (part.up.kind == F32)
            expand_range<Single>(part.up, tile, last, from, to, count);
        else
            expand_range<Brain>(part.up, tile, last, from, to, count);
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
