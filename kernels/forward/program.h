// A model's forward pass as a list of instructions over numbered buffers of float rows, one row a token.
//
// program.py builds it and reference.py says what each instruction means; the layouts below mirror program.py's.
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
    ROTATE = 5,    // src = q | k | v: q and k normed (if weights are given) and turned, q in place, k and v to the cache
    ATTEND = 6,    // dst = attention of src's queries over the cache
    ACTIVATE = 7,  // src = gate | up: prepared = format(act(gate) * up); or src = gate: format(act(gate))
    // prepared[1] = format(act(prepared[0] * weight + bias) * (prepared[0] * second_weight + second_bias)), where adapters
    // add to the products as ADD_LOW_RANK does
    GATE_UP_ACTIVATE = 8,
    MOE = 9,  // src has logits from `column`: dst = weighted sum of the chosen experts of prepared[0]
    ADD_LOW_RANK = 10,  // dst += what the adapters of rows make of prepared[scratch_slot], `width` long
};

enum CacheType : int64_t { F32_CACHE = 0, BF16_CACHE = 1, INT8_CACHE = 2, FLOAT8_CACHE = 3 };

constexpr int64_t MAX_PHASES = 4;  // of one instruction

struct Instruction {
    int64_t kind, src, dst, add, activation_format;
    int64_t column, width, groups, activation, scratch_slot;
    int64_t phases;  // that it declares; a program is refused where one declares fewer than its kind may run
    int64_t heads, kv_heads, dim, half, window, blocks, block_size, cache_type, table_rows, group;
    int64_t centred, gated, interleaved, turned_first;
    double scale, eps, softcap;
    const float *norm, *second_norm, *bias, *second_bias, *cos, *sin, *sinks, *query_scales;
    void *k_cache, *v_cache;
    float *k_scales, *v_scales;  // of codes: of int8 by token and head, of float8 by head
    Packed weight, second_weight;
    Router router;
    int64_t weight_input;
    const low_rank::Slots* adapters;  // null: nothing may be added
};

// Phases that an instruction may run; 0: it is of no kind.
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

// `slots` and `tables` are those of all groups of layers, one after another: an instruction says whose it takes.
// Tokens [0, coded) multiply codes as they are, and those behind multiply what codes stand for (linear_packed/expand.h):
// a sequence is in one of the two.
struct Batch {
    int64_t tokens;
    const int64_t *ids, *positions, *slots;
    int64_t sequences;
    const int32_t *query_start, *seq_lens, *tables;
    int64_t table_width;
    low_rank::Rows adapted;  // the rows that have adapters
    int64_t coded;
    int64_t slot_stride, table_stride;  // numbers from one group's to the next one's

    const int64_t* slots_of(int64_t group) const { return slots + group * slot_stride; }
    const int32_t* tables_of(int64_t group) const { return tables + group * table_stride; }
};

// A program with its memory: `prepared` is what the next linears take, the second slot what a GATE_UP_ACTIVATE leaves,
// or a MOE has between its products; `prepared_bytes` are those of a row at most.
struct Bound {
    const Instruction* instructions;
    int64_t count;
    const Buffer* buffers;
    int64_t buffer_count;
    uint8_t* prepared[2];
    int64_t prepared_bytes[2];
};

// What is known of every slot: its tokens, and its block table of each group of layers, those of one after another.
struct Slots {
    const int64_t* tokens;
    int64_t token_stride;
    const int32_t* blocks;
    int64_t block_stride;
    int64_t slots, block_size, groups;
};

// The work of one row in a step: tokens at positions [start, start + count) of a slot, and logits of the last `sample`,
// with the adapter of a slot of adapters, below 0 for none.
struct Work {
    int64_t slot, start, count, sample, adapter;
};

constexpr int64_t WRONG_SEQUENCES = 4;
constexpr int64_t NO_MEMORY = 6;     // to plan the batch; nothing is written then
constexpr int64_t WRONG_PHASES = 7;  // an instruction of no kind, or with other phases than it declares; the same
constexpr int64_t WRONG_ADAPTED = 8;  // a row with an adapter that is not in the batch; the same

// Returns 0, or what is wrong (nothing is written then): 1 a token id outside the vocabulary, 2 a position outside the
// rotary table, 3 a slot outside the cache, 4 a sequence whose lengths or blocks lead outside, WRONG_PHASES or
// WRONG_ADAPTED. Throws std::bad_alloc. native.cpp
int64_t run_program(const Bound& program, const Batch& batch, int64_t threads);

// How an instruction's products take the input that is kept as `format` otherwise.
inline ActivationFormat taken_as(ActivationFormat format, bool expands) {
    return expands && format == ActivationFormat::INT8 ? ActivationFormat::BF16 : format;
}

}  // namespace stentor
