// The products of experts and the tokens that chose them, as two phases over many items.
#pragma once

#include "../linear_packed/expand.h"
#include "../linear_packed/gated.h"
#include "room.h"
#include "routing.h"

namespace stentor {

// Weights [experts * outputs, inputs]: an expert is a range of outputs, in whole tiles.
struct Experts {
    const Packed *gate_up, *down;  // gates first, if there are any
    const float *gate_up_bias, *down_bias;
    int64_t inner, hidden, activation, weight_input;

    ActivationFormat inner_format() const { return activation_format_of(down->kind); }
    // Each expert has a gate and an up of `inner` outputs, or up alone.
    bool gated() const { return gate_up->outputs * hidden != down->outputs * inner; }
    int64_t inner_stride() const { return prepared_stride(inner_format(), inner); }
    bool have_codes() const { return has_codes(*gate_up) || has_codes(*down); }
};

// The rows of tokens as experts take them. Those of tokens [first, end) are apart from the others.
struct ExpertInputs {
    const uint8_t* rows;
    int64_t stride;
    const uint8_t* apart = nullptr;
    int64_t first = 0, end = 0;

    const uint8_t* at(int64_t token) const { return (token >= first && token < end ? apart : rows) + token * stride; }
};

// act(gate) * up, or act(up), of each row of `routed`, in the input format of `down`; x has the tokens. Each thread has its
// own: it copies the tokens of an expert side by side, as tiles load them, and keeps them for the next blocks of columns.
class GateUpPhase {
   public:
    GateUpPhase(const Experts& of, const Routed& routed, const ExpertInputs& x, uint8_t* inner)
        : of(of), routed(routed), x(x), inner(inner) {}

    int64_t items() const { return (int64_t)routed.rows.size() * ceil_div(of.inner, BLOCK); }

    void operator()(int64_t item) {
        const int64_t blocks = ceil_div(of.inner, BLOCK), tiles = of.inner / TILE;
        const Routed::Rows& rows = routed.rows[item / blocks];
        const bool gated = of.gated();
        const int64_t tile = rows.expert * (gated ? 2 : 1) * tiles;
        if (item / blocks != gathered) gather(item / blocks);
        const auto multiply = [&](int64_t first, int64_t end, bool expands) {
            if (first == end) return;
            const GateUp pair{of.gate_up,      gated ? of.gate_up : nullptr, of.gate_up_bias,
                              of.gate_up_bias, tile,                         tile + tiles,
                              of.inner,        of.activation,                taken_as(of.inner_format(), expands),
                              of.weight_input ? routed.factors.data() + rows.first : nullptr};
            const Prepared some{beside, x.stride, nullptr, expands && has_codes(*of.gate_up)};
            gate_up_block(pair, item % blocks, some, first - rows.first, end - rows.first,
                          inner + rows.first * of.inner_stride(), of.inner_stride());
        };
        multiply(rows.first, rows.middle, false);
        multiply(rows.middle, rows.end, true);
    }

   private:
    const Experts& of;
    const Routed& routed;
    const ExpertInputs x;
    uint8_t* const inner;  // [tokens * top_k, inner_stride]
    int64_t gathered = -1;  // index of the copied rows of `routed`
    uint8_t* beside = nullptr;

    void gather(int64_t block) {
        static thread_local Room room;
        const Routed::Rows& rows = routed.rows[block];
        gathered = block, beside = room.of<uint8_t>((rows.end - rows.first) * x.stride);
        for (int64_t row = rows.first; row < rows.end; ++row)
            std::memcpy(beside + (row - rows.first) * x.stride, x.at(routed.tokens[row]), (size_t)x.stride);
    }
};

// The weighted sum over experts of their outputs. An item has a few columns of all tokens, and takes the experts in
// order: a token's sum does not depend on the others.
struct DownPhase {
    const Experts& of;
    const Routed& routed;
    const uint8_t* inner;
    float* out;
    int64_t stride, tokens, threads;

    static constexpr int64_t WIDE = 8, FEW = FEW_ROWS;  // most tiles and rows whose sums stay in the cache

    int64_t tiles() const {
        int64_t tiles = WIDE;
        while (tiles > 2 && ceil_div(of.hidden / TILE, tiles) < 4 * threads) tiles -= 2;
        return tiles;
    }
    int64_t items() const { return ceil_div(of.hidden / TILE, tiles()); }

    void operator()(int64_t item) const {
        alignas(64) float sums[FEW * WIDE * TILE];
        const int64_t all = of.hidden / TILE, begin = item * tiles(), count = std::min(tiles(), all - begin);
        const int64_t width = count * TILE, column = begin * TILE;
        for (int64_t token = 0; token < tokens; ++token) std::fill_n(out + token * stride + column, width, 0.0f);
        for (const Routed::Rows& rows : routed.rows) {
            const int64_t tile = rows.expert * all + begin;
            for (int64_t first = rows.first, end; first < rows.end; first = end) {
                const bool expands = first >= rows.middle;
                end = std::min(first + FEW, expands ? rows.end : rows.middle);
                const Destination to{sums, width, of.down_bias, first * width + tile * TILE};
                const Prepared x{inner, of.inner_stride(), nullptr, expands && has_codes(*of.down)};
                multiply_tiles(*of.down, tile, tile + count, x, first, end, to);
                for (int64_t row = first; row < end; ++row) {
                    float* const sum = out + routed.tokens[row] * stride + column;
                    const vf factor = set1(of.weight_input ? 1.0f : routed.factors[row]);
                    const float* const from = sums + (row - first) * width;
                    for (int64_t i = 0; i < width; i += LANES) store(sum + i, fma(factor, load(from + i), load(sum + i)));
                }
            }
        }
    }
};

}  // namespace stentor
