// Prompts multiply codes as weights of bfloat16 (EXPANDED_FROM of engine/worker/rows/rows.py): on the processor's tiles
// such products of many rows take a third of the time, and writing the weights out, some tiles for as many rows as meet
// them, is little beside them.
#pragma once

#include "packed.h"

#include <cstdlib>

namespace stentor {

static inline bool has_codes(const Packed& w) { return w.kind != F32 && w.kind != BF16; }

// Returns the format in which products take an input that is otherwise kept as `format`. Rows are as long in either.
static inline ActivationFormat taken_as(ActivationFormat format, bool expands) {
    return expands && format == ActivationFormat::INT8 ? ActivationFormat::BF16 : format;
}

// Writes blocks [begin, end) of a tile of a weight with codes as a weight of bfloat16 has them. native_expand.cpp
#if defined(STENTOR_TILES)
void expand_blocks(const Packed& w, int64_t tile, int64_t begin, int64_t end, uint8_t* to);
#endif

// Tiles [tile, last) of a weight with codes as a weight of bfloat16 by themselves, in room of this thread that is theirs until
// the next ones are written to the same `place`, 0 or 1. native_expand.cpp
#if defined(STENTOR_TILES)
Packed expanded(const Packed& w, int64_t tile, int64_t last, int place);
#else
// Without tiles no step expands codes (stentor_expands_codes), and what does it is not compiled.
static inline Packed expanded(const Packed&, int64_t, int64_t, int) { std::abort(); }
#endif

}  // namespace stentor
