// A model's forward pass as a list of instructions over numbered buffers of float rows, one row a token.
//
// program.py builds it and reference.py says what each instruction means; the layouts below mirror program.py's.
#pragma once

#include "../linear_packed/packed.h"

namespace stentor {

enum Kind : int64_t {
    EMBED = 0,     // dst = scale * table[id]
    PREPARE = 1,   // src += scale * add (if any); prepared = form(norm(src) or src)
    ADD = 2,       // src += scale * add
    NORM = 3,      // each of `groups` stretches of `width` from `column` in src is normed in place
    LINEAR = 4,    // dst[column...] = prepared * weight + bias
    ROTATE = 5,    // src = q | k | v: q and k normed (if weights are given) and turned, q in place, k and v to the cache
    ATTEND = 6,    // dst = attention of src's queries over the cache
    ACTIVATE = 7,  // src = gate | up: prepared = form(act(gate) * up)
};

struct Instruction {
    int64_t kind, src, dst, add, form;
    int64_t column, width, groups, activation;
    int64_t heads, kv_heads, dim, half, window, blocks, block_size, brain_cache, table_rows;
    double scale, eps, softcap;
    const float *norm, *second_norm, *bias, *cos, *sin;
    void *k_cache, *v_cache;
    Packed weight;
};

struct Buffer {
    float* rows;
    int64_t stride;  // floats
};

struct Batch {
    int64_t tokens;
    const int64_t *ids, *positions, *slots;
    int64_t sequences;
    const int32_t *query_start, *seq_lens, *tables;
    int64_t table_width;
};

}  // namespace stentor
