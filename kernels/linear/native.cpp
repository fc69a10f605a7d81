// y = x Wᵀ + b with W row-major: dot products with lanes along K.
//
// Each output has one vector accumulator that takes the steps of K in order and is summed by a fixed
// tree, whatever the tile it was computed in: the result does not depend on the number of rows, their
// place, or the threads. A tile of rows x columns is what makes it fast: each loaded vector of x meets
// `columns` accumulators and each of W meets `rows`.
#include "parallel.h"
#include "vec.h"

namespace stentor {
namespace {

#if defined(__AVX512F__)
constexpr int ROWS = 4, COLUMNS = 6;  // 24 of 32 registers accumulate
#else
constexpr int ROWS = 2, COLUMNS = 4;
#endif
constexpr int64_t PANEL = 8 * COLUMNS;        // columns of one item of work
constexpr int64_t ROW_BYTES = 192 * 1024;     // of x, meant to stay in the second-level cache

// How one dtype accumulates: a step takes STEP elements of K.
struct Single {
    using Element = float;
    using Step = vf;
    static constexpr int STEP = LANES;
    static Step take(const float* p) { return load(p); }
    static Step take_part(const float* p, int64_t n) { return load_part(p, n); }
    static vf dot(vf acc, Step x, Step w) { return fma(x, w, acc); }
};

#if defined(__AVX512BF16__)
// Two products a lane and step, summed in float by the instruction.
struct Brain {
    using Element = bf16;
    using Step = __m512bh;
    static constexpr int STEP = 32;
    static Step take(const bf16* p) {
        Step out;
        std::memcpy(&out, p, sizeof out);
        return out;
    }
    static Step take_part(const bf16* p, int64_t n) {
        bf16 part[STEP] = {};
        std::memcpy(part, p, (size_t)n * sizeof(bf16));
        return take(part);
    }
    static vf dot(vf acc, Step x, Step w) { return (vf)_mm512_dpbf16_ps((__m512)acc, x, w); }
};
#else
struct Brain {
    using Element = bf16;
    using Step = vf;
    static constexpr int STEP = LANES;
    static Step take(const bf16* p) { return load(p); }
    static Step take_part(const bf16* p, int64_t n) { return load_part(p, n); }
    static vf dot(vf acc, Step x, Step w) { return fma(x, w, acc); }
};
#endif

template <class T>
struct Problem {
    const T* x;
    const T* weight;
    const T* bias;  // null: none
    T* out;
    int64_t rows, columns, inner, x_stride, weight_stride;
};

template <class Kind, int R, int C>
void tile(const Problem<typename Kind::Element>& p, int64_t row, int64_t column) {
    using T = typename Kind::Element;
    vf acc[R][C] = {};
    const T* x = p.x + row * p.x_stride;
    const T* w = p.weight + column * p.weight_stride;
    int64_t k = 0;
    for (; k + Kind::STEP <= p.inner; k += Kind::STEP) {
        typename Kind::Step xs[R];
        for (int r = 0; r < R; ++r) xs[r] = Kind::take(x + r * p.x_stride + k);
        for (int c = 0; c < C; ++c) {
            const auto ws = Kind::take(w + c * p.weight_stride + k);
            for (int r = 0; r < R; ++r) acc[r][c] = Kind::dot(acc[r][c], xs[r], ws);
        }
    }
    if (k < p.inner) {
        const int64_t n = p.inner - k;
        for (int c = 0; c < C; ++c) {
            const auto ws = Kind::take_part(w + c * p.weight_stride + k, n);
            for (int r = 0; r < R; ++r)
                acc[r][c] = Kind::dot(acc[r][c], Kind::take_part(x + r * p.x_stride + k, n), ws);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) {
            float sum = hsum(acc[r][c]);
            if (p.bias) sum += widen(p.bias[column + c]);
            narrow(sum, p.out + (row + r) * p.columns + column + c);
        }
}

template <class Kind, int C>
void column_group(const Problem<typename Kind::Element>& p, int64_t row, int64_t end, int64_t column) {
    for (; row + ROWS <= end; row += ROWS) tile<Kind, ROWS, C>(p, row, column);
    for (; row + 2 <= end; row += 2) tile<Kind, 2, C>(p, row, column);
    for (; row < end; ++row) tile<Kind, 1, C>(p, row, column);
}

template <class Kind>
void multiply(const Problem<typename Kind::Element>& p, int64_t threads) {
    const int64_t bytes = p.inner * (int64_t)sizeof(typename Kind::Element) + 1;
    const int64_t depth = (ROW_BYTES / bytes / ROWS + 1) * ROWS;
    const int64_t panels = (p.columns + PANEL - 1) / PANEL;
    for (int64_t row = 0; row < p.rows; row += depth) {
        const int64_t end = row + depth < p.rows ? row + depth : p.rows;
        parallel_for(panels, threads, [&](int64_t panel) {
            int64_t column = panel * PANEL;
            const int64_t stop = column + PANEL < p.columns ? column + PANEL : p.columns;
            for (; column + COLUMNS <= stop; column += COLUMNS) column_group<Kind, COLUMNS>(p, row, end, column);
            for (; column < stop; ++column) column_group<Kind, 1>(p, row, end, column);
        });
    }
}

}  // namespace
}  // namespace stentor

using namespace stentor;

STENTOR_EXPORT void stentor_linear_f32(const float* x, const float* weight, const float* bias, float* out, int64_t rows,
                                       int64_t columns, int64_t inner, int64_t x_stride, int64_t weight_stride,
                                       int64_t threads) {
    multiply<Single>({x, weight, bias, out, rows, columns, inner, x_stride, weight_stride}, threads);
}

STENTOR_EXPORT void stentor_linear_bf16(const bf16* x, const bf16* weight, const bf16* bias, bf16* out, int64_t rows,
                                        int64_t columns, int64_t inner, int64_t x_stride, int64_t weight_stride,
                                        int64_t threads) {
    multiply<Brain>({x, weight, bias, out, rows, columns, inner, x_stride, weight_stride}, threads);
}
