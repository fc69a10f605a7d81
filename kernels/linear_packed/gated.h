// Gates: a row of gate and up by itself, and both products of a block of columns, gated on their way. Defined in
// native_gated.cpp.
#pragma once

#include "multiply.h"

namespace stentor {

// to = act(gate) * up, or act(gate) where `up` is null. `format` is what the row is brought into next; `to` may be `gate`.
void activate_row(const float* gate, const float* up, int64_t width, int64_t activation, ActivationFormat format, float* to);

// Two products whose outputs are gated: tiles [tile, ...) of each weight, as many as `width` outputs need. Or one that is
// activated alone.
struct GateUp {
    const Packed *gate, *up;           // without `up` there is one
    const float *gate_bias, *up_bias;  // of all outputs of the weight, or null
    int64_t gate_tile, up_tile;
    int64_t width, activation;
    ActivationFormat format;  // that is made
    const float* factors;     // of each row: products are multiplied by it before the bias is added; null: none

    int64_t blocks() const { return ceil_div(width, BLOCK); }
};

// Rows of x, of so many bytes, that meet the weights of a block of columns, which stay in the second-level cache. Tiles
// take more: they load weights into the first-level cache for all of them, a stretch at a time.
constexpr int64_t GATED_ROWS = 264;
static inline int64_t rows_gated(int64_t bytes) {
    return tiles::form() == tiles::Form::NONE ? GATED_ROWS : std::min<int64_t>(512, rows_in_cache(bytes));
}

// Block number `block` of 32 columns for rows [first, end) of x. Both products of a few rows stand in the first-level
// cache until they are gated and brought into their form: of the result's rows, `stride` bytes apart, that block is
// written, and nothing else. add(adding, first, both) gets these few rows before they are gated: of each 32 columns of
// gate, and as many of up.
using AddFunction = void (*)(const void* adding, int64_t first, float* both);
void gate_up_block(const GateUp& of, int64_t block, const Prepared& x, int64_t first, int64_t end, uint8_t* out,
                   int64_t stride, AddFunction add = nullptr, const void* adding = nullptr);

}  // namespace stentor
