// Top-k, min-p and top-p without a full sort: finds a lower bound of the wanted tokens, then filters those above it.
#pragma once

#include <algorithm>
#include <cmath>

#include "noise.h"
#include "scan.h"

namespace stentor::sampling {

struct RowParams {
    float inverse_temperature;
    int64_t top_k;  // 0 or below the vocabulary
    float min_p_threshold;
    double top_p;
};

// Masses of n candidates at z; returns their sum.
inline int64_t weigh(const float* z, int64_t n, int64_t* masses) {
    int64_t total = 0;
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        float scaled[BLOCK];
        const int64_t length = std::min(BLOCK, n - begin);
        for (int64_t i = 0; i < length; i += LANES) {
            const float* next = z + begin + i;
            store(scaled + i, scaled_exp(length - i < LANES ? load_part(next, length - i) : load(next)));
        }
        for (int64_t i = 0; i < length; ++i) {
            const int64_t mass = (int64_t)scaled[i];
            if (masses) masses[begin + i] = mass;
            total += mass;
        }
    }
    return total;
}

inline void lower(const float* x, int64_t n, float peak, float inverse_temperature, float* z) {
    for (int64_t i = 0; i < n; ++i) z[i] = (x[i] - peak) * inverse_temperature;
}

// Sum of the masses of a whole row.
inline int64_t weigh_row(const float* x, int64_t vocabulary, float peak, float inverse_temperature,
                         const Scratch& scratch) {
    int64_t total = 0;
    for (int64_t block = 0; block < blocks_of(vocabulary); ++block) {
        if (!((scratch.maxima[block] - peak) * inverse_temperature > -28.0f)) continue;  // less than 2**-40 each
        float z[BLOCK];
        const int64_t length = block_length(vocabulary, block);
        lower(x + block * BLOCK, length, peak, inverse_temperature, z);
        total += weigh(z, length, nullptr);
    }
    return total;
}

inline int64_t needed_mass(double top_p, int64_t total) {
    return std::min(std::max((int64_t)std::ceil(top_p * (double)total), (int64_t)1), total);
}

// Cuts n candidates, among them every token of the nucleus, to the nucleus; returns how many are left.
inline int64_t cut_to_nucleus(int64_t n, int64_t need, Scratch& scratch) {
    constexpr int BUCKETS = 256;
    const float* z = scratch.z.data();
    int32_t* ids = scratch.ids.data();
    float* values = scratch.values.data();
    const int64_t* masses = scratch.masses.data();
    float lowest = 0.0f;
    for (int64_t i = 0; i < n; ++i) lowest = std::min(lowest, z[i]);
    lowest = std::max(lowest, -40.0f);
    const float scale = lowest < 0.0f ? (BUCKETS - 1) / -lowest : 0.0f;
    // Equal logits fall in one bucket, and a larger logit never in a later one.
    const auto bucket_of = [&](int64_t i) { return (int)(-std::max(z[i], lowest) * scale); };

    int64_t sums[BUCKETS + 1] = {};
    for (int64_t i = 0; i < n; ++i) sums[bucket_of(i)] += masses[i];
    int bucket = 0;
    int64_t before = 0;
    while (before + sums[bucket] < need) before += sums[bucket++];

    int32_t* crossing = scratch.crossing.data();
    int64_t members = 0;
    bool sorted = true;
    for (int64_t i = 0; i < n; ++i) {
        if (bucket_of(i) != bucket) continue;
        sorted = sorted && (members == 0 || values[crossing[members - 1]] >= values[i]);
        crossing[members++] = (int32_t)i;
    }
    if (!sorted)
        std::sort(crossing, crossing + members, [&](int32_t a, int32_t b) {
            return values[a] > values[b] || (values[a] == values[b] && a < b);
        });
    int64_t last = 0;
    while ((before += masses[crossing[last]]) < need) ++last;
    const float limit = values[crossing[last]];
    const int32_t limit_id = ids[crossing[last]];

    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i) {
        const int32_t id = ids[i];
        const float value = values[i];
        ids[kept] = id;
        values[kept] = value;
        kept += value > limit || (value == limit && id <= limit_id);
    }
    return kept;
}

// The tokens that top-k, min-p and top-p leave, in `scratch`; returns how many.
inline int64_t filter(const float* x, int64_t vocabulary, float peak, const RowParams& params, Scratch& scratch) {
    const bool top_k = params.top_k > 0;
    const bool top_p = params.top_p < 1.0;
    if (top_p) scratch.make_room_for_masses();
    if (top_p && !top_k && params.min_p_threshold == -INF) {
        const int64_t total = weigh_row(x, vocabulary, peak, params.inverse_temperature, scratch);
        const int64_t need = needed_mass(params.top_p, total);
        // Tokens lighter than spare / V together weigh less than the spare, so none is in the nucleus.
        const double lightest = std::max((double)(total - need) / (double)vocabulary * 0x1p-40, 0x1p-40);
        const float threshold = (float)((std::log(lightest) - 0.01) / params.inverse_temperature);
        const int64_t n = collect(x, vocabulary, peak, -INF, threshold, scratch);
        lower(scratch.values.data(), n, peak, params.inverse_temperature, scratch.z.data());
        weigh(scratch.z.data(), n, scratch.masses.data());
        return cut_to_nucleus(n, need, scratch);
    }
    const float bound = top_k ? reached_by(params.top_k, vocabulary, scratch) : -INF;
    int64_t n = collect(x, vocabulary, peak, bound, params.min_p_threshold, scratch);
    if (top_k && n > params.top_k) {
        const float limit = kth_largest(scratch.values.data(), n, params.top_k, scratch.ordered);
        int64_t kept = 0;
        for (int64_t i = 0; i < n; ++i) {
            const float value = scratch.values[i];
            scratch.ids[kept] = scratch.ids[i];
            scratch.values[kept] = value;
            kept += value >= limit;
        }
        n = kept;
    }
    if (!top_p) return n;
    lower(scratch.values.data(), n, peak, params.inverse_temperature, scratch.z.data());
    const int64_t total = weigh(scratch.z.data(), n, scratch.masses.data());
    return cut_to_nucleus(n, needed_mass(params.top_p, total), scratch);
}

// If a logit is infinite, only the infinite ones remain, all equally likely.
inline int64_t filter_infinite(const float* x, int64_t vocabulary, double top_p, Scratch& scratch) {
    int64_t n = 0;
    for (int64_t i = 0; i < vocabulary; ++i) {
        scratch.ids[n] = (int32_t)i;
        scratch.values[n] = INF;
        n += x[i] == INF;
    }
    if (top_p < 1.0) {
        const int64_t mass = INT64_C(1) << MASS_BITS;
        n = (needed_mass(top_p, n * mass) + mass - 1) / mass;
    }
    std::fill_n(scratch.values.begin(), n, 0.0f);
    return n;
}

}  // namespace stentor::sampling
