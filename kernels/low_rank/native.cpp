// Adapters on products that are no program's: see low_rank.h.
#include "low_rank.h"
#include "parallel.h"

using namespace stentor;
using namespace stentor::low_rank;

// Adds to rows of y, float [tokens, y_stride], what their adapters make of the same rows of x.
STENTOR_EXPORT void stentor_low_rank_f32(float* y, int64_t y_stride, const float* x, int64_t x_stride,
                                         const Slots* slots, const Rows* of, int64_t threads) {
    const int64_t rows_in_all = of->groups ? of->starts[of->groups] : 0;
    const std::vector<Span> spans = spans_of(*of, rows_of_span(rows_in_all, threads));
    const Prepared rows{(const uint8_t*)x, x_stride * (int64_t)sizeof(float)};
    int64_t stride = 0;
    for (int64_t g = 0; g < of->groups; ++g)
        if (const Adapter* adapter = slots->at(of->slots[g])) stride = std::max(stride, padded_ranks(*adapter));
    std::vector<float> low((size_t)(rows_in_all * stride));
    parallel_for((int64_t)spans.size(), threads, [&](int64_t item) {
        const Span& span = spans[(size_t)item];
        const Adapter* adapter = slots->at(span.slot);
        if (!adapter) return;
        shrink(*adapter, span, of->rows, rows, ActivationFormat::F32, low.data(), stride);
        expand_piece(*adapter, 0, 1, span, low.data(), stride, [&](int64_t place) { return y + of->rows[place] * y_stride; });
    });
}
