// Runs a program: all threads go through the phases of its instructions together.
#include "../attention/attend.h"
#include "../linear_packed/expand.h"
#include "../moe/experts.h"
#include "piece.h"
#include "rowwise.h"
#include "team.h"

#include <new>

namespace stentor {
namespace {

constexpr int64_t ROWS_APART = 8;  // per item of a row-wise phase with many rows

// The rows of a step's attention, shared by all layers of one shape.
struct Queries {
    std::vector<attention::Item> items;
    std::vector<int64_t> first_part;  // for each item that is cut into parts: index of its first part
    std::vector<std::pair<int64_t, int64_t>> parts;  // (item, part)
};

// The rows of a step with adapters, shared by all products.
struct Adapted {
    std::vector<low_rank::Span> spans;    // items of work
    std::vector<low_rank::Span> of_few;  // the same, for each FEW_ROWS rows that are gated together
    std::vector<int64_t> first_of_few;  // index of the first span of each
    std::vector<float> low;  // A times the input, for each row with an adapter
    int64_t low_stride = 0;
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
    bool expands;  // codes are multiplied as bfloat16 weights
    int64_t gated_bytes = BLOCK;  // of the longest input row of a GATE_UP_ACTIVATE

    Run(const Bound& program, const Batch& batch, int64_t threads, bool expands)
        : instructions(program.instructions), count(program.count), buffers(program.buffers),
          prepared(program.prepared), batch(batch), threads(threads), queries_of(count, -1), gate_up_items(count),
          expands(expands) {}

    ActivationFormat taken(ActivationFormat format) const { return taken_as(format, expands); }
    // Returns the prepared input of products with a weight.
    Prepared input(int64_t slot, const Packed& w) const {
        return {prepared[slot], prepared_stride(taken(activation_format_of(w.kind)), w.inputs), nullptr,
                expands && has_codes(w)};
    }
};

template <class T>
attention::Call<T> call_of(const Run& run, const Instruction& op) {
    const Buffer &from = run.buffers[op.src], &to = run.buffers[op.dst];
    const Batch& b = run.batch;
    return {from.rows,   (const T*)op.k_cache, (const T*)op.v_cache, to.rows, false, b.query_start, b.seq_lens,
            b.tables_of(op.group), b.sequences,          b.tokens,             op.heads,    op.kv_heads,   op.dim,
            op.block_size, op.blocks,          b.table_width,        from.stride, (float)op.scale, op.window,
            (float)op.softcap, op.sinks,       0,                    false,       op.k_scales, op.v_scales,
            op.slopes};
}

// Cuts rows of one token that see more than one part, if there are too few items for all threads.
template <class T>
Queries cut_queries(const attention::Call<T>& c, int64_t threads) {
    Queries out;
    int64_t work;
    out.items = attention::items_of(c, threads, &work);
    out.first_part.assign(out.items.size(), -1);
    if ((int64_t)out.items.size() * c.kv_heads >= 8 * threads) return out;
    for (size_t i = 0; i < out.items.size(); ++i) {
        const attention::Item& item = out.items[i];
        const int64_t from = attention::first_visible(c, item.position) / attention::PART;
        const int64_t to = item.position / attention::PART;
        if (item.count != 1 || from == to) continue;
        out.first_part[i] = (int64_t)out.parts.size();
        for (int64_t part = from; part <= to; ++part) out.parts.emplace_back((int64_t)i, part);
    }
    return out;
}

template <class T>
void attend(Run& run, const Instruction& op, int64_t which, Team::Walk& walk) {
    const attention::Call<T> c = call_of<T>(run, op);
    const Queries& q = run.queries[which];
    const int64_t group = c.heads / c.kv_heads, width = attention::padded(c.dim);
    const int64_t items = (int64_t)q.items.size(), parts = (int64_t)q.parts.size();
    // one query head per item if there are few items, else all that share a kv head
    const int64_t step = (items + parts) * c.kv_heads < run.threads ? 1 : group, pieces = c.kv_heads * (group / step);
    const auto heads_of = [&](int64_t unit) {
        float* const partial = run.partial[which].data() + unit * attention::Running::floats(c.heads, width);
        return attention::Running::at(partial, c.heads, width);
    };
    walk.phase((items + parts) * pieces, [&](int64_t index) {
        const int64_t unit = index / pieces, kv_head = index % pieces * step / group;
        const int64_t first = index % pieces * step % group;
        if (unit >= parts) {
            const int64_t item = unit - parts;
            if (q.first_part[item] < 0) attention::attend(c, q.items[item], kv_head, first, first + step);
            return;
        }
        attention::attend_one_part(c, q.items[q.parts[unit].first], kv_head, first, first + step, q.parts[unit].second,
                                   heads_of(unit).from(kv_head * group + first));
    });
    if (parts == 0) return;
    walk.phase(items, [&](int64_t item) {
        if (q.first_part[item] < 0) return;
        const attention::Running state = attention::scratch_of_thread().running(c.heads, width, 0);
        state.clear(c.heads);
        for (int64_t unit = q.first_part[item]; unit < parts && q.parts[unit].first == item; ++unit) {
            const attention::Running piece = heads_of(unit);
            for (int64_t head = 0; head < c.heads; ++head) state.join(head, piece, head);
        }
        for (int64_t head = 0; head < c.heads; ++head) attention::finish(c, q.items[item].token, head, state, head);
    });
}

float* scratch_row(int64_t width) {
    static thread_local std::vector<float> row;
    if ((int64_t)row.size() < width) row.resize(width);
    return row.data();
}

// Items of a few rows each, so that all threads are busy if there are enough rows.
template <class Body>
void by_rows(const Run& run, Team::Walk& walk, const Body& body) {
    const int64_t tokens = run.batch.tokens;
    const int64_t rows = std::max<int64_t>(1, std::min(ROWS_APART, tokens / (2 * run.threads)));
    walk.phase(ceil_div(tokens, rows), [&](int64_t item) {
        const int64_t end = std::min((item + 1) * rows, tokens);
        for (int64_t t = item * rows; t < end; ++t) body(t);
    });
}

// Returns how many rows of a block GATE_UP_ACTIVATE takes at a time.
int64_t gated_rows(const Run& run) {
    return rows_of_block(run.batch.tokens, rows_gated(run.gated_bytes), run.expands ? 1 : run.threads);
}

// Multiplies the input of all rows with adapters by A, and then calls then(adapter, span). Returns whether there are
// such rows.
template <class Then>
bool shrink_adapted(Run& run, const Instruction& op, ActivationFormat format, int64_t width, Team::Walk& walk,
                    const Then& then) {
    Adapted& adapted = run.adapted;
    if (!op.adapters || adapted.low_stride == 0) return false;
    format = run.taken(format);
    const Prepared x{run.prepared[op.scratch_slot], prepared_stride(format, width)};
    walk.phase((int64_t)adapted.spans.size(), [&](int64_t item) {
        const low_rank::Span& span = adapted.spans[item];
        const low_rank::Adapter* const adapter = op.adapters->at(span.slot);
        if (!adapter) return;
        low_rank::shrink(*adapter, span, run.batch.adapted.rows, x, format, adapted.low.data(), adapted.low_stride);
        then(*adapter, span);
    });
    return true;
}

// B follows A directly if there are enough spans for all threads: an adapter's weights are then read in one go.
void add_low_rank(Run& run, const Instruction& op, Team::Walk& walk) {
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

// Adds the adapters to block number `block` of gate and up, for the few rows from `first` on of a block of `rows`.
void add_to_gate_up(const Run& run, const Instruction& op, int64_t rows, int64_t first, int64_t block, float* both) {
    constexpr int64_t APART = 2 * BLOCK;
    const Adapted& adapted = run.adapted;
    const int64_t few = first / rows * ceil_div(rows, FEW_ROWS) + first % rows / FEW_ROWS, begin = block * BLOCK;
    for (int64_t i = adapted.first_of_few[few]; i < adapted.first_of_few[few + 1]; ++i) {
        const low_rank::Span& span = adapted.of_few[i];
        const low_rank::Adapter* const adapter = op.adapters->at(span.slot);
        if (!adapter) continue;
        for (int64_t half = 0; half < 2; ++half)
            low_rank::expand_columns(
                *adapter, half * op.width + begin, half * op.width + begin + BLOCK, span, adapted.low.data(),
                adapted.low_stride,
                [&](int64_t place) { return both + (run.batch.adapted.rows[place] - first) * APART + half * BLOCK; });
    }
}

// Multiplies the weights of a block of columns by as many rows as the L2 cache holds, a few at a time.
void gate_up_activate(Run& run, const Instruction& op, Team::Walk& walk) {
    const bool adapts = shrink_adapted(run, op, activation_format_of(op.weight.kind), op.weight.inputs, walk,
                                       [](const low_rank::Adapter&, const low_rank::Span&) {});
    const GateUp pair{&op.weight, &op.second_weight, op.bias, op.second_bias, 0, 0, op.width, op.activation,
                      run.taken((ActivationFormat)op.activation_format), nullptr};
    const int64_t tokens = run.batch.tokens, blocks = pair.blocks();
    const int64_t rows = gated_rows(run), bytes = prepared_stride(pair.format, op.width);
    const Prepared x = run.input(0, op.weight);
    uint8_t* const out = run.prepared[1];
    walk.phase(ceil_div(tokens, rows) * blocks, [&](int64_t item) {
        const int64_t first = item / blocks * rows, end = std::min(first + rows, tokens), block = item % blocks;
        const auto add = [&](int64_t begin, float* both) { add_to_gate_up(run, op, rows, begin, block, both); };
        const auto call = [](const void* adding, int64_t begin, float* both) {
            (*static_cast<decltype(&add)>(adding))(begin, both);
        };
        gate_up_block(pair, block, x, first, end, out, bytes, adapts ? +call : nullptr, &add);
    });
}

void multiply(Run& run, const Instruction& op, Team::Walk& walk) {
    const Prepared x = run.input(op.scratch_slot, op.weight);
    const Cut cut(op.weight, x, run.batch.tokens, run.threads);
    const Buffer& buffer = run.buffers[op.dst];
    const Destination to{buffer.rows + op.column, buffer.stride, op.bias};
    walk.phase(cut.items(), [&](int64_t item) { multiply_item(op.weight, cut, item, x, run.batch.tokens, to); });
}

// The number of items of each phase is kept: a late thread may read it after the tokens of a later instruction have
// been sorted.
void mix_experts(Run& run, int64_t index, Team::Walk& walk) {
    const Instruction& op = run.instructions[index];
    const Buffer &from = run.buffers[op.src], &to = run.buffers[op.dst];
    const int64_t tokens = run.batch.tokens, top_k = op.router.top_k;
    const Experts experts{&op.weight, &op.second_weight, op.bias,       op.second_bias,
                          op.width,   op.weight.inputs,  op.activation, op.weight_input};
    Routed& routed = run.routed;
    by_rows(run, walk, [&](int64_t t) {
        route_row(op.router, from.rows + t * from.stride + op.column, routed.experts.data() + t * top_k,
                  routed.weights.data() + t * top_k);
    });
    const Prepared x = run.input(0, op.weight);
    GateUpPhase gate_up(experts, routed, x, run.prepared[1]);
    walk.phase(1, [&](int64_t) {
        routed.sort(tokens, top_k, op.router.experts);
        run.gate_up_items[index] = gate_up.items();
    });
    walk.phase(run.gate_up_items[index], [&](int64_t item) { gate_up(item); });
    const DownPhase down{experts, routed, run.prepared[1], to.rows, to.stride, tokens, run.threads};
    walk.phase(down.items(), down);
}

void execute(Run& run, int64_t index, Team::Walk& walk) {
    const Instruction& op = run.instructions[index];
    const auto row = [&](int64_t buffer, int64_t t) { return run.buffers[buffer].rows + t * run.buffers[buffer].stride; };
    const ActivationFormat format = run.taken((ActivationFormat)op.activation_format);
    const auto prepare = [&](int64_t t, const float* x) {
        prepare_row(x, op.width, format, run.prepared[0] + t * prepared_stride(format, op.width));
    };
    const auto normalize = [](const Instruction& op, const float* x, float* to) {
        op.centred ? layer_norm_row(x, op.norm, op.bias, (float)op.eps, op.width, to)
                   : norm_row(x, op.norm, (float)op.eps, op.width, to);
    };
    switch (op.kind) {
        case EMBED:
            by_rows(run, walk, [&](int64_t t) {
                float* to = row(op.dst, t);
                unpack_row(op.weight, run.batch.ids[t], to);
                if (op.scale != 1.0)
                    for (int64_t i = 0; i < op.weight.inputs; ++i) to[i] *= (float)op.scale;
                if (!op.second_weight.outputs) return;
                float* const place = scratch_row(op.weight.inputs);
                unpack_row(op.second_weight, run.batch.positions[t], place);
                add_row(to, place, 1.0f, op.weight.inputs);
            });
            break;
        case NORM_AND_QUANTIZE:
            by_rows(run, walk, [&](int64_t t) {
                float* x = row(op.src, t);
                if (op.add >= 0) add_row(x, row(op.add, t), (float)op.scale, op.width);
                if (!op.norm) return prepare(t, x);
                float* normed = scratch_row(op.width);
                normalize(op, x, normed);
                prepare(t, normed);
            });
            break;
        case ADD:
            by_rows(run, walk, [&](int64_t t) { add_row(row(op.src, t), row(op.add, t), (float)op.scale, op.width); });
            break;
        case NORM:
            by_rows(run, walk, [&](int64_t t) {
                for (int64_t g = 0; g < op.groups; ++g) {
                    float* x = row(op.src, t) + op.column + g * op.width;
                    normalize(op, x, x);
                }
            });
            break;
        case LINEAR:
            multiply(run, op, walk);
            break;
        case ROTATE:
            by_rows(run, walk, [&](int64_t t) {
                const int64_t slot = run.batch.slots_of(op.group)[t];
                rotate_token(op, row(op.src, t), run.batch.positions[t]);
                switch (op.cache_type) {
                    case BF16_CACHE: return write_token<bf16>(op, row(op.src, t), slot);
                    case INT8_CACHE: return write_token<i8>(op, row(op.src, t), slot);
                    case FLOAT8_CACHE: return write_token<e4m3>(op, row(op.src, t), slot);
                    default: return write_token<float>(op, row(op.src, t), slot);
                }
            });
            break;
        case ATTEND:
            switch (op.cache_type) {
                case BF16_CACHE: return attend<bf16>(run, op, run.queries_of[index], walk);
                case INT8_CACHE: return attend<i8>(run, op, run.queries_of[index], walk);
                case FLOAT8_CACHE: return attend<e4m3>(run, op, run.queries_of[index], walk);
                default: return attend<float>(run, op, run.queries_of[index], walk);
            }
        case GATE_UP_ACTIVATE:
            gate_up_activate(run, op, walk);
            break;
        case MOE:
            mix_experts(run, index, walk);
            break;
        case ADD_LOW_RANK:
            add_low_rank(run, op, walk);
            break;
        default:
            by_rows(run, walk, [&](int64_t t) {
                float* gated = scratch_row(op.width);
                const float* const gate = row(op.src, t);
                activate_row(gate, op.gated ? gate + op.width : nullptr, op.width, op.activation, format, gated);
                prepare(t, gated);
            });
    }
}

// Returns the error in a step's ids, positions, slots or sequences, or 0.
int64_t find_fault(const Run& run, const Instruction& op) {
    const Batch& b = run.batch;
    if (op.kind == EMBED)
        for (int64_t t = 0; t < b.tokens; ++t) {
            if (b.ids[t] < 0 || b.ids[t] >= op.weight.outputs) return 1;
            if (op.second_weight.outputs && (b.positions[t] < 0 || b.positions[t] >= op.second_weight.outputs)) return 2;
        }
    if (op.kind == ROTATE)
        for (int64_t t = 0; t < b.tokens; ++t) {
            if (b.positions[t] < 0 || b.positions[t] >= op.table_rows) return 2;
            const int64_t slot = b.slots_of(op.group)[t];
            if (slot < 0 || slot >= op.blocks * op.block_size) return 3;
        }
    if (op.kind == ATTEND && attention::find_fault(call_of<float>(run, op)) >= 0) return 4;
    return 0;
}

// Returns the declared phases of all instructions, which size the Team's memory; -1 if one declares what it may not.
int64_t declared_phases(const Bound& program) {
    int64_t phases = 0;
    for (int64_t i = 0; i < program.count; ++i) {
        const Instruction& op = program.instructions[i];
        const int64_t runs = phases_of(op);
        if (runs == 0 || op.phases < runs || op.phases > MAX_PHASES) return -1;
        phases += op.phases;
    }
    return phases;
}

// Lays out the work of rows with adapters. Returns WRONG_ADAPTED if such a row is not in the batch, else 0.
int64_t lay_out_adapted(Run& run) {
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
    adapted.spans = low_rank::spans_of(rows, low_rank::rows_of_span(count, run.threads));
    if (!gates) return 0;
    for (int64_t first = 0; first < run.batch.tokens; first += gated_rows(run)) {
        const int64_t end = std::min(first + gated_rows(run), run.batch.tokens);
        for (int64_t few = first; few < end; few += FEW_ROWS) {
            adapted.first_of_few.push_back((int64_t)adapted.of_few.size());
            low_rank::spans_between(rows, few, std::min(few + FEW_ROWS, end), &adapted.of_few);
        }
    }
    adapted.first_of_few.push_back((int64_t)adapted.of_few.size());
    return 0;
}

// Plans everything else that a step needs, once its numbers have been checked. Returns as run_program does.
int64_t plan(Run& run) {
    for (int64_t i = 0; i < run.count; ++i) {
        const Instruction& op = run.instructions[i];
        if (op.kind == GATE_UP_ACTIVATE) run.gated_bytes = std::max(run.gated_bytes, run.input(0, op.weight).stride);
    }
    if (const int64_t fault = lay_out_adapted(run)) return fault;
    // layers of one shape share the checks and the cut of their rows
    const auto alike = [](const Instruction* a, const Instruction& b) {
        return a && a->blocks == b.blocks && a->block_size == b.block_size && a->table_rows == b.table_rows &&
               a->window == b.window && a->heads == b.heads && a->kv_heads == b.kv_heads && a->dim == b.dim &&
               a->group == b.group;
    };
    const auto like = [&](const std::vector<std::pair<const Instruction*, int64_t>>& seen, const Instruction& op) {
        return std::find_if(seen.begin(), seen.end(), [&](const auto& each) { return alike(each.first, op); });
    };
    std::vector<std::pair<const Instruction*, int64_t>> rotated, attended;  // one of each kind, and its queries
    for (int64_t i = 0; i < run.count; ++i) {
        const Instruction& op = run.instructions[i];
        if (op.kind == ROTATE) {
            if (like(rotated, op) != rotated.end()) continue;
            rotated.emplace_back(&op, 0);
        }
        if (op.kind == ATTEND) {
            const auto found = like(attended, op);
            if (found != attended.end()) {
                run.queries_of[i] = found->second;
                continue;
            }
        }
        if (const int64_t fault = find_fault(run, op)) return fault;
        if (op.kind == MOE) run.routed.reserve(run.batch.tokens, op.router.top_k, op.router.experts);
        if (op.kind == ATTEND) {
            const attention::Call<float> c = call_of<float>(run, op);
            run.queries.push_back(cut_queries(c, run.threads));
            run.partial.emplace_back(run.queries.back().parts.size() *
                                     attention::Running::floats(op.heads, attention::padded(op.dim)));
            run.queries_of[i] = (int64_t)run.queries.size() - 1;
            attended.emplace_back(&op, run.queries_of[i]);
        }
    }
    return 0;
}

void walk(Run& run, int64_t phases) {
    Team team(run.threads, phases);
    team.run([&](Team::Walk& walk) {
        for (int64_t i = 0; i < run.count; ++i) execute(run, i, walk);
    });
}

}  // namespace

int64_t run_program(const Bound& program, const Batch& batch, int64_t threads) {
    const int64_t phases = declared_phases(program);
    if (phases < 0) return WRONG_PHASES;
    if (batch.coded <= 0 || batch.coded >= batch.tokens) {
        Run run(program, batch, threads, batch.coded < batch.tokens);
        if (const int64_t fault = plan(run)) return fault;
        walk(run, phases);
        return 0;
    }
    const int64_t cut = batch.sequences ? first_behind(batch) : 0;
    if (cut < 0) return WRONG_SEQUENCES;
    const Piece front(program, batch, 0, batch.coded, 0, cut);
    const Piece back(program, batch, batch.coded, batch.tokens, cut, batch.sequences);
    Run coded(front.program, front.batch, threads, false), expanded(back.program, back.batch, threads, true);
    if (const int64_t fault = plan(coded)) return fault;
    if (const int64_t fault = plan(expanded)) return fault;
    walk(coded, phases);
    walk(expanded, phases);
    return 0;
}

}  // namespace stentor

using namespace stentor;

// Returns whether a program gains from expanding codes: if there are tiles, and no experts, which take few rows each.
STENTOR_EXPORT int64_t stentor_expands_codes(const Bound* program) {
    const Instruction *const first = program->instructions, *const end = first + program->count;
    const auto coded = [](const Instruction& op) {
        return (op.kind == LINEAR || op.kind == GATE_UP_ACTIVATE) && has_codes(op.weight);
    };
    return tiles::form() != tiles::Form::NONE && std::any_of(first, end, coded) &&
           std::none_of(first, end, [](const Instruction& op) { return op.kind == MOE; });
}

// Returns as run_program does, and NO_MEMORY if there is no memory to plan the batch; nothing is written then.
STENTOR_EXPORT int64_t stentor_run_program(const Bound* program, const Batch* batch, int64_t threads) try {
    return run_program(*program, *batch, threads);
} catch (const std::bad_alloc&) {
    return NO_MEMORY;
}
