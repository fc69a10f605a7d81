// Runs a program: all threads go through the phases of its instructions together.
#include "products.h"
#include "rowwise.h"

#include <new>

namespace stentor {
namespace {

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

#if defined(STENTOR_TILES)
static_assert(sizeof(ByteBlock) >= 2 * BLOCK * sizeof(bf16), "rows that expand codes have room where others lie");
#endif

void execute(Run& run, int64_t index, Team::Walk& walk) {
    const Instruction& op = run.instructions[index];
    const auto row = [&](int64_t buffer, int64_t t) { return run.buffers[buffer].rows + t * run.buffers[buffer].stride; };
    const ActivationFormat format = (ActivationFormat)op.activation_format;
    // What experts read of a row that only dense layers expand codes for is apart: both may read it.
    const auto prepare = [&](int64_t t, const float* x) {
        const bool expands = t >= run.batch.coded, coded_experts = t < run.batch.coded_experts;
        const bool apart = expands && coded_experts && format == ActivationFormat::INT8 && (op.readers & EXPERTS);
        const int64_t at = t * prepared_stride(format, op.width);
        if (!apart || (op.readers & DENSE)) prepare_row(x, op.width, taken_as(format, expands), run.prepared[0] + at);
        if (apart) prepare_row(x, op.width, format, run.prepared[2] + at);
    };
    const auto normalize = [](const Instruction& op, const float* x, float* to) {
        op.centred ? layer_norm_row(x, op.norm, op.bias, to, op.width, (float)op.eps)
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
                activate_row(gate, op.gated ? gate + op.width : nullptr, op.width, op.activation,
                             taken_as(format, t >= run.batch.coded), gated);
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

// Plans everything else that a step needs, once its numbers have been checked. Returns as run_program does.
int64_t plan(Run& run) {
    for (Part& part : run.parts) {
        int64_t bytes = BLOCK;  // of the longest row that is gated
        for (int64_t i = 0; i < run.count; ++i) {
            const Instruction& op = run.instructions[i];
            if (op.kind == GATE_UP_ACTIVATE) bytes = std::max(bytes, run.input(0, op.weight, part).bytes(op.weight.inputs));
        }
        if (part.count) part.gated = rows_of_block(part.count, rows_gated(bytes), part.expands ? 1 : run.threads);
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

}  // namespace

int64_t run_program(const Bound& program, const Batch& batch, int64_t threads) {
    const int64_t phases = declared_phases(program);
    if (phases < 0) return WRONG_PHASES;
    if (batch.coded < 0 || batch.coded > batch.coded_experts || batch.coded_experts > batch.tokens) return WRONG_FORMS;
    Run run(program, batch, threads);
    if (const int64_t fault = plan(run)) return fault;
    Team team(threads, phases);
    team.run([&](Team::Walk& walk) {
        for (int64_t i = 0; i < run.count; ++i) execute(run, i, walk);
    });
    return 0;
}

}  // namespace stentor

using namespace stentor;

// Returns whether a program gains from expanding codes: if there are tiles, and it multiplies some.
STENTOR_EXPORT int64_t stentor_expands_codes(const Bound* program) {
    const auto coded = [](const Instruction& op) {
        const bool multiplies = op.kind == LINEAR || op.kind == GATE_UP_ACTIVATE || op.kind == MOE;
        return multiplies && (has_codes(op.weight) || has_codes(op.second_weight));
    };
    return tiles::form() != tiles::Form::NONE &&
           std::any_of(program->instructions, program->instructions + program->count, coded);
}

// Returns as run_program does, and NO_MEMORY if there is no memory to plan the batch; nothing is written then.
STENTOR_EXPORT int64_t stentor_run_program(const Bound* program, const Batch* batch, int64_t threads) try {
    return run_program(*program, *batch, threads);
} catch (const std::bad_alloc&) {
    return NO_MEMORY;
}
