// Gumbel-max sampling: the draw is the token with the largest logit plus noise.
#pragma once

#include <algorithm>
#include <limits>

#include "noise.h"
#include "scan.h"

namespace stentor::sampling {

inline vu make_iota() {
    vu iota = {};
    for (int lane = 0; lane < LANES; ++lane) iota[lane] = (uint32_t)lane;
    return iota;
}
static const vu IOTA = make_iota();

// Argmax of z + gumbel over candidates that are offered in any order. A candidate's noise is computed exactly
// only where a cheap upper bound of it could still win.
struct GumbelMax {
    uint64_t key;
    float peak, inverse_temperature;
    double best = -std::numeric_limits<double>::infinity();
    int64_t winner = -1;

    void run(int32_t id, uint32_t word, float z) {
        const double value = (double)z + gumbel(word);
        if (value > best || (value == best && id < winner)) {
            best = value;
            winner = id;
        }
    }
    void start(int32_t id) { run(id, noise_word(key, (uint32_t)id), 0.0f); }

    // Up to BLOCK candidates with their logits. `id_at(i)` is the id of one, `ids_at(i)` of a vector of them.
    template <class IdAt, class IdsAt>
    void offer(const float* logits, int64_t n, const IdAt& id_at, const IdsAt& ids_at) {
        uint32_t words[BLOCK];
        float zs[BLOCK], bounds[BLOCK];
        const vf limit = set1((float)best);
        vi any = {};
        int64_t i = 0;
        for (; i < n; i += LANES) {
            const vf x = n - i < LANES ? load_part(logits + i, n - i) : load(logits + i);
            const vu word = noise_word(key, ids_at(i));
            const vf z = (x - peak) * inverse_temperature;
            const vf bound = z + gumbel_bound(word);
            any |= bound > limit;
            std::memcpy(words + i, &word, sizeof word);
            store(zs + i, z);
            store(bounds + i, bound);
        }
        uint64_t halves[sizeof any / 8], found = 0;
        std::memcpy(halves, &any, sizeof any);
        for (const uint64_t half : halves) found |= half;
        if (!found) return;
        for (i = 0; i < n; ++i)
            if (bounds[i] > (float)best) run(id_at(i), words[i], zs[i]);
    }
    void offer_range(int32_t first, const float* logits, int64_t n) {
        const auto id_at = [&](int64_t i) { return first + (int32_t)i; };
        offer(logits, n, id_at, [&](int64_t i) { return IOTA + (uint32_t)id_at(i); });
    }
    // Reads `ids` to the end of a vector.
    void offer_list(const int32_t* ids, const float* logits, int64_t n) {
        const auto ids_at = [&](int64_t i) {
            vu part;
            std::memcpy(&part, ids + i, sizeof part);
            return part;
        };
        offer(logits, n, [&](int64_t i) { return ids[i]; }, ids_at);
    }
};

}  // namespace stentor::sampling
