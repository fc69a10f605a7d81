// y = x Wᵀ + b with W row-major; see tiles.h.
#include "parallel.h"
#include "tiles.h"

namespace stentor {
namespace {

using namespace products;

template <class Kind>
void multiply(const Problem<typename Kind::Element>& p, int64_t threads) {
    const Cut each = cut<Kind>(p.rows, p.columns, p.inner, threads);
    if (p.rows * p.columns * p.inner < SMALL) threads = 1;
    parallel_for(each.items(), threads, [&](int64_t item) { multiply_item<Kind>(p, each, item); });
}

}  // namespace
}  // namespace stentor

using namespace stentor;

STENTOR_EXPORT void stentor_linear_f32(const float* x, const float* weight, const float* bias, float* out, int64_t rows,
                                       int64_t columns, int64_t inner, int64_t x_stride, int64_t weight_stride,
                                       int64_t threads) {
    multiply<Single>({x, weight, bias, out, rows, columns, inner, x_stride, weight_stride, columns}, threads);
}

STENTOR_EXPORT void stentor_linear_bf16(const bf16* x, const bf16* weight, const bf16* bias, bf16* out, int64_t rows,
                                        int64_t columns, int64_t inner, int64_t x_stride, int64_t weight_stride,
                                        int64_t threads) {
    multiply<Brain>({x, weight, bias, out, rows, columns, inner, x_stride, weight_stride, columns}, threads);
}

// Rows up to which these kernels are the faster choice; past them torch's own, packed, products win.
STENTOR_EXPORT int64_t stentor_linear_rows_f32() {
#if defined(__AVX512F__)
    return INT64_MAX;
#else
    return 16;
#endif
}

STENTOR_EXPORT int64_t stentor_linear_rows_bf16() {
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return 24;
#else
    return 4;
#endif
}
