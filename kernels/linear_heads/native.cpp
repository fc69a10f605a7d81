// y[:, h] = x[:, h] W[h]ᵀ with every W[h] row-major; see ../linear/tiles.h.
#include "../linear/tiles.h"
#include "parallel.h"

namespace stentor {
namespace {

using namespace products;

template <class Kind>
void multiply_heads(const Problem<typename Kind::Element>& first, int64_t heads, int64_t x_head, int64_t weight_head,
                    int64_t threads) {
    const Cut each = cut<Kind>(first.rows, first.columns, first.inner, (threads + heads - 1) / heads);
    if (heads * first.rows * first.columns * first.inner < SMALL) threads = 1;
    parallel_for(heads * each.items(), threads, [&](int64_t item) {
        const int64_t head = item / each.items();
        Problem<typename Kind::Element> p = first;
        p.x += head * x_head;
        p.weight += head * weight_head;
        p.out += head * p.columns;
        multiply_item<Kind>(p, each, item % each.items());
    });
}

}  // namespace
}  // namespace stentor

using namespace stentor;

#define STENTOR_LINEAR_HEADS(NAME, KIND, T)                                                                       \
    STENTOR_EXPORT void NAME(const T* x, const T* weight, T* out, int64_t tokens, int64_t heads, int64_t columns, \
                             int64_t inner, int64_t x_stride, int64_t x_head, int64_t weight_head,                \
                             int64_t weight_stride, int64_t threads) {                                            \
        multiply_heads<products::KIND>(                                                                           \
            {x, weight, nullptr, out, tokens, columns, inner, x_stride, weight_stride, heads * columns}, heads,   \
            x_head, weight_head, threads);                                                                        \
    }

STENTOR_LINEAR_HEADS(stentor_linear_heads_f32, Single, float)
STENTOR_LINEAR_HEADS(stentor_linear_heads_bf16, Brain, bf16)
