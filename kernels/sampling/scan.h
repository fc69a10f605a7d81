// Passes over one row of logits: the largest of each block, and the candidates for sampling.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "vec.h"

namespace stentor::sampling {

constexpr int64_t BLOCK = 64;
constexpr float INF = std::numeric_limits<float>::infinity();

// Scratch memory to sample one row. Each thread keeps one, so that only its first call for a vocabulary allocates.
struct Scratch {
    std::vector<float> maxima;   // of each block
    std::vector<float> ordered;  // partly sorted copies
    std::vector<int32_t> ids;    // candidates, ascending
    std::vector<float> values;   // their logits
    std::vector<float> z;        // their logits below the peak, over temperature
    std::vector<int64_t> masses;
    std::vector<int32_t> crossing;  // places of the candidates near the top-p limit

    static Scratch& of_thread(int64_t vocabulary) {
        thread_local Scratch scratch;
        const size_t room = (size_t)(vocabulary + BLOCK);
        if (scratch.ids.size() < room) {
            scratch.maxima.resize(room / BLOCK + 1);
            scratch.ordered.resize(room);
            scratch.ids.resize(room);
            scratch.values.resize(room);
        }
        return scratch;
    }
    // Only top-p reads these.
    void make_room_for_masses() {
        if (masses.size() < ids.size()) {
            z.resize(ids.size());
            masses.resize(ids.size());
            crossing.resize(ids.size());
        }
    }
};

inline int64_t blocks_of(int64_t vocabulary) { return (vocabulary + BLOCK - 1) / BLOCK; }
inline int64_t block_length(int64_t vocabulary, int64_t block) { return std::min(BLOCK, vocabulary - block * BLOCK); }

// The largest of up to BLOCK logits; NaN counts as -inf.
inline float largest(const float* x, int64_t n) {
    vf best = set1(-INF);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vf next = load(x + i);
        best = next > best ? next : best;
    }
    float result = hmax(best);
    for (; i < n; ++i) result = x[i] > result ? x[i] : result;
    return result;
}

// Fills the block maxima and returns the largest.
inline float scan_maxima(const float* x, int64_t vocabulary, std::vector<float>& maxima) {
    float peak = -INF;
    for (int64_t block = 0; block < blocks_of(vocabulary); ++block) {
        const float best = largest(x + block * BLOCK, block_length(vocabulary, block));
        maxima[block] = best;
        peak = best > peak ? best : peak;
    }
    return peak;
}

inline int64_t first_equal(const float* x, float value) {
    int64_t i = 0;
    while (x[i] != value) ++i;
    return i;
}

// First index of the largest logit; -1 where nothing is above -inf.
inline int64_t find_argmax(const float* x, int64_t vocabulary) {
    float peak = -INF;
    int64_t where = -1;
    for (int64_t block = 0; block < blocks_of(vocabulary); ++block) {
        const float best = largest(x + block * BLOCK, block_length(vocabulary, block));
        if (best > peak) {
            peak = best;
            where = block;
        }
    }
    return where < 0 ? -1 : where * BLOCK + first_equal(x + where * BLOCK, peak);
}

// The k-th largest of n values, 1 <= k <= n; `copy` is overwritten.
inline float kth_largest(const float* x, int64_t n, int64_t k, std::vector<float>& copy) {
    std::copy(x, x + n, copy.begin());
    std::nth_element(copy.begin(), copy.begin() + (k - 1), copy.begin() + n, std::greater<float>());
    return copy[k - 1];
}

// A logit that at least k tokens reach: the k-th largest block maximum, since each belongs to another token. -inf if unknown.
inline float reached_by(int64_t k, int64_t vocabulary, Scratch& scratch) {
    const int64_t blocks = blocks_of(vocabulary);
    return k > blocks ? -INF : kth_largest(scratch.maxima.data(), blocks, k, scratch.ordered);
}

// Gathers tokens above -inf with logit >= bound and logit - peak >= threshold, in ascending order; returns how many.
inline int64_t collect(const float* x, int64_t vocabulary, float peak, float bound, float threshold, Scratch& scratch) {
    bound = std::max(bound, -FLT_MAX);
    int64_t found = 0;
    int32_t* ids = scratch.ids.data();
    float* values = scratch.values.data();
    for (int64_t block = 0; block < blocks_of(vocabulary); ++block) {
        const float best = scratch.maxima[block];
        if (!(best >= bound && best - peak >= threshold)) continue;
        const int64_t begin = block * BLOCK, end = begin + block_length(vocabulary, block);
        for (int64_t i = begin; i < end; ++i) {
            ids[found] = (int32_t)i;
            values[found] = x[i];
            found += (x[i] >= bound) & (x[i] - peak >= threshold);
        }
    }
    return found;
}

}  // namespace stentor::sampling
