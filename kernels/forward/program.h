// A model's forward pass as a list of instructions over numbered buffers of float rows, one row per token.
//
// program.py builds it and reference.py defines each instruction; the layouts below mirror program.py's.
#pragma once

#include "../linear_packed/packed.h"
#include "../low_rank/low_rank.h"
#include "../moe/router.h"

namespace stentor {

enum Kind : int64_t {
    EMBED = 0,     // dst = scale * table[id] + second table[position] (if there is one)
    NORM_AND_QUANTIZE = 1,  // src += scale * add (if any); prepared = format(norm(src) or src)
    ADD = 2,       // src += scale * add
    NORM = 3,      // each of `groups` stretches of `width` from `column` in src is normed in place
    LINEAR = 4,    // dst[column...] = prepared[scratch_slot] * weight + bias
    ROTATE = 5,  // src = q | k | v: q and k normed (if weights are given) and rotated, q in place, k and v to the cache
    ATTEND = 6,    // dst = attention of src's queries over the cache
    ACTIVATE = 7,  // src = gate | up: prepared = format(act(gate) * up); or src = gate: format(act(gate))
    // prepared[1] = format(act(prepared[0] * weight + bias) * (prepared[0] * second_weight + second_bias)); adapters
    // add to the products as ADD_LOW_RANK does
    GATE_UP_ACTIVATE = 8,
    MOE = 9,  // src has logits from `column`: dst = weighted sum of the chosen experts of prepared[0]
    ADD_LOW_RANK = 10,  // dst += the adapters of rows applied to prepared[scratch_slot], `width` long
};

enum CacheType : int64_t { F32_CACHE = 0, BF16_CACHE = 1, INT8_CACHE = 2, FLOAT8_CACHE = 3 };

enum Reader : int64_t { DENSE = 1, EXPERTS = 2 };  // of what NORM_AND_QUANTIZE or ACTIVATE prepares

constexpr int64_t MAX_PHASES = 4;  // per instruction

struct Instruction {
    int64_t kind, src, dst, add, activation_format;
    int64_t column, width, groups, activation, scratch_slot;
    int64_t readers;  // the Readers of what it prepares
    int64_t phases;  // declared number; a program that declares fewer than its kind may run is refused
    int64_t heads, kv_heads, dim, half, window, blocks, block_size, cache_type, table_rows, group;
    int64_t centred, gated, interleaved, rotated_first;
    double scale, eps, softcap;
    const float *norm, *second_norm, *bias, *second_bias, *cos, *sin, *sinks, *slopes, *query_scales;
    void *k_cache, *v_cache;
    float *k_scales, *v_scales;  // scales of codes: int8 by token and head, float8 by head
    Packed weight, second_weight;
    Router router;
    int64_t weight_input;
    const low_rank::Slots* adapters;  // null: no adapter can add
};

// Returns the most phases that an instruction may run; 0 for an unknown kind.
inline int64_t phases_of(const Instruction& op) {
    switch (op.kind) {
        case MOE: return 4;
        case ATTEND: return 2;
        case ADD_LOW_RANK: return 2;
        case GATE_UP_ACTIVATE: return op.adapters ? 2 : 1;
        default: return op.kind < EMBED || op.kind > ADD_LOW_RANK ? 0 : 1;
    }
}

struct Buffer {
    float* rows;
    int64_t stride;  // floats
};

// `slots` and `tables` hold all groups of layers, one after another: an instruction names its group. Tokens [0, coded)
// multiply codes directly, later ones expand those of dense layers (linear_packed/expand.h), and from `coded_experts` on
// those of experts too.
struct Batch {
    int64_t tokens;
    const int64_t *ids, *positions, *slots;
    int64_t sequences;
    const int32_t *query_start, *seq_lens, *tables;
    int64_t table_width;
    low_rank::Rows adapted;  // the rows that have adapters
    int64_t coded, coded_experts;
    int64_t slot_stride, table_stride;  // numbers from one group to the next

    const int64_t* slots_of(int64_t group) const { return slots + group * slot_stride; }
    const int32_t* tables_of(int64_t group) const { return tables + group * table_stride; }
};

// A program with its memory. `prepared` is the input of the next linears; its second slot is the output of a
// GATE_UP_ACTIVATE, or what a MOE has between its products; its third is the input of a MOE for tokens that only dense
// layers expand codes for. `prepared_bytes` is the most per row.
struct Bound {
    const Instruction* instructions;
    int64_t count;
    const Buffer* buffers;
    int64_t buffer_count;
    uint8_t* prepared[3];
    int64_t prepared_bytes[3];
};

// The tokens of every slot, and its block tables, one group of layers after another.
struct Slots {
    const int64_t* tokens;
    int64_t token_stride;
    const int32_t* blocks;
    int64_t block_stride;
    int64_t slots, block_size, groups;
};

// The work of one row in a step: tokens at positions [start, start + count) of a slot, of which the last `sample` need
// logits, and the slot of its adapter, below 0 for none.
struct Work {
    int64_t slot, start, count, sample, adapter;
};

constexpr int64_t NO_MEMORY = 6;  // no memory to plan the batch; nothing is written then
constexpr int64_t WRONG_PHASES = 7;  // an unknown kind, or other phases than declared; nothing is written then
constexpr int64_t WRONG_FORMS = 9;  // forms of rows that are not in this order; nothing is written then
constexpr int64_t WRONG_ADAPTED = 8;  // a row with an adapter is not in the batch; nothing is written then

// Runs a program. Returns 0, or an error (nothing is written then): 1 a token id outside the vocabulary, 2 a position
// outside the rotary table, 3 a slot outside the cache, 4 a sequence whose lengths or blocks are out of range,
// WRONG_PHASES, WRONG_ADAPTED or WRONG_FORMS. Throws std::bad_alloc. Defined in native.cpp.
int64_t run_program(const Bound& program, const Batch& batch, int64_t threads);

}  // namespace stentor
