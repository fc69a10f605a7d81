// The products of adapters, and adapters on products that are no program's: see low_rank.h.
#include "low_rank.h"
#include "parallel.h"

namespace stentor {
namespace low_rank {
namespace {

// Bytes that A and B are fetched ahead. They pass as fast as memory gives them, and nothing of them is there from the step
// before: nearer is too late.
constexpr int64_t FAR = 6144;

// Rows that meet a line of A, and of B, in as many tiles: their sums and the line stay in registers.
constexpr int SHRUNK = LANES == 16 ? 6 : 2, EXPANDED = LANES == 16 ? 6 : LANES == 8 ? 4 : 2;
constexpr int WIDE = REGISTERS == 1 ? 2 : 1;

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
__attribute__((noinline)) static void expand_few(const uint8_t* codes, int64_t apart, int64_t ranks,
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
            expand_few<Weights, R, T>(up.codes + tile * apart, apart, up.inputs, low + row, to, columns);
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

}  // namespace

// low[place] = scale · (A x) for the places of a span, `stride` floats apart.
void shrink(const Adapter& adapter, const Span& span, const int64_t* rows, const Prepared& x,
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

void expand_tiles(const Packed& up, int64_t tile, int64_t last, const float* const* low, float* const* out, int64_t count) {
    if (up.kind == F32)
        expand_range<Single>(up, tile, last, low, out, count);
    else
        expand_range<Brain>(up, tile, last, low, out, count);
}

}  // namespace low_rank
}  // namespace stentor

using namespace stentor;
using namespace stentor::low_rank;

// Adds to rows of y, float [tokens, y_stride], what their adapters make of the same rows of x.
STENTOR_EXPORT void stentor_low_rank_f32(float* y, int64_t y_stride, const float* x, int64_t x_stride,
                                         const Slots* slots, const Rows* of, int64_t threads) {
    const int64_t rows_in_all = of->groups ? of->starts[of->groups] : 0;
    const std::vector<Span> spans = spans_of(*of, rows_of_span(rows_in_all, threads));
    const Prepared rows{(const uint8_t*)x, x_stride * (int64_t)sizeof(float)};
    int64_t stride = 0;
    for (int64_t g = 0; g < of->groups; ++g)
        if (const Adapter* adapter = slots->at(of->slots[g])) stride = std::max(stride, padded_ranks(*adapter));
    std::vector<float> low((size_t)(rows_in_all * stride));
    parallel_for((int64_t)spans.size(), threads, [&](int64_t item) {
        const Span& span = spans[(size_t)item];
        const Adapter* adapter = slots->at(span.slot);
        if (!adapter) return;
        shrink(*adapter, span, of->rows, rows, ActivationFormat::F32, low.data(), stride);
        expand_piece(*adapter, 0, 1, span, low.data(), stride, [&](int64_t place) { return y + of->rows[place] * y_stride; });
    });
}
