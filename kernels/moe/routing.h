// How tokens choose experts, and their order by expert. reference.py is the definition.
#pragma once

#include "../linear_packed/gated.h"
#include "router.h"
#include "simd_math.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace stentor {

// The `wanted` largest of `count` values, the first of equal ones; NaN counts as infinity.
static inline void choose_largest(const float* values, int64_t count, int64_t wanted, int32_t* chosen, float* kept) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
        const float value = values[i] == values[i] ? values[i] : INFINITY;
        if (found == wanted && !(value > kept[wanted - 1])) continue;
        int64_t at = found < wanted ? found++ : wanted - 1;
        for (; at > 0 && value > kept[at - 1]; --at) kept[at] = kept[at - 1], chosen[at] = chosen[at - 1];
        kept[at] = value, chosen[at] = (int32_t)i;
    }
}

// Scores of a row of logits; `scores` is padded to whole vectors.
static inline void score_row(const Router& router, const float* logits, float* scores) {
    const int64_t count = router.experts;
    if (router.softcap > 0) {
        const vf cap = set1((float)router.softcap);
        for (int64_t i = 0; i < count; i += LANES) {
            const vf x = i + LANES <= count ? load(logits + i) : load_part(logits + i, count - i);
            store(scores + i, tanh(x / cap) * cap);
        }
        logits = scores;
    }
    float most = -INFINITY;
    for (int64_t i = 0; i < count; ++i) most = std::max(most, logits[i]);
    if (router.score == SQRT_SOFTPLUS) {
        for (int64_t i = 0; i < count; ++i)
            scores[i] = std::sqrt(std::max(logits[i], 0.0f) + std::log1p(std::exp(-std::fabs(logits[i]))));
        return;
    }
    const bool sigmoid = router.score == SIGMOID;
    const vf highest = set1(sigmoid ? 0.0f : most);
    for (int64_t i = 0; i < count; i += LANES) {
        const vf x = i + LANES <= count ? load(logits + i) : load_part(logits + i, count - i);
        store(scores + i, sigmoid ? set1(1.0f) / (set1(1.0f) + exp(-x)) : exp(x - highest));
    }
    if (sigmoid) return;
    float total = 0.0f;
    for (int64_t i = 0; i < count; ++i) total += scores[i];
    for (int64_t i = 0; i < count; ++i) scores[i] /= total;
}

// For each choice, its softmax over the remaining experts that come near it; `kept` holds top_k.
static inline void mix_row(const Router& router, const float* logits, int32_t* experts, float* weights, float* kept) {
    const float nearness = (float)router.nearness;
    choose_largest(logits, router.experts, router.top_k, experts, kept);
    for (int64_t k = 0; k < router.top_k; ++k) {
        float total = 0.0f;
        for (int64_t i = 0; i < router.experts; ++i) {
            const float x = logits[i];
            const bool near = kept[k] - x <= nearness * std::max(std::fabs(x), kept[k]);
            if (near && std::find(experts, experts + k, (int32_t)i) == experts + k) total += std::exp(x - kept[k]);
        }
        weights[k] = (float)router.scale / total;
    }
}

// One token's experts [top_k] and their weights.
static inline void route_row(const Router& router, const float* logits, int32_t* experts, float* weights) {
    static thread_local std::vector<float> memory;
    static thread_local std::vector<int32_t> numbers;
    const int64_t count = router.experts, padded = ceil_div(count, LANES) * LANES;
    memory.resize((size_t)(3 * padded + router.top_k + router.groups + router.top_groups));
    numbers.resize((size_t)router.top_groups);
    float *const scores = memory.data(), *const ranks = scores + padded, *const kept = ranks + 2 * padded;
    if (router.score == SPARSEMIXER) return mix_row(router, logits, experts, weights, kept);
    score_row(router, logits, scores);
    const bool some_groups = router.top_groups < router.groups;
    // scores have the order of logits, except that large ones round to the same number
    const bool by_scores = (router.bias && !router.by_logits) || some_groups;
    const float* const ranked = by_scores ? scores : logits;
    for (int64_t i = 0; i < count; ++i) ranks[i] = ranked[i] + (router.bias ? router.bias[i] : 0.0f);
    if (some_groups) {
        const int64_t size = count / router.groups;
        float *const best = kept + router.top_k, *const best_kept = best + router.groups;
        for (int64_t g = 0; g < router.groups; ++g) {
            const int64_t of = std::min<int64_t>(router.by_two ? 2 : 1, size);
            int32_t ignored[2];
            float two[2];
            choose_largest(ranks + g * size, size, of, ignored, two);
            best[g] = of == 2 ? two[0] + two[1] : two[0];
        }
        choose_largest(best, router.groups, router.top_groups, numbers.data(), best_kept);
        float* const open = ranks + padded;
        std::fill_n(open, count, -INFINITY);
        for (const int32_t g : numbers) std::copy_n(ranks + g * size, size, open + g * size);
        choose_largest(open, count, router.top_k, experts, kept);
    } else {
        choose_largest(ranks, count, router.top_k, experts, kept);
    }
    float sum = 0.0f;
    for (int64_t k = 0; k < router.top_k; ++k) sum += scores[experts[k]];
    const float divisor = router.renormalize ? sum + 1e-20f : 1.0f;
    for (int64_t k = 0; k < router.top_k; ++k) weights[k] = scores[experts[k]] / divisor * (float)router.scale;
}

// The choices of each token, and the same sorted by expert, then by token. A choice of -1 has no row.
struct Routed {
    struct Rows {
        int64_t expert, first, middle, end;  // those from the middle on expand codes
    };
    std::vector<int32_t> experts;  // [tokens, top_k]
    std::vector<float> weights;
    std::vector<int32_t> tokens;  // [tokens * top_k], by expert
    std::vector<float> factors;
    std::vector<int64_t> ends;  // [experts]
    std::vector<Rows> rows;     // of used experts, in blocks for one thread

    // Allocates all memory that it needs. Throws std::bad_alloc.
    void reserve(int64_t token_count, int64_t top_k, int64_t expert_count) {
        const size_t all = (size_t)(token_count * top_k);
        if (all > experts.size()) experts.resize(all), weights.resize(all), tokens.resize(all), factors.resize(all);
        ends.reserve((size_t)expert_count);
        rows.reserve(std::max(all, rows.capacity()));
    }

    // Tokens before `coded` multiply codes directly.
    void sort(int64_t token_count, int64_t top_k, int64_t expert_count, int64_t coded) {
        ends.assign((size_t)expert_count, 0);
        for (int64_t i = 0; i < token_count * top_k; ++i)
            if (experts[i] >= 0) ++ends[experts[i]];
        rows.clear();
        for (int64_t expert = 0, begin = 0; expert < expert_count; ++expert) {
            const int64_t count = ends[expert], end = begin + count;
            ends[expert] = begin;
            const int64_t step = count ? rows_of_block(count, GATED_ROWS, 1) : 1;  // threads split the columns
            for (; begin < end; begin += step) rows.push_back({expert, begin, 0, std::min(begin + step, end)});
            begin = end;
        }
        for (int64_t token = 0; token < token_count; ++token)
            for (int64_t k = 0; k < top_k; ++k) {
                const int64_t from = token * top_k + k;
                if (experts[from] < 0) continue;
                const int64_t to = ends[experts[from]]++;
                tokens[to] = (int32_t)token, factors[to] = weights[from];
            }
        const auto place = [&](int64_t at) { return tokens.begin() + at; };
        for (Rows& each : rows)
            each.middle = std::lower_bound(place(each.first), place(each.end), (int32_t)coded) - tokens.begin();
    }
};

}  // namespace stentor
