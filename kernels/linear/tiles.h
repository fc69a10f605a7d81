// Products of rows with rows, x Wᵀ with W row-major: dot products with lanes along K.
//
// Each output has one vector accumulator that takes the steps of K in order and is summed by a fixed
// tree, whatever the tile it was computed in: the result does not depend on the number of rows, their
// place, or the threads. A tile of rows x columns is what makes it fast: each loaded vector of x meets
// `columns` accumulators and each of W meets `rows`.
#pragma once

#include "vec.h"

namespace stentor {
namespace products {

// Register tiles: up to 3 rows meet 8 columns, 4 to 6 rows meet 4 (24 accumulators of 32 registers);
// with 16 registers, up to 2 rows meet 4.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int GROUP = 8, SHALLOW = 3, DEEP = 6;
#else
constexpr int GROUP = 4, SHALLOW = 2, DEEP = 2;
#endif
constexpr int64_t PANEL = 6 * GROUP;       // columns of one item of work
constexpr int64_t SMALL = 1 << 16;         // multiply-adds below which a second thread does not pay
constexpr int64_t ROW_BYTES = 192 * 1024;  // of x, meant to stay in the second-level cache

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
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
// As above, eight at a time.
struct Brain {
    using Element = bf16;
    using Step = bfloat16x8_t;
    static constexpr int STEP = 8;
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
    static vf dot(vf acc, Step x, Step w) { return (vf)vbfdotq_f32((float32x4_t)acc, x, w); }
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

template <class T, class Out = T>
struct Problem {
    const T* x;
    const T* weight;
    const T* bias;  // null: none
    Out* out;
    int64_t rows, columns, inner, x_stride, weight_stride, out_stride;
};

// The sums of C accumulators, each by the tree of hsum.
template <int C>
static inline void reduce(const vf* acc, float* sums) {
#if defined(__AVX512F__)
    if constexpr (C % 4 == 0) {
        for (int c = 0; c < C; c += 4) {
            const __m512 v0 = (__m512)acc[c], v1 = (__m512)acc[c + 1], v2 = (__m512)acc[c + 2], v3 = (__m512)acc[c + 3];
            // Quarters of 4 lanes: i + (i + 2) for two vectors side by side, then i + (i + 1) for four.
            const __m512 lower = _mm512_add_ps(_mm512_shuffle_f32x4(v0, v1, 0x44), _mm512_shuffle_f32x4(v0, v1, 0xee));
            const __m512 upper = _mm512_add_ps(_mm512_shuffle_f32x4(v2, v3, 0x44), _mm512_shuffle_f32x4(v2, v3, 0xee));
            __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(lower, upper, 0x88),
                                        _mm512_shuffle_f32x4(lower, upper, 0xdd));
            // Within each quarter: lane + (lane + 2), then lane + (lane + 1).
            four = _mm512_add_ps(four, _mm512_permute_ps(four, 0x0e));
            four = _mm512_add_ps(four, _mm512_permute_ps(four, 0x01));
            const __m512i pick = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            _mm_storeu_ps(sums + c, _mm512_castps512_ps128(_mm512_permutexvar_ps(pick, four)));
        }
        return;
    }
#endif
    for (int c = 0; c < C; ++c) sums[c] = hsum(acc[c]);
}

// Computes R x C outputs. With `ahead` the same rows of the next columns are fetched meanwhile: with few
// rows the weights come from memory, and what the hardware fetches by itself does not fill the bus.
template <class Kind, int R, int C, class P>
void tile(const P& p, int64_t row, int64_t column, bool ahead) {
    vf acc[R][C] = {};
    const auto* x = p.x + row * p.x_stride;
    const auto* w = p.weight + column * p.weight_stride;
    const auto* next = ahead ? w + GROUP * p.weight_stride : w;
    int64_t k = 0;
    for (; k + Kind::STEP <= p.inner; k += Kind::STEP) {
        typename Kind::Step xs[R];
        for (int r = 0; r < R; ++r) xs[r] = Kind::take(x + r * p.x_stride + k);
        for (int c = 0; c < C; ++c) {
            if (R > 1) __builtin_prefetch(next + c * p.weight_stride + k);
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
    for (int r = 0; r < R; ++r) {
        float sums[C];
        reduce<C>(acc[r], sums);
        auto* to = p.out + (row + r) * p.out_stride + column;
        for (int c = 0; c < C; ++c) narrow(p.bias ? sums[c] + widen(p.bias[column + c]) : sums[c], to + c);
    }
}

template <class Kind, int R, class P>
void group(const P& p, int64_t row, int64_t column, bool ahead) {
    if constexpr (R <= SHALLOW)
        tile<Kind, R, GROUP>(p, row, column, ahead);
    else
        for (int c = 0; c < GROUP; c += GROUP / 2) tile<Kind, R, GROUP / 2>(p, row, column + c, ahead);
}

// GROUP columns for the rows [row, end).
template <class Kind, class P>
void groups(const P& p, int64_t row, int64_t end, int64_t column) {
    bool ahead = true;
    for (; row + DEEP <= end; row += DEEP, ahead = false) group<Kind, DEEP>(p, row, column, ahead);
#if defined(__AVX512F__) || defined(__aarch64__)
    switch (end - row) {
        case 5: return group<Kind, 5>(p, row, column, ahead);
        case 4: return group<Kind, 4>(p, row, column, ahead);
        case 3: return group<Kind, 3>(p, row, column, ahead);
        case 2: return group<Kind, 2>(p, row, column, ahead);
        default: break;
    }
#endif
    if (row < end) group<Kind, 1>(p, row, column, ahead);
}

// How outputs are cut into items of work: some rows and a panel of columns each.
struct Cut {
    int64_t depth, blocks, panels;

    int64_t items() const { return blocks * panels; }
};

// Into enough items for `threads`.
template <class Kind>
Cut cut(int64_t rows, int64_t columns, int64_t inner, int64_t threads) {
    const int64_t bytes = inner * (int64_t)sizeof(typename Kind::Element) + 1;
    const int64_t panels = (columns + PANEL - 1) / PANEL;
    int64_t depth = (ROW_BYTES / bytes / DEEP + 1) * DEEP;
    const auto blocks = [&] { return (rows + depth - 1) / depth; };
    while (blocks() * panels < 4 * threads && depth > 4 * DEEP) depth = depth / (2 * DEEP) * DEEP;
    return {depth, blocks(), panels};
}

template <class Kind, class P>
void multiply_item(const P& p, const Cut& cut, int64_t item) {
    const int64_t row = item / cut.panels * cut.depth, end = row + cut.depth < p.rows ? row + cut.depth : p.rows;
    int64_t column = item % cut.panels * PANEL;
    const int64_t stop = column + PANEL < p.columns ? column + PANEL : p.columns;
    for (; column + GROUP <= stop; column += GROUP) groups<Kind>(p, row, end, column);
    for (; column < stop; ++column)
        for (int64_t r = row; r < end; ++r) tile<Kind, 1, 1>(p, r, column, false);
}

}  // namespace products
}  // namespace stentor
