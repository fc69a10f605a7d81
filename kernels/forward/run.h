// A program while it runs: its memory, and the form in which each row of a step meets codes.
#pragma once

#include "../attention/attend.h"
#include "../moe/experts.h"
#include "program.h"
#include "team.h"

namespace stentor {

constexpr int64_t ROWS_APART = 8;  // per item of a row-wise phase with many rows

// The rows of a step's attention, shared by all layers of one shape.
struct Queries {
    std::vector<attention::Item> items;
    std::vector<int64_t> first_part;  // for each item that is cut into parts: index of its first part
    std::vector<std::pair<int64_t, int64_t>> parts;  // (item, part)
};

// The rows of a step with adapters, shared by all products.
struct Adapted {
    std::vector<low_rank::Span> spans;    // items of work, each of rows of one form
    std::vector<low_rank::Span> of_few;  // the same, for each FEW_ROWS rows that are gated together
    std::vector<int64_t> first_of_few;  // index of the first span of each
    std::vector<float> low;  // A times the input, for each row with an adapter
    int64_t low_stride = 0;
};

// The rows of a step that meet codes of dense layers in one form.
struct Part {
    int64_t first, count;
    bool expands;
    int64_t gated = 1;  // rows that GATE_UP_ACTIVATE takes at a time
    int64_t few = 0;    // the number of FEW_ROWS rows that are gated together before its own
};

struct Run {
    const Instruction* instructions;
    int64_t count;
    const Buffer* buffers;
    uint8_t* const* prepared;
    Batch batch;
    int64_t threads;
    std::vector<Queries> queries;  // of each attending instruction
    std::vector<int64_t> queries_of;       // instruction → index above, or -1
    std::vector<std::vector<float>> partial;  // for the parts of each queries: max, total and sums of every query head
    Routed routed;  // of the running MOE
    std::vector<int64_t> gate_up_items;  // of each instruction, once known
    Adapted adapted;
    Part parts[2];  // those that multiply codes directly, then those that expand them

    Run(const Bound& program, const Batch& batch, int64_t threads)
        : instructions(program.instructions), count(program.count), buffers(program.buffers),
          prepared(program.prepared), batch(batch), threads(threads), queries_of(count, -1), gate_up_items(count),
          parts{{0, batch.coded, false}, {batch.coded, batch.tokens - batch.coded, true}} {}

    // Returns the rows of a part as products with a weight take them; they count from its first one.
    Prepared input(int64_t slot, const Packed& w, const Part& part) const {
        const int64_t stride = prepared_stride(activation_format_of(w.kind), w.inputs);
        return {prepared[slot] + part.first * stride, stride, nullptr, part.expands && has_codes(w)};
    }
};

static inline float* scratch_row(int64_t width) {
    static thread_local std::vector<float> row;
    if ((int64_t)row.size() < width) row.resize(width);
    return row.data();
}

// Items of a few rows each, so that all threads are busy if there are enough rows.
template <class Body>
static inline void by_rows(const Run& run, Team::Walk& walk, const Body& body) {
    const int64_t tokens = run.batch.tokens;
    const int64_t rows = std::max<int64_t>(1, std::min(ROWS_APART, tokens / (2 * run.threads)));
    walk.phase(ceil_div(tokens, rows), [&](int64_t item) {
        const int64_t end = std::min((item + 1) * rows, tokens);
        for (int64_t t = item * rows; t < end; ++t) body(t);
    });
}

}  // namespace stentor
