// Activations of rows, and products gated on their way: see gated.h. Each activation has a loop of its own, and programs and
// experts share them.
#include "gated.h"

#include "../activation/gates.h"
#include "expand.h"

namespace stentor {
namespace {

template <class Act, bool GATED>
struct Gate {
    static vf apply(vf gate, vf up) { return GATED ? Act::apply(gate) * up : Act::apply(gate); }
};

template <class Act>
static inline void gate_row(const float* gate, const float* up, int64_t width, float* to) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) store(to + i, Act::apply(load(gate + i), load(up + i)));
    if (i < width) {
        const int64_t n = width - i;
        store_part(to + i, Act::apply(load_part(gate + i, n), load_part(up + i, n)), n);
    }
}

template <bool GATED>
static inline void activate_row_as(const float* gate, const float* up, int64_t width, int64_t activation,
                                   ActivationFormat format, float* to) {
    switch (activation) {
        case 0:
            return format != ActivationFormat::F32 ? gate_row<Gate<RoughSilu, GATED>>(gate, up, width, to)
                                                   : gate_row<Gate<Silu, GATED>>(gate, up, width, to);
        case 1: return gate_row<Gate<GeluTanh, GATED>>(gate, up, width, to);
        case 2: return gate_row<Gate<Gelu, GATED>>(gate, up, width, to);
        case 3: return gate_row<Gate<Relu2, GATED>>(gate, up, width, to);
        case 4: return gate_row<Gate<QuickGelu, GATED>>(gate, up, width, to);
        case 5: return gate_row<Gate<Relu, GATED>>(gate, up, width, to);
        case 6: return gate_row<SwigluOai>(gate, up, width, to);
        case 7: return gate_row<Swiglu10>(gate, up, width, to);
        case 8: return gate_row<Silu7>(gate, up, width, to);
        default: return gate_row<Situ>(gate, up, width, to);
    }
}

static inline void weigh_row(float* row, float factor, const float* bias, int64_t width) {
    for (int64_t i = 0; i < width; ++i) row[i] = row[i] * factor + (bias ? bias[i] : 0.0f);
}

// A weight of a block's two, and its tiles that are the block's.
struct Half {
    const Packed* w;
    const float* bias;  // of all outputs, or null
    int64_t tile;

    const float* bias_here() const { return bias ? bias + tile * TILE : nullptr; }
};

}  // namespace

void activate_row(const float* gate, const float* up, int64_t width, int64_t activation, ActivationFormat format, float* to) {
    if (up)
        activate_row_as<true>(gate, up, width, activation, format, to);
    else
        activate_row_as<false>(gate, gate, width, activation, format, to);
}

void gate_up_block(const GateUp& of, int64_t block, const Prepared& x, int64_t first, int64_t end, uint8_t* out,
                   int64_t stride, AddFunction add, const void* adding) {
    constexpr int64_t APART = 2 * BLOCK, FEW = FEW_ROWS;
    const int64_t columns = std::min(BLOCK, of.width - block * BLOCK), tiles = ceil_div(columns, TILE);
    const int count = of.up ? 2 : 1;
    Half halves[2] = {{of.gate, of.gate_bias, of.gate_tile + block * (BLOCK / TILE)},
                      {of.up ? of.up : of.gate, of.up_bias, of.up_tile + block * (BLOCK / TILE)}};
    // what meets more than a few rows is written out once for all of them
    const bool at_once = x.expands && end - first > FEW;
    Packed brain[2];
    for (int p = 0; at_once && p < count; ++p) {
        Half& half = halves[p];
        brain[p] = expanded(*half.w, half.tile, half.tile + tiles, p);
        half = {&brain[p], half.bias_here(), 0};
    }
    const Prepared inputs = at_once ? x.unexpanded() : x;
    alignas(64) float both[FEW * APART];
    for (; first < end; first += FEW) {
        const int64_t last = std::min(first + FEW, end);
        const auto to_half = [&](int p) {
            return Destination{both + p * BLOCK, APART, of.factors ? nullptr : halves[p].bias,
                               first * APART + halves[p].tile * TILE};
        };
        const Destination to[2] = {to_half(0), to_half(1)};
        const Product products[2] = {{*halves[0].w, halves[0].tile, halves[0].tile + tiles, to[0]},
                                     {*halves[1].w, halves[1].tile, halves[1].tile + tiles, to[1]}};
        if (!multiply_on_tiles(products, count, inputs, first, last))
            for (int p = 0; p < count; ++p)
                multiply_tiles(products[p].w, products[p].tile, products[p].last, inputs, first, last, products[p].to);
        for (int p = 0; of.factors && p < count; ++p)
            for (int64_t r = first; r < last; ++r)
                weigh_row(both + (r - first) * APART + p * BLOCK, of.factors[r], halves[p].bias_here(), columns);
        if (add) add(adding, first, both);
        for (int64_t r = first; r < last; ++r) {
            float* const row = both + (r - first) * APART;
            activate_row(row, of.up ? row + BLOCK : nullptr, columns, of.activation, of.format, row);
            prepare_block(row, columns, of.format, block, out + r * stride);
        }
    }
}

}  // namespace stentor
