// An online softmax over tiles of keys: its state, and the update of one row by a tile.
#pragma once

#include "simd_math.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace stentor {
namespace attention {

// How far a score may exceed the origin of the weights before sums are rescaled. Rescaling is then rare, and weights of up
// to 2^8 are far from overflow.
constexpr float SLACK = 8.0f;
constexpr float LOG2E = 1.44269504088896341f;

static inline int64_t padded(int64_t dim) { return (dim + LANES - 1) / LANES * LANES; }

// The state of a softmax over some keys, for each row. Scores (times log2 e) are relative to an origin: they are added to
// `starts`, which is -origin, or 0 before the first key. A score above `limits` (SLACK, or -infinity before the first key)
// moves the origin. `totals` is the sum of weights in LANES parts, `sums` the sum of weighted values, `width` floats a row.
struct Running {
    float *starts, *limits, *totals, *sums;
    int64_t width;

    // Number of floats of this many rows; `at` is their memory.
    static int64_t floats(int64_t rows, int64_t width) { return 2 * padded(rows) + rows * (LANES + width); }
    static Running at(float* at, int64_t rows, int64_t width) {
        float *const limits = at + padded(rows), *const totals = limits + padded(rows);
        return {at, limits, totals, totals + rows * LANES, width};
    }
    // The state of the rows from `row` on.
    Running from(int64_t row) const {
        return {starts + row, limits + row, totals + row * LANES, sums + row * width, width};
    }

    void clear(int64_t rows) const {
        std::fill_n(starts, rows, 0.0f);
        std::fill_n(limits, rows, NOTHING);
        std::fill_n(totals, rows * LANES, 0.0f);
        std::fill_n(sums, rows * width, 0.0f);
    }

    bool empty(int64_t row) const { return limits[row] == NOTHING; }

    // Moves the origin up by `above`; out of line, because it is rare.
    __attribute__((noinline)) void move(int64_t row, float above) const {
        starts[row] -= above;
        if (empty(row)) {
            limits[row] = SLACK;
            return;
        }
        const vf factor = exp2(set1(-above));
        scale(totals + row * LANES, factor, LANES);
        scale(sums + row * width, factor, width);
    }

    // Adds the state of `part`, whose keys follow.
    void join(int64_t row, const Running& part, int64_t part_row) const {
        if (part.empty(part_row)) return;
        const float theirs = -part.starts[part_row], ours = empty(row) ? NOTHING : -starts[row];
        const float top = std::max(ours, theirs);
        const vf mine = exp2(set1(ours - top)), other = exp2(set1(theirs - top));
        starts[row] = -top;
        limits[row] = SLACK;
        blend(totals + row * LANES, mine, part.totals + part_row * LANES, other, LANES);
        blend(sums + row * width, mine, part.sums + part_row * width, other, width);
    }

   private:
    static constexpr float NOTHING = -std::numeric_limits<float>::infinity();

    static void scale(float* at, vf factor, int64_t n) {
        for (int64_t i = 0; i < n; i += LANES) store(at + i, load(at + i) * factor);
    }
    static void blend(float* to, vf mine, const float* from, vf other, int64_t n) {
        for (int64_t i = 0; i < n; i += LANES) store(to + i, load(to + i) * mine + load(from + i) * other);
    }
};

// Converts weights to the form that the products take.
template <int VECTORS>
static inline void put_weights(const vf* weights, float* to) {
    #pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) store(to + v * LANES, weights[v]);
}
#if defined(__AVX512BF16__)
// Flushes subnormal numbers to zero, as the products do.
template <int VECTORS>
static inline void put_weights(const vf* weights, bf16* to) {
    #pragma GCC unroll 16
    for (int v = 0; v + 2 <= VECTORS; v += 2) {
        const __m512bh two = _mm512_cvtne2ps_pbh((__m512)weights[v + 1], (__m512)weights[v]);
        std::memcpy(to + v * LANES, &two, sizeof two);
    }
    if constexpr (VECTORS % 2) {
        const __m256bh one = _mm512_cvtneps_pbh((__m512)weights[VECTORS - 1]);
        std::memcpy(to + (VECTORS - 1) * LANES, &one, sizeof one);
    }
}
#else
template <int VECTORS>
static inline void put_weights(const vf* weights, bf16* to) {
    #pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) store(to + v * LANES, weights[v]);
}
#endif

// Caps the scores of one row, which have neither their start nor the factor log2 e, and then applies both.
static inline void cap(float* scores, int64_t keys, float softcap, float start) {
    for (int64_t i = 0; i < keys; i += LANES)
        store(scores + i, tanh(load(scores + i) / set1(softcap)) * set1(softcap * LOG2E) + set1(start));
}

// Masks all keys but [begin, end).
static inline void hide(float* scores, int64_t keys, int64_t begin, int64_t end) {
    vi lane;
    for (int i = 0; i < LANES; ++i) lane[i] = i;
    const vf hidden = set1(-std::numeric_limits<float>::infinity());
    for (int64_t i = 0; i < keys; i += LANES) {
        const vi at = lane + (int32_t)i;
        store(scores + i, select((at >= (int32_t)begin) & (at < (int32_t)end), load(scores + i), hidden));
    }
}

static inline vf power_of(vf x, float) { return exp2(x); }
static inline vf power_of(vf x, bf16) { return exp2_roughly(x); }

static inline bool any_above(vf x, float limit) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
#else
    return hmax(x) > limit;
#endif
}

// Turns the scores of `count` rows over KEYS_HERE keys, at least one of them visible, into weights, and updates origins, totals
// and sums; rows of scores and weights lie `apart`. FROM_ZERO: scores do not include their start yet.
template <int KEYS_HERE, bool FROM_ZERO = false, class Weight>
void weigh(const float* scores, Weight* weights, int64_t apart, const Running& state, int64_t row, int64_t count) {
    constexpr int VECTORS = KEYS_HERE / LANES;
    float *const limits = state.limits + row, *const totals = state.totals + row * LANES;
    for (int64_t r = 0; r < count; ++r) {
        vf s[VECTORS];
        #pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) s[v] = load(scores + r * apart + v * LANES);
        if constexpr (FROM_ZERO) {
            const vf start = set1(state.starts[row + r]);
            #pragma GCC unroll 16
            for (int v = 0; v < VECTORS; ++v) s[v] += start;
        }
        vf highest = s[0];
        #pragma GCC unroll 16
        for (int v = 1; v < VECTORS; ++v) highest = vmax(highest, s[v]);
        if (__builtin_expect(any_above(highest, limits[r]), 0)) {
            const float above = hmax(highest);
            state.move(row + r, above);
            #pragma GCC unroll 16
            for (int v = 0; v < VECTORS; ++v) s[v] -= set1(above);
        }
        vf sum = {};
        #pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) {
            s[v] = power_of(s[v], Weight{});
            sum += s[v];
        }
        put_weights<VECTORS>(s, weights + r * apart);
        store(totals + r * LANES, load(totals + r * LANES) + sum);
    }
}

}  // namespace attention
}  // namespace stentor
