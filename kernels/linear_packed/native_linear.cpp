// A linear layer by itself: inputs prepared, multiplied, and perhaps activated and rounded while they are in the cache.
#include "../activation/gates.h"
#include "multiply.h"
#include "parallel.h"

#include <cstdlib>
#include <vector>

namespace stentor {
namespace {

constexpr int64_t SMALL = 1 << 16;  // multiply-adds below which a second thread does not pay

struct Output {
    void* rows;          // contiguous
    int64_t brain;       // bfloat16, not float
    int64_t activation;  // as in activation/native.cpp, or -1
};

// A vector of a row of sums, on its way out.
static inline vf activated(vf x, int64_t activation) {
    switch (activation) {
        case 0: return Silu::apply(x);
        case 1: return GeluTanh::apply(x);
        case 2: return Gelu::apply(x);
        case 3: return Relu2::apply(x);
        case 4: return QuickGelu::apply(x);
        case 5: return Relu::apply(x);
        default: return x;
    }
}

template <class T>
void finish_row(const float* sums, int64_t count, int64_t activation, T* to) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(to + i, activated(load(sums + i), activation));
    if (i < count) store_part(to + i, activated(load_part(sums + i, count - i), activation), count - i);
}

// As multiply_item, whose sums stand in the cache until they are finished.
void multiply_and_finish(const Packed& w, const Cut& cut, int64_t item, const Prepared& x, int64_t row_count,
                         const float* bias, const Output& out) {
    static thread_local std::vector<float> sums;
    const int64_t row = item / cut.tile_blocks * cut.rows, end = std::min(row + cut.rows, row_count);
    const int64_t tile = item % cut.tile_blocks * cut.tiles, first = tile * TILE, width = cut.tiles * TILE;
    const int64_t columns = std::min(width, w.outputs - first);
    if ((int64_t)sums.size() < cut.rows * width) sums.resize(cut.rows * width);
    multiply_item(w, cut, item, x, row_count, {sums.data(), width, bias, row * width + first});
    for (int64_t r = row; r < end; ++r) {
        const float* from = sums.data() + (r - row) * width;
        const int64_t at = r * w.outputs + first;
        if (out.brain)
            finish_row(from, columns, out.activation, (bf16*)out.rows + at);
        else
            finish_row(from, columns, out.activation, (float*)out.rows + at);
    }
}

}  // namespace
}  // namespace stentor

using namespace stentor;

// out [rows, outputs] = act(x [rows, inputs] times the weight, plus bias [outputs] or null). Rows of x lie `stride`
// elements apart; they are floats, or where `ready` as the weight takes them, which is for BF16 with inputs in pairs.
// Returns 0, or 1 where there is no memory for the prepared rows.
STENTOR_EXPORT int64_t stentor_linear_packed(const Packed* w, const void* x, int64_t ready, int64_t stride,
                                             const float* bias, int64_t activation, void* out, int64_t brain,
                                             int64_t rows, int64_t threads) {
    if (rows == 0 || w->outputs == 0) return 0;
    const ActivationFormat format = activation_format_of(w->kind);
    const int64_t bytes = ready ? stride * 2 : prepared_stride(format, w->inputs);
    uint8_t* const made = ready ? nullptr : (uint8_t*)std::aligned_alloc(64, (size_t)(rows * bytes));
    if (!ready && made == nullptr) return 1;
    if (rows * w->outputs * w->inputs < SMALL) threads = 1;
    if (!ready)
        parallel_rows(rows, 8, threads, [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r)
                prepare_row((const float*)x + r * stride, w->inputs, format, made + r * bytes);
        });
    const Prepared prepared{ready ? (const uint8_t*)x : made, bytes};
    const Cut cut(*w, prepared, rows, threads);
    const Output to{out, brain, activation};
    parallel_for(cut.items(), threads, [&](int64_t item) {
        if (brain || activation >= 0)
            multiply_and_finish(*w, cut, item, prepared, rows, bias, to);
        else
            multiply_item(*w, cut, item, prepared, rows, {(float*)out, w->outputs, bias});
    });
    std::free(made);
    return 0;
}
