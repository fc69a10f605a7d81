// The inverse root mean square of a row.
#pragma once

#include "vec.h"

#include <cmath>

namespace stentor {

// Σx² in four sums of vectors that take turns, added by a fixed tree.
template <class T>
static inline float inverse_rms(const T* x, int64_t width, float eps) {
    vf sum[4] = {};
    int64_t i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES)
        for (int j = 0; j < 4; ++j) {
            const vf v = load(x + i + j * LANES);
            sum[j] = fma(v, v, sum[j]);
        }
    for (; i < width; i += LANES) {
        const vf v = i + LANES <= width ? load(x + i) : load_part(x + i, width - i);
        sum[0] = fma(v, v, sum[0]);
    }
    const float total = hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    return 1.0f / std::sqrt(total / (float)width + eps);
}

}  // namespace stentor
