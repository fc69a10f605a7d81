// The weights of a token's residual streams, a token at a time: see reference.py.
#include <algorithm>
#include <cmath>

#include "parallel.h"

namespace stentor {
namespace {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Divides the elements [start, start + step, ...] of a matrix by their sum.
void divide(float* m, int64_t start, int64_t step, int64_t streams, float eps) {
    float total = 0.0f;
    for (int64_t i = 0; i < streams; ++i) total += m[start + i * step];
    for (int64_t i = 0; i < streams; ++i) m[start + i * step] /= total + eps;
}

void divide_columns(float* m, int64_t streams, float eps) {
    for (int64_t k = 0; k < streams; ++k) divide(m, k, streams, streams, eps);
}

void weigh(const float* x, const float* base, const float* scale, float* out, int64_t streams, int64_t iterations,
           float eps) {
    for (int64_t i = 0; i < streams; ++i) {
        out[i] = sigmoid(x[i] * scale[0] + base[i]) + eps;
        out[streams + i] = 2.0f * sigmoid(x[streams + i] * scale[1] + base[streams + i]);
    }
    const int64_t at = 2 * streams;
    float* const m = out + at;
    for (int64_t j = 0; j < streams; ++j) {
        float* const row = m + j * streams;
        float most = -INFINITY, total = 0.0f;
        for (int64_t k = 0; k < streams; ++k) {
            row[k] = x[at + j * streams + k] * scale[2] + base[at + j * streams + k];
            most = std::max(most, row[k]);
        }
        for (int64_t k = 0; k < streams; ++k) total += row[k] = std::exp(row[k] - most);
        for (int64_t k = 0; k < streams; ++k) row[k] = row[k] / total + eps;
    }
    divide_columns(m, streams, eps);
    for (int64_t i = 1; i < iterations; ++i) {
        for (int64_t j = 0; j < streams; ++j) divide(m, j * streams, 1, streams, eps);
        divide_columns(m, streams, eps);
    }
}

}  // namespace
}  // namespace stentor

using namespace stentor;

// x and out are [tokens, streams * (streams + 2)].
STENTOR_EXPORT void stentor_stream_weights(const float* x, const float* base, const float* scale, float* out,
                                           int64_t tokens, int64_t streams, int64_t iterations, double eps,
                                           int64_t threads) {
    const int64_t width = streams * (streams + 2);
    parallel_rows(tokens, 16, threads, [=](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token)
            weigh(x + token * width, base, scale, out + token * width, streams, iterations, (float)eps);
    });
}
