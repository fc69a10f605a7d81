// Steps of many rows multiply codes as weights of bfloat16: on the processor's tiles such products take a third of the time,
// and writing the weights out once is little beside many rows.
#pragma once

#include "multiply.h"

namespace stentor {

// Rows of a step from which it pays. A constant, since results depend on it.
constexpr int64_t EXPANDED_FROM = 128;
constexpr int64_t EXPANDED_BYTES = 4 << 20;  // at a time

static inline bool has_codes(const Packed& w) { return w.kind != F32 && w.kind != BF16; }

// Tile number `tile` of a weight with codes as a tile of a weight of bfloat16. native_expand.cpp
void expand_tile(const Packed& w, int64_t tile, uint8_t* to);

// The tiles [tile, ...) of a weight, `count` at most, once they have been expanded to `codes`.
static inline Packed expanded(const Packed& w, int64_t tile, int64_t count, const uint8_t* codes) {
    const int64_t outputs = std::min(w.outputs - tile * TILE, count * TILE);
    return {BF16, 0, outputs, w.inputs, 1, codes, nullptr, nullptr, nullptr, nullptr};
}

}  // namespace stentor
