// How experts are chosen: router.py says what each value means.
#pragma once

#include <cstdint>

namespace stentor {

// The numbers of scores.
constexpr int64_t SOFTMAX = 0, SIGMOID = 1, SPARSEMIXER = 2, SQRT_SOFTPLUS = 3;

struct Router {
    int64_t experts, top_k, score, renormalize, groups, top_groups, by_two, by_logits;
    double scale, nearness, softcap;
    const float* bias;  // [experts] or null
};

}  // namespace stentor
