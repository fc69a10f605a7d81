// Runs a whole step: lays out its batch from its rows' work, runs one program over it, and another over the
// rows that need logits.
#include "../linear_packed/expand.h"
#include "parallel.h"
#include "program.h"

#include <cstring>
#include <new>
#include <numeric>
#include <vector>

// sampling/native.cpp
STENTOR_EXPORT void stentor_sampling_argmax(const float* logits, int64_t batch, int64_t vocabulary, int64_t* tokens,
                                            int64_t threads);

namespace stentor {
namespace {

// The rows of a step with adapters, sorted by adapter.
struct Groups {
    std::vector<int64_t> order, slots, starts, rows;

    // tokens_of(r): the first of row r's tokens, and one past the last.
    template <class Tokens>
    low_rank::Rows fill(const Work* work, int64_t count, const Tokens& tokens_of) {
        order.clear(), slots.clear(), rows.clear(), starts.assign(1, 0);
        for (int64_t r = 0; r < count; ++r)
            if (work[r].adapter >= 0) order.push_back(r);
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t a, int64_t b) { return work[a].adapter < work[b].adapter; });
        for (const int64_t r : order) {
            if (slots.empty() || slots.back() != work[r].adapter) {
                slots.push_back(work[r].adapter);
                starts.push_back(starts.back());
            }
            const auto [first, end] = tokens_of(r);
            for (int64_t token = first; token < end; ++token) rows.push_back(token);
            starts.back() = (int64_t)rows.size();
        }
        return {(int64_t)slots.size(), slots.data(), starts.data(), rows.data()};
    }
};

// The arrays of a batch, which grow and are kept.
struct Layout {
    std::vector<int64_t> ids, positions, slots, last;
    std::vector<int32_t> query_start, seq_lens, tables, ends_start, ends_lens, ends_tables;
    std::vector<int64_t> ends_first;  // for each row: index of its first token among those that need logits
    Groups adapted, ends_adapted;
    int64_t groups = 1;

    // Lays the rows of a step end to end. Returns false if one exceeds its slot.
    bool fill(const Slots& of, const Work* work, int64_t rows) {
        ids.clear(), positions.clear(), slots.clear(), last.clear(), ends_first.assign(1, 0);
        query_start.assign(1, 0), seq_lens.clear();
        int64_t width = 0;
        for (int64_t r = 0; r < rows; ++r) {
            const Work& w = work[r];
            if (w.slot < 0 || w.slot >= of.slots || w.start < 0 || w.count < 1) return false;
            if (w.sample < 0 || w.sample > w.count) return false;
            if (w.start > of.token_stride || w.count > of.token_stride - w.start) return false;
            const int64_t columns = ceil_div(w.start + w.count, of.block_size);
            if (columns > of.block_stride) return false;
            width = std::max(width, columns);
        }
        groups = of.groups;
        tables.resize(groups * rows * width);
        for (int64_t r = 0; r < rows; ++r) {
            const Work& w = work[r];
            const int64_t* tokens = of.tokens + w.slot * of.token_stride;
            for (int64_t at = w.start; at < w.start + w.count; ++at) {
                ids.push_back(tokens[at]);
                positions.push_back(at);
            }
            query_start.push_back((int32_t)ids.size());
            seq_lens.push_back((int32_t)(w.start + w.count));
            for (int64_t back = w.sample; back > 0; --back) last.push_back((int64_t)ids.size() - back);
            ends_first.push_back((int64_t)last.size());
        }
        for (int64_t g = 0; g < groups; ++g)
            for (int64_t r = 0; r < rows; ++r) {
                const Work& w = work[r];
                const int32_t* blocks = of.blocks + (g * of.slots + w.slot) * of.block_stride;
                for (int64_t at = w.start; at < w.start + w.count; ++at)
                    slots.push_back((int64_t)blocks[at / of.block_size] * of.block_size + at % of.block_size);
                std::copy_n(blocks, std::min(width, of.block_stride), tables.begin() + (g * rows + r) * width);
            }
        return true;
    }

    // Returns the tokens that need logits, each as a sequence of its own, with the forms of their rows.
    Batch ends(const Work* work, int64_t coded, int64_t coded_experts) {
        const int64_t count = (int64_t)last.size(), rows = (int64_t)seq_lens.size();
        const int64_t width = table_width();
        ends_start.resize(count + 1), ends_lens.clear(), ends_tables.clear();
        std::iota(ends_start.begin(), ends_start.end(), 0);
        for (int64_t g = 0; g < groups; ++g)
            for (int64_t r = 0; r < rows; ++r) {
                const auto line = tables.begin() + (g * rows + r) * width;
                for (int64_t back = work[r].sample; back > 0; --back) {
                    if (g == 0) ends_lens.push_back(seq_lens[r] - (int32_t)back + 1);
                    ends_tables.insert(ends_tables.end(), line, line + width);
                }
            }
        return {count, nullptr, nullptr, nullptr, count, ends_start.data(), ends_lens.data(), ends_tables.data(), width,
                adapted_ends(work), ends_first[coded], ends_first[coded_experts], 0, count * width};
    }

    // Returns the rows with adapters among the tokens that need logits.
    low_rank::Rows adapted_ends(const Work* work) {
        return ends_adapted.fill(work, (int64_t)seq_lens.size(),
                                 [&](int64_t r) { return std::pair(ends_first[r], ends_first[r + 1]); });
    }

    // Returns all tokens as a batch. The first `coded` rows multiply codes directly, the first `coded_experts` those of
    // experts.
    Batch batch(const Work* work, int64_t rows, int64_t coded, int64_t coded_experts) {
        const low_rank::Rows of = adapted.fill(
            work, rows, [&](int64_t r) { return std::pair<int64_t, int64_t>(query_start[r], query_start[r + 1]); });
        const int64_t tokens = (int64_t)ids.size(), width = table_width();
        return {tokens, ids.data(), positions.data(), slots.data(), rows, query_start.data(), seq_lens.data(),
                tables.data(), width, of, query_start[coded], query_start[coded_experts], tokens, rows * width};
    }

    int64_t table_width() const {
        return seq_lens.empty() ? 0 : (int64_t)tables.size() / (groups * (int64_t)seq_lens.size());
    }
};

// Returns one past the last instruction that writes to the cache: later ones only affect the rows
// themselves.
int64_t end_of_writes(const Bound& program) {
    int64_t end = program.count;
    while (end > 0 && program.instructions[end - 1].kind != ROTATE) --end;
    return end;
}

// Moves the rows `from`, which rise, to the front of all that the instructions from number `at` on may read.
void gather(const Bound& program, int64_t at, const std::vector<int64_t>& from) {
    const auto move = [&](uint8_t* rows, int64_t bytes) {
        for (size_t i = 0; i < from.size(); ++i)
            if (from[i] != (int64_t)i) std::memcpy(rows + (int64_t)i * bytes, rows + from[i] * bytes, (size_t)bytes);
    };
    std::vector<int64_t> buffers;
    bool made[3] = {};
    for (int64_t i = at; i < program.count; ++i) {
        const Instruction& op = program.instructions[i];
        if (op.kind == ADD_LOW_RANK) continue;  // products before it have its input and output
        const bool multiplies = op.kind == LINEAR || op.kind == GATE_UP_ACTIVATE;
        if (!multiplies) buffers.push_back(op.src);  // a MOE reads both
        if (op.kind == NORM_AND_QUANTIZE || op.kind == ADD) buffers.push_back(op.add);
        if ((multiplies || op.kind == MOE) && !made[op.scratch_slot]) {
            const int64_t stride = prepared_stride(activation_format_of(op.weight.kind), op.weight.inputs);
            move(program.prepared[op.scratch_slot], stride);
            made[op.scratch_slot] = true;
        }
        if (op.kind == MOE && has_codes(op.weight) && !made[2]) {
            move(program.prepared[2], prepared_stride(ActivationFormat::INT8, op.weight.inputs));
            made[2] = true;
        }
        if (op.kind == NORM_AND_QUANTIZE || op.kind == ACTIVATE) made[0] = made[2] = true;
        if (op.kind == GATE_UP_ACTIVATE || op.kind == MOE) made[1] = true;
    }
    std::sort(buffers.begin(), buffers.end());
    buffers.erase(std::unique(buffers.begin(), buffers.end()), buffers.end());
    for (const int64_t buffer : buffers)
        if (buffer >= 0) move((uint8_t*)program.buffers[buffer].rows, program.buffers[buffer].stride * 4);
}

}  // namespace
}  // namespace stentor

using namespace stentor;

// Runs a step: `body` over all tokens, then `head` over those that need logits. Copies buffer `residual` of the body to
// buffer `hidden` of the head, and writes the largest logits' indices in buffer `logits` to `best`. Instructions of the
// body after all writes to the cache run only for these tokens, unless `every` token's residual is wanted. The first
// `coded` rows multiply codes directly, as the head does, and the first `coded_experts` those of experts. All buffers
// must be large enough. Returns as stentor_run_program does, and 5 for work that exceeds its slot.
STENTOR_EXPORT int64_t stentor_run_step(const Bound* body, const Bound* head, int64_t residual, int64_t hidden,
                                        int64_t logits, int64_t width, const Slots* slots, const Work* work,
                                        int64_t rows, int64_t coded, int64_t coded_experts, int64_t every,
                                        int64_t* best, int64_t threads) try {
    static thread_local Layout layout;
    if (coded < 0 || coded > coded_experts || coded_experts > rows || !layout.fill(*slots, work, rows)) return 5;
    const Batch all = layout.batch(work, rows, coded, coded_experts);
    const std::vector<int64_t>& last = layout.last;
    const int64_t writes = end_of_writes(*body);
    const bool fewer = !every && (int64_t)last.size() < all.tokens && writes > 0;
    Bound first = *body, rest = *body;
    if (fewer) first.count = writes;
    rest.instructions += first.count, rest.count -= first.count;
    if (const int64_t fault = run_program(first, all, threads)) return fault;
    if (last.empty()) return 0;
    if (fewer) {
        gather(*body, first.count, last);
        if (const int64_t fault = run_program(rest, layout.ends(work, coded, coded_experts), threads)) return fault;
    }
    const Buffer &from = body->buffers[residual], &to = head->buffers[hidden];
    for (size_t i = 0; i < last.size(); ++i)
        std::copy_n(from.rows + (fewer ? (int64_t)i : last[i]) * from.stride, width, to.rows + (int64_t)i * to.stride);
    Batch batch = {};
    batch.tokens = batch.coded = batch.coded_experts = (int64_t)last.size();
    batch.adapted = layout.adapted_ends(work);
    if (const int64_t fault = run_program(*head, batch, threads)) return fault;
    const Buffer& scores = head->buffers[logits];
    stentor_sampling_argmax(scores.rows, batch.tokens, scores.stride, best, threads);
    return 0;
} catch (const std::bad_alloc&) {
    return NO_MEMORY;
}
