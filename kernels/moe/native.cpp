// Routers as an operation, and experts with packed weights.
#include "experts.h"

#include "../forward/team.h"

#include <cstdlib>
#include <new>

namespace stentor {
namespace {

constexpr int64_t SMALL = 1 << 16;  // multiply-adds below which a second thread does not pay

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Rows = std::unique_ptr<uint8_t, Free>;

Rows rows_of(int64_t bytes) {
    Rows rows((uint8_t*)std::aligned_alloc(64, (size_t)std::max<int64_t>(bytes, 64)));
    if (!rows) throw std::bad_alloc();
    return rows;
}

}  // namespace
}  // namespace stentor

using namespace stentor;

// Experts [tokens, top_k] and their weights, of logits [tokens, experts] whose rows lie `stride` floats apart.
STENTOR_EXPORT void stentor_route(const Router* router, const float* logits, int64_t stride, int64_t tokens,
                                  int32_t* experts, float* weights, int64_t threads) {
    parallel_rows(tokens, 16, threads, [=](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
            route_row(*router, logits + t * stride, experts + t * router->top_k, weights + t * router->top_k);
    });
}

// out [tokens, hidden] = the weighted sum of the chosen experts' outputs; rows of x lie `stride` floats apart. `of` has
// `count` experts; -1 adds nothing. Returns 0; or 1 without memory, 2 for an unknown expert, and writes nothing.
STENTOR_EXPORT int64_t stentor_packed_experts(const Experts* of, int64_t count, const float* x, int64_t stride,
                                              int64_t tokens, const int32_t* experts, const float* weights,
                                              int64_t top_k, float* out, int64_t threads) try {
    const int64_t all = tokens * top_k;
    for (int64_t i = 0; i < all; ++i)
        if (experts[i] < -1 || experts[i] >= count) return 2;
    if (all * of->hidden * of->inner < SMALL) threads = 1;
    Routed routed;
    routed.reserve(tokens, top_k, count);
    std::copy_n(experts, all, routed.experts.begin());
    std::copy_n(weights, all, routed.weights.begin());
    routed.sort(tokens, top_k, count, tokens);
    const ActivationFormat format = activation_format_of(of->gate_up->kind);
    const int64_t bytes = prepared_stride(format, of->hidden);
    const Rows rows = rows_of(tokens * bytes), inner = rows_of(all * of->inner_stride());
    const DownPhase down{*of, routed, inner.get(), out, of->hidden, tokens, threads};
    Team team(threads, 3);
    team.run([&](Team::Walk& walk) {
        walk.phase(tokens, [&](int64_t t) { prepare_row(x + t * stride, of->hidden, format, rows.get() + t * bytes); });
        GateUpPhase gate_up(*of, routed, {rows.get(), bytes}, inner.get());
        walk.phase(gate_up.items(), [&](int64_t item) { gate_up(item); });
        walk.phase(down.items(), down);
    });
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}
