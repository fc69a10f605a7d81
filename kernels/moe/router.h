// How experts are chosen: router.py says what each value means.
#pragma once

#include <cstdint>

namespace stentor {

struct Router {
    int64_t experts, top_k, sigmoid, mixer, renormalize, groups, top_groups, by_two;
    double scale, nearness;
    const float* bias;  // [experts] or null
};

}  // namespace stentor
