// The pair (i, i + half) of every head, or (2i, 2i + 1) where pairs are interleaved, turns by the angle of its token's
// position. Products and sums are rounded one by one, as the reference rounds them.
#include "parallel.h"
#include "vec.h"

namespace stentor {
namespace {

constexpr int64_t GRAIN = 32768;  // elements below which a second thread does not pay

template <class T>
void turn(T* head, const float* cos, const float* sin, int64_t half) {
    T* first = head;
    T* second = head + half;
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        const vf a = load(first + i), b = load(second + i), c = load(cos + i), s = load(sin + i);
        store(first + i, a * c - b * s);
        store(second + i, b * c + a * s);
    }
    if (i < half) {
        const int64_t n = half - i;
        const vf a = load_part(first + i, n), b = load_part(second + i, n);
        const vf c = load_part(cos + i, n), s = load_part(sin + i, n);
        store_part(first + i, a * c - b * s, n);
        store_part(second + i, b * c + a * s, n);
    }
}

template <class T>
void turn_interleaved(T* head, const float* cos, const float* sin, int64_t half) {
    for (int64_t i = 0; i < half; ++i) {
        const float a = widen(head[2 * i]), b = widen(head[2 * i + 1]);
        narrow(a * cos[i] - b * sin[i], head + 2 * i);
        narrow(b * cos[i] + a * sin[i], head + 2 * i + 1);
    }
}

template <class T>
int64_t rotary(T* q, T* k, const float* cos, const float* sin, const int64_t* positions, int64_t tokens,
               int64_t q_heads, int64_t k_heads, int64_t dim, int64_t half, int64_t q_stride, int64_t k_stride,
               int64_t table, int64_t interleaved, int64_t threads) {
    const auto turn_head = interleaved ? turn_interleaved<T> : turn<T>;
    for (int64_t t = 0; t < tokens; ++t)
        if (positions[t] < 0 || positions[t] >= table) return t;
    parallel_rows(tokens, GRAIN / ((q_heads + k_heads) * dim + 1), threads, [=](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const float* c = cos + positions[t] * half;
            const float* s = sin + positions[t] * half;
            for (int64_t h = 0; h < q_heads; ++h) turn_head(q + t * q_stride + h * dim, c, s, half);
            for (int64_t h = 0; h < k_heads; ++h) turn_head(k + t * k_stride + h * dim, c, s, half);
        }
    });
    return -1;
}

}  // namespace
}  // namespace stentor

using namespace stentor;

// Returns -1, or the first token whose position lies outside [0, table); nothing is written then.
STENTOR_EXPORT int64_t stentor_rotary_f32(float* q, float* k, const float* cos, const float* sin,
                                          const int64_t* positions, int64_t tokens, int64_t q_heads, int64_t k_heads,
                                          int64_t dim, int64_t half, int64_t q_stride, int64_t k_stride, int64_t table,
                                          int64_t interleaved, int64_t threads) {
    return rotary(q, k, cos, sin, positions, tokens, q_heads, k_heads, dim, half, q_stride, k_stride, table, interleaved,
                  threads);
}

STENTOR_EXPORT int64_t stentor_rotary_bf16(bf16* q, bf16* k, const float* cos, const float* sin,
                                           const int64_t* positions, int64_t tokens, int64_t q_heads, int64_t k_heads,
                                           int64_t dim, int64_t half, int64_t q_stride, int64_t k_stride, int64_t table,
                                           int64_t interleaved, int64_t threads) {
    return rotary(q, k, cos, sin, positions, tokens, q_heads, k_heads, dim, half, q_stride, k_stride, table, interleaved,
                  threads);
}
