// The products of a program: dense ones, gated ones, those of experts, and what adapters add.
//
// Rows of both forms meet a block of weights one after the other, so that weights are read from memory once.
#pragma once

#include "run.h"

namespace stentor {

// Multiplies the input of all rows with adapters by A, and then calls then(adapter, span). Returns whether there are
// such rows.
template <class Then>
static inline bool shrink_adapted(Run& run, const Instruction& op, ActivationFormat format, int64_t width,
                                  Team::Walk& walk, const Then& then) {
    Adapted& adapted = run.adapted;
    if (!op.adapters || adapted.low_stride == 0) return false;
    const Prepared x{run.prepared[op.scratch_slot], prepared_stride(format, width)};
    walk.phase((int64_t)adapted.spans.size(), [&](int64_t item) {
        const low_rank::Span& span = adapted.spans[item];
        const low_rank::Adapter* const adapter = op.adapters->at(span.slot);
        if (!adapter) return;
        const int64_t* const rows = run.batch.adapted.rows;
        const ActivationFormat taken = taken_as(format, rows[span.first] >= run.batch.coded);
        low_rank::shrink(*adapter, span, rows, x, taken, adapted.low.data(), adapted.low_stride);
        then(*adapter, span);
    });
    return true;
}

// B follows A directly if there are enough spans for all threads: an adapter's weights are then read in one go.
static inline void add_low_rank(Run& run, const Instruction& op, Team::Walk& walk) {
    const Adapted& adapted = run.adapted;
    const Buffer& to = run.buffers[op.dst];
    const int64_t items = (int64_t)adapted.spans.size();
    const bool at_once = items >= 4 * run.threads;
    const auto add = [&](const low_rank::Adapter& adapter, const low_rank::Span& span, int64_t piece, int64_t pieces) {
        const auto row = [&](int64_t place) { return to.rows + run.batch.adapted.rows[place] * to.stride; };
        low_rank::expand_piece(adapter, piece, pieces, span, adapted.low.data(), adapted.low_stride, row);
    };
    const auto then = [&](const low_rank::Adapter& adapter, const low_rank::Span& span) {
        if (at_once) add(adapter, span, 0, 1);
    };
    if (!shrink_adapted(run, op, (ActivationFormat)op.activation_format, op.width, walk, then) || at_once) return;
    const int64_t pieces = ceil_div(4 * run.threads, items);
    walk.phase(items * pieces, [&](int64_t item) {
        const low_rank::Span& span = adapted.spans[item / pieces];
        if (const low_rank::Adapter* adapter = op.adapters->at(span.slot)) add(*adapter, span, item % pieces, pieces);
    });
}

// Adds the adapters to block number `block` of gate and up, for the few rows from number `first` of a part on.
static inline void add_to_gate_up(const Run& run, const Instruction& op, const Part& part, int64_t first, int64_t block,
                                  float* both) {
    constexpr int64_t APART = 2 * BLOCK;
    const Adapted& adapted = run.adapted;
    const int64_t few = part.few + first / part.gated * ceil_div(part.gated, FEW_ROWS) + first % part.gated / FEW_ROWS;
    const int64_t begin = block * BLOCK;
    for (int64_t i = adapted.first_of_few[few]; i < adapted.first_of_few[few + 1]; ++i) {
        const low_rank::Span& span = adapted.of_few[i];
        const low_rank::Adapter* const adapter = op.adapters->at(span.slot);
        if (!adapter) continue;
        for (int64_t half = 0; half < 2; ++half)
            low_rank::expand_columns(
                *adapter, half * op.width + begin, half * op.width + begin + BLOCK, span, adapted.low.data(),
                adapted.low_stride, [&](int64_t place) {
                    return both + (run.batch.adapted.rows[place] - part.first - first) * APART + half * BLOCK;
                });
    }
}

// Lays out the work of rows with adapters. Returns WRONG_ADAPTED if such a row is not in the batch, else 0.
static inline int64_t lay_out_adapted(Run& run) {
    const low_rank::Rows& rows = run.batch.adapted;
    // of a step's samples none may have an adapter, where rows with one are in the middle of their prompts
    if (rows.groups == 0 || rows.starts[rows.groups] == 0) return 0;
    for (int64_t place = rows.starts[0]; place < rows.starts[rows.groups]; ++place)
        if (rows.rows[place] < 0 || rows.rows[place] >= run.batch.tokens) return WRONG_ADAPTED;
    Adapted& adapted = run.adapted;
    bool gates = false;
    for (int64_t i = 0; i < run.count; ++i) {
        const Instruction& op = run.instructions[i];
        if (!op.adapters) continue;
        gates |= op.kind == GATE_UP_ACTIVATE;
        for (int64_t g = 0; g < rows.groups; ++g)
            if (const low_rank::Adapter* adapter = op.adapters->at(rows.slots[g]))
                adapted.low_stride = std::max(adapted.low_stride, low_rank::padded_ranks(*adapter));
    }
    if (adapted.low_stride == 0) return 0;
    const int64_t count = rows.starts[rows.groups];
    adapted.low.resize((size_t)(count * adapted.low_stride));
    for (const low_rank::Span& span : low_rank::spans_of(rows, low_rank::rows_of_span(count, run.threads))) {
        const int64_t* const of = rows.rows;
        const int64_t cut = std::lower_bound(of + span.first, of + span.last, run.batch.coded) - of;
        if (span.first < cut) adapted.spans.push_back({span.slot, span.first, cut});
        if (cut < span.last) adapted.spans.push_back({span.slot, cut, span.last});
    }
    if (!gates) return 0;
    for (Part& part : run.parts) {
        part.few = (int64_t)adapted.first_of_few.size();
        for (int64_t first = 0; first < part.count; first += part.gated)
            for (int64_t few = first; few < std::min(first + part.gated, part.count); few += FEW_ROWS) {
                const int64_t end = std::min({few + FEW_ROWS, first + part.gated, part.count});
                adapted.first_of_few.push_back((int64_t)adapted.of_few.size());
                low_rank::spans_between(rows, part.first + few, part.first + end, &adapted.of_few);
            }
    }
    adapted.first_of_few.push_back((int64_t)adapted.of_few.size());
    return 0;
}

// Multiplies the weights of a block of columns by as many rows as the L2 cache holds, a few at a time.
static inline void gate_up_activate(Run& run, const Instruction& op, Team::Walk& walk) {
    const ActivationFormat format = (ActivationFormat)op.activation_format;
    const bool adapts = shrink_adapted(run, op, activation_format_of(op.weight.kind), op.weight.inputs, walk,
                                       [](const low_rank::Adapter&, const low_rank::Span&) {});
    const int64_t bytes = prepared_stride(format, op.width);
    const auto multiply_block = [&](const Part& part, int64_t block, int64_t first) {
        const GateUp pair{&op.weight, &op.second_weight, op.bias, op.second_bias, 0, 0, op.width, op.activation,
                          taken_as(format, part.expands), nullptr};
        const auto add = [&](int64_t begin, float* both) { add_to_gate_up(run, op, part, begin, block, both); };
        const auto call = [](const void* adding, int64_t begin, float* both) {
            (*static_cast<decltype(&add)>(adding))(begin, both);
        };
        gate_up_block(pair, block, run.input(0, op.weight, part), first, std::min(first + part.gated, part.count),
                      run.prepared[1] + part.first * bytes, bytes, adapts ? +call : nullptr, &add);
    };
    const Part &front = run.parts[0], &back = run.parts[1], &most = back.count ? back : front;
    const int64_t blocks = ceil_div(op.width, BLOCK);
    walk.phase(ceil_div(most.count, most.gated) * blocks, [&](int64_t item) {
        const int64_t block = item % blocks;
        for (int64_t first = 0; back.count && item < blocks && first < front.count; first += front.gated)
            multiply_block(front, block, first);
        multiply_block(most, block, item / blocks * most.gated);
    });
}

static inline void multiply(Run& run, const Instruction& op, Team::Walk& walk) {
    const Buffer& buffer = run.buffers[op.dst];
    const Part whole{0, run.batch.tokens, false}, none{0, 0, false};
    const bool both = has_codes(op.weight) && run.parts[1].count;
    const Part &front = both ? run.parts[0] : none, &back = both ? run.parts[1] : whole;
    const auto to = [&](const Part& part) {
        return Destination{buffer.rows + part.first * buffer.stride + op.column, buffer.stride, op.bias};
    };
    const Prepared codes = run.input(op.scratch_slot, op.weight, front), x = run.input(op.scratch_slot, op.weight, back);
    const Cut cut(op.weight, x, back.count, run.threads);
    const int64_t some = rows_in_cache(codes.stride);
    walk.phase(cut.items(), [&](int64_t item) {
        for (int64_t row = 0; item < cut.tile_blocks && row < front.count; row += some)
            multiply_tiles(op.weight, item * cut.tiles, std::min((item + 1) * cut.tiles, ceil_div(op.weight.outputs, TILE)),
                           codes, row, std::min(row + some, front.count), to(front));
        multiply_item(op.weight, cut, item, x, back.count, to(back));
    });
}

// The number of items of each phase is kept: a late thread may read it after the tokens of a later instruction have
// been sorted.
static inline void mix_experts(Run& run, int64_t index, Team::Walk& walk) {
    const Instruction& op = run.instructions[index];
    const Batch& batch = run.batch;
    const Buffer &from = run.buffers[op.src], &to = run.buffers[op.dst];
    const int64_t tokens = batch.tokens, top_k = op.router.top_k;
    const Experts experts{&op.weight, &op.second_weight, op.bias,       op.second_bias,
                          op.width,   op.weight.inputs,  op.activation, op.weight_input};
    Routed& routed = run.routed;
    by_rows(run, walk, [&](int64_t t) {
        route_row(op.router, from.rows + t * from.stride + op.column, routed.experts.data() + t * top_k,
                  routed.weights.data() + t * top_k);
    });
    const int64_t stride = prepared_stride(activation_format_of(op.weight.kind), op.weight.inputs);
    const int64_t apart = has_codes(op.weight) ? batch.coded_experts : batch.coded;
    const ExpertInputs x{run.prepared[0], stride, run.prepared[2], batch.coded, apart};
    GateUpPhase gate_up(experts, routed, x, run.prepared[1]);
    walk.phase(1, [&](int64_t) {
        routed.sort(tokens, top_k, op.router.experts, experts.have_codes() ? batch.coded_experts : tokens);
        run.gate_up_items[index] = gate_up.items();
    });
    walk.phase(run.gate_up_items[index], [&](int64_t item) { gate_up(item); });
    const DownPhase down{experts, routed, run.prepared[1], to.rows, to.stride, tokens, run.threads};
    walk.phase(down.items(), down);
}

}  // namespace stentor
