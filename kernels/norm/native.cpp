// Root mean square and layer norms, one row at a time; see reference.py for where they round.
#include "layer.h"
#include "parallel.h"
#include "rms.h"
#include "vec.h"

namespace stentor {
namespace {

constexpr int64_t GRAIN = 32768;  // elements below which a second thread does not pay

static inline vf rounded_as(vf x, const float*) { return x; }
static inline vf rounded_as(vf x, const bf16*) {
    bf16 half[LANES];
    store(half, x);
    return load(half);
}

template <class T>
static inline vf scaled(vf x, vf weight, float factor, bool plus_one) {
    const vf normed = x * set1(factor);
    if (plus_one) return normed * (set1(1.0f) + weight);
    return rounded_as(normed, (const T*)nullptr) * weight;
}

template <class T>
void norm_row(const T* x, const T* weight, T* out, int64_t width, float eps, bool plus_one) {
    const float factor = inverse_rms(x, width, eps);
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES)
        store(out + i, scaled<T>(load(x + i), load(weight + i), factor, plus_one));
    if (i < width) {
        const int64_t n = width - i;
        store_part(out + i, scaled<T>(load_part(x + i, n), load_part(weight + i, n), factor, plus_one), n);
    }
}

template <class T>
void add_row(const T* x, T* residual, int64_t width) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) store(residual + i, load(residual + i) + load(x + i));
    if (i < width) {
        const int64_t n = width - i;
        store_part(residual + i, load_part(residual + i, n) + load_part(x + i, n), n);
    }
}

// As `norm`, for a layer norm; `bias` may be null.
template <class T>
void layer_norm(const T* x, const T* weight, const T* bias, T* out, T* residual, int64_t outer, int64_t inner,
                int64_t outer_stride, int64_t inner_stride, int64_t width, float eps, int64_t threads) {
    parallel_rows(outer * inner, GRAIN / (width + 1), threads, [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const T* from = x + row / inner * outer_stride + row % inner * inner_stride;
            if (residual) {
                T* sum = residual + row * width;
                add_row(from, sum, width);
                from = sum;
            }
            layer_norm_row(from, weight, bias, out + row * width, width, eps);
        }
    });
}

// Rows are [outer, inner] with a stride each; `out` and `residual` (null: none) are contiguous.
template <class T>
void norm(const T* x, const T* weight, T* out, T* residual, int64_t outer, int64_t inner, int64_t outer_stride,
          int64_t inner_stride, int64_t width, float eps, bool plus_one, int64_t threads) {
    parallel_rows(outer * inner, GRAIN / (width + 1), threads, [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const T* from = x + row / inner * outer_stride + row % inner * inner_stride;
            if (residual) {
                T* sum = residual + row * width;
                add_row(from, sum, width);
                from = sum;
            }
            norm_row(from, weight, out + row * width, width, eps, plus_one);
        }
    });
}

}  // namespace
}  // namespace stentor

using namespace stentor;

STENTOR_EXPORT void stentor_rms_norm_f32(const float* x, const float* weight, float* out, float* residual, int64_t outer,
                                         int64_t inner, int64_t outer_stride, int64_t inner_stride, int64_t width,
                                         float eps, int32_t plus_one, int64_t threads) {
    norm(x, weight, out, residual, outer, inner, outer_stride, inner_stride, width, eps, plus_one != 0, threads);
}

STENTOR_EXPORT void stentor_rms_norm_bf16(const bf16* x, const bf16* weight, bf16* out, bf16* residual, int64_t outer,
                                          int64_t inner, int64_t outer_stride, int64_t inner_stride, int64_t width,
                                          float eps, int32_t plus_one, int64_t threads) {
    norm(x, weight, out, residual, outer, inner, outer_stride, inner_stride, width, eps, plus_one != 0, threads);
}

STENTOR_EXPORT void stentor_layer_norm_f32(const float* x, const float* weight, const float* bias, float* out,
                                           float* residual, int64_t outer, int64_t inner, int64_t outer_stride,
                                           int64_t inner_stride, int64_t width, float eps, int64_t threads) {
    layer_norm(x, weight, bias, out, residual, outer, inner, outer_stride, inner_stride, width, eps, threads);
}

STENTOR_EXPORT void stentor_layer_norm_bf16(const bf16* x, const bf16* weight, const bf16* bias, bf16* out,
                                            bf16* residual, int64_t outer, int64_t inner, int64_t outer_stride,
                                            int64_t inner_stride, int64_t width, float eps, int64_t threads) {
    layer_norm(x, weight, bias, out, residual, outer, inner, outer_stride, inner_stride, width, eps, threads);
}
