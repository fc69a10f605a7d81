// Prompts multiply codes as weights of bfloat16 (EXPANDED_FROM of ../forward/__init__.py): on the processor's tiles such
// products of many rows take a third of the time, and writing the weights out, a stretch for as many rows as meet it, is
// little beside them.
#pragma once

#include "packed.h"

namespace stentor {

static inline bool has_codes(const Packed& w) { return w.kind != F32 && w.kind != BF16; }

// Blocks [begin, end) of a tile of a weight with codes, as they would lie in a weight of bfloat16; what stands for no input
// is not written. native_expand.cpp
void expand_blocks(const Packed& w, int64_t tile, int64_t begin, int64_t end, uint8_t* to);

}  // namespace stentor
