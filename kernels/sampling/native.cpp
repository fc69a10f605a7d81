// Draws, edits and log-probabilities of the sampler. reference.py is the definition; choices are equal to its, bit for bit.
#include <numeric>

#include "noise.h"
#include "parallel.h"
#include "scan.h"

namespace {

using namespace stentor;
using namespace stentor::sampling;

// Below this a second thread costs more than it brings.
constexpr int64_t LOGITS_PER_THREAD = 1 << 18;

vu make_iota() {
    vu iota = {};
    for (int lane = 0; lane < LANES; ++lane) iota[lane] = (uint32_t)lane;
    return iota;
}
const vu IOTA = make_iota();

int64_t useful_threads(int64_t logits, int64_t threads) { return std::min(threads, 1 + logits / LOGITS_PER_THREAD); }

// Argmax of z + gumbel over candidates that are offered in any order. A candidate's noise is computed exactly
// only where a cheap upper bound of it could still win.
struct Race {
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

struct Rules {
    float inverse_temperature;
    int64_t top_k;  // 0 or below the vocabulary
    float reach;
    double top_p;
};

// Masses of n candidates at z; returns their sum.
int64_t weigh(const float* z, int64_t n, int64_t* masses) {
    int64_t total = 0;
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        float scaled[BLOCK];
        const int64_t length = std::min(BLOCK, n - begin);
        for (int64_t i = 0; i < length; i += LANES)
            store(scaled + i, scaled_exp(length - i < LANES ? load_part(z + begin + i, length - i) : load(z + begin + i)));
        for (int64_t i = 0; i < length; ++i) {
            const int64_t mass = (int64_t)scaled[i];
            if (masses) masses[begin + i] = mass;
            total += mass;
        }
    }
    return total;
}

void lower(const float* x, int64_t n, float peak, float inverse_temperature, float* z) {
    for (int64_t i = 0; i < n; ++i) z[i] = (x[i] - peak) * inverse_temperature;
}

// Sum of the masses of a whole row.
int64_t weigh_row(const float* x, int64_t vocabulary, float peak, float inverse_temperature, const Scratch& scratch) {
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

int64_t needed_mass(double top_p, int64_t total) {
    return std::min(std::max((int64_t)std::ceil(top_p * (double)total), (int64_t)1), total);
}

// Cuts n candidates, among them every token of the nucleus, to the nucleus; returns how many are left.
int64_t cut_to_nucleus(int64_t n, int64_t need, Scratch& scratch) {
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
int64_t filter(const float* x, int64_t vocabulary, float peak, const Rules& rules, Scratch& scratch) {
    const bool top_k = rules.top_k > 0;
    const bool top_p = rules.top_p < 1.0;
    if (top_p) scratch.make_room_for_masses();
    if (top_p && !top_k && rules.reach == -INF) {
        const int64_t total = weigh_row(x, vocabulary, peak, rules.inverse_temperature, scratch);
        const int64_t need = needed_mass(rules.top_p, total);
        // Tokens lighter than spare / V together weigh less than the spare, so none is in the nucleus.
        const double lightest = std::max((double)(total - need) / (double)vocabulary * 0x1p-40, 0x1p-40);
        const float reach = (float)((std::log(lightest) - 0.01) / rules.inverse_temperature);
        const int64_t n = collect(x, vocabulary, peak, -INF, reach, scratch);
        lower(scratch.values.data(), n, peak, rules.inverse_temperature, scratch.z.data());
        weigh(scratch.z.data(), n, scratch.masses.data());
        return cut_to_nucleus(n, need, scratch);
    }
    const float bound = top_k ? reached_by(rules.top_k, vocabulary, scratch) : -INF;
    int64_t n = collect(x, vocabulary, peak, bound, rules.reach, scratch);
    if (top_k && n > rules.top_k) {
        const float limit = kth_largest(scratch.values.data(), n, rules.top_k, scratch.ordered);
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
    lower(scratch.values.data(), n, peak, rules.inverse_temperature, scratch.z.data());
    const int64_t total = weigh(scratch.z.data(), n, scratch.masses.data());
    return cut_to_nucleus(n, needed_mass(rules.top_p, total), scratch);
}

// Nothing can win against an infinite logit: what is left are the infinite ones, all equally likely.
int64_t filter_infinite(const float* x, int64_t vocabulary, double top_p, Scratch& scratch) {
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

int64_t draw_row(const float* x, int64_t vocabulary, const Rules& rules, uint64_t key) {
    if (rules.inverse_temperature == 0.0f) return find_argmax(x, vocabulary);
    Scratch& scratch = Scratch::of_thread(vocabulary);
    const float peak = scan_maxima(x, vocabulary, scratch.maxima);
    if (peak == -INF) return -1;
    Race race{key, peak, rules.inverse_temperature};
    const bool infinite = peak == INF;
    if (!infinite && rules.top_k == 0 && rules.reach == -INF && !(rules.top_p < 1.0)) {
        // The most likely token runs first: its value bounds what the others need.
        const int64_t first = std::find(scratch.maxima.begin(), scratch.maxima.end(), peak) - scratch.maxima.begin();
        race.start((int32_t)(first * BLOCK + first_equal(x + first * BLOCK, peak)));
        for (int64_t block = 0; block < blocks_of(vocabulary); ++block) {
            const float z = (scratch.maxima[block] - peak) * rules.inverse_temperature;
            if (z + (NOISE_MAX + 1e-3f) < (float)race.best) continue;
            const int64_t begin = block * BLOCK;
            race.offer_range((int32_t)begin, x + begin, block_length(vocabulary, block));
        }
        return race.winner;
    }
    if (infinite) race.peak = 0.0f;
    const int64_t n =
        infinite ? filter_infinite(x, vocabulary, rules.top_p, scratch) : filter(x, vocabulary, peak, rules, scratch);
    race.start(scratch.ids[first_equal(scratch.values.data(), race.peak)]);
    for (int64_t i = 0; i < n; i += BLOCK)
        race.offer_list(scratch.ids.data() + i, scratch.values.data() + i, std::min(BLOCK, n - i));
    return race.winner;
}

// NaN counts as -inf.
float clean(float x) { return x > -INF ? x : -INF; }

// The logarithm of the sum of exp(x - peak), where peak is finite.
double log_total(const float* x, int64_t vocabulary, float peak) {
    double total = 0.0;
    for (int64_t begin = 0; begin < vocabulary; begin += BLOCK) {
        const int64_t length = std::min(BLOCK, vocabulary - begin);
        vf sum = {};
        for (int64_t i = 0; i < length; i += LANES) {
            vf d = set1(-INF);
            if (length - i >= LANES) {
                d = load(x + begin + i) - peak;
            } else {
                for (int64_t lane = 0; lane < length - i; ++lane) d[lane] = x[begin + i + lane] - peak;
            }
            sum += scaled_exp(d);
        }
        total += (double)hsum(sum);
    }
    return std::log(total) - MASS_BITS * 0.6931471805599453;
}

int64_t rank_of(const float* x, int64_t vocabulary, int64_t token) {
    const float own = clean(x[token]);
    int64_t above = 0, equal = 0;
    for (int64_t i = 0; i < vocabulary; ++i) above += x[i] > own;
    if (own == -INF) {
        for (int64_t i = 0; i < token; ++i) equal += !(x[i] > own);
    } else {
        for (int64_t i = 0; i < token; ++i) equal += x[i] == own;
    }
    return 1 + above + equal;
}

// The largest logits, best first, lowest id first among equals: `top` places from the front of scratch.ids.
void find_best(const float* x, int64_t vocabulary, int64_t top, Scratch& scratch) {
    const float bound = reached_by(top, vocabulary, scratch);
    int64_t n = collect(x, vocabulary, 0.0f, bound, -INF, scratch);
    if (n < top) {  // the impossible ones follow
        std::iota(scratch.ids.begin(), scratch.ids.begin() + vocabulary, 0);
        n = vocabulary;
    }
    std::partial_sort(scratch.ids.begin(), scratch.ids.begin() + top, scratch.ids.begin() + n, [x](int32_t a, int32_t b) {
        const float left = clean(x[a]), right = clean(x[b]);
        return left > right || (left == right && a < b);
    });
}

bool outside(const int64_t* ids, int64_t n, int64_t limit) {
    bool bad = false;
    for (int64_t i = 0; i < n; ++i) bad |= (uint64_t)ids[i] >= (uint64_t)limit;
    return bad;
}

// A call over ragged lists; false where a row, an offset or an id is out of range.
template <class Body>
bool each_row(int64_t batch, int64_t vocabulary, int64_t rows, const int64_t* row, const int64_t* offsets,
              const int64_t* ids, int64_t total, const Body& body) {
    if (outside(row, rows, batch) || outside(ids, total, vocabulary) || offsets[0] != 0 || offsets[rows] != total)
        return false;
    for (int64_t i = 0; i < rows; ++i)
        if (offsets[i + 1] < offsets[i]) return false;
    for (int64_t i = 0; i < rows; ++i) body(i, offsets[i], offsets[i + 1]);
    return true;
}

}  // namespace

// The first arguments of each are: logits [batch, vocabulary], batch, vocabulary. The result is 0, or 1 where an
// index is out of range, and then nothing was written.

STENTOR_EXPORT int64_t stentor_sampling_penalise(float* logits, int64_t batch, int64_t vocabulary, int64_t rows,
                                                 const int64_t* row, const int64_t* offsets, int64_t total,
                                                 const int64_t* ids, const int64_t* counts, const float* strengths) {
    return !each_row(batch, vocabulary, rows, row, offsets, ids, total, [&](int64_t i, int64_t begin, int64_t end) {
        float* x = logits + row[i] * vocabulary;
        const float repetition = strengths[3 * i], frequency = strengths[3 * i + 1], presence = strengths[3 * i + 2];
        for (int64_t at = begin; at < end; ++at) {
            const float count = (float)counts[at];
            float value = x[ids[at]];
            value = value > 0.0f ? value / repetition : value * repetition;
            value = value - frequency * count;
            value = value - presence * (count > 0.0f ? 1.0f : 0.0f);
            x[ids[at]] = value;
        }
    });
}

STENTOR_EXPORT int64_t stentor_sampling_add_bias(float* logits, int64_t batch, int64_t vocabulary, int64_t rows,
                                                 const int64_t* row, const int64_t* offsets, int64_t total,
                                                 const int64_t* ids, const float* values) {
    return !each_row(batch, vocabulary, rows, row, offsets, ids, total, [&](int64_t i, int64_t begin, int64_t end) {
        float* x = logits + row[i] * vocabulary;
        for (int64_t at = begin; at < end; ++at) x[ids[at]] += values[at];
    });
}

STENTOR_EXPORT int64_t stentor_sampling_restrict(float* logits, int64_t batch, int64_t vocabulary, int64_t rows,
                                                 const int64_t* row, const int64_t* offsets, int64_t total,
                                                 const int64_t* ids) {
    return !each_row(batch, vocabulary, rows, row, offsets, ids, total, [&](int64_t i, int64_t begin, int64_t end) {
        float* x = logits + row[i] * vocabulary;
        Scratch& scratch = Scratch::of_thread(std::max(vocabulary, end - begin));
        for (int64_t at = begin; at < end; ++at) scratch.values[at - begin] = x[ids[at]];
        std::fill(x, x + vocabulary, -INF);
        for (int64_t at = begin; at < end; ++at) x[ids[at]] = scratch.values[at - begin];
    });
}

STENTOR_EXPORT void stentor_sampling_argmax(const float* logits, int64_t batch, int64_t vocabulary, int64_t* tokens,
                                            int64_t threads) {
    parallel_for(batch, useful_threads(batch * vocabulary, threads),
                 [&](int64_t row) { tokens[row] = find_argmax(logits + row * vocabulary, vocabulary); });
}

// `slots` [batch] index the tables, which have `size` entries.
STENTOR_EXPORT int64_t stentor_sampling_draw(const float* logits, int64_t batch, int64_t vocabulary,
                                             const int64_t* slots, const int64_t* indices, int64_t size,
                                             const float* inverse_temperature, const int64_t* top_k, const float* reach,
                                             const double* top_p, const int64_t* seed, int64_t* tokens,
                                             int64_t threads) {
    if (outside(slots, batch, size)) return 1;
    parallel_for(batch, useful_threads(batch * vocabulary, threads), [&](int64_t row) {
        const int64_t slot = slots[row];
        const int64_t k = top_k[slot] < vocabulary ? top_k[slot] : 0;
        const Rules rules{inverse_temperature[slot], k, reach[slot], top_p[slot]};
        const uint64_t key = row_key((uint64_t)seed[slot], (uint64_t)indices[row]);
        tokens[row] = draw_row(logits + row * vocabulary, vocabulary, rules, key);
    });
    return 0;
}

// Results: values and ranks [rows], best and best_values [rows, top].
STENTOR_EXPORT int64_t stentor_sampling_logprobs(const float* logits, int64_t batch, int64_t vocabulary, int64_t rows,
                                                 const int64_t* row, const int64_t* tokens, int64_t top, float* values,
                                                 int64_t* ranks, int64_t* best, float* best_values, int64_t threads) {
    if (outside(row, rows, batch) || outside(tokens, rows, vocabulary) || top > vocabulary) return 1;
    parallel_for(rows, useful_threads(rows * vocabulary, threads), [&](int64_t i) {
        const float* x = logits + row[i] * vocabulary;
        Scratch& scratch = Scratch::of_thread(vocabulary);
        const float peak = scan_maxima(x, vocabulary, scratch.maxima);
        const double log_sum = peak == INF    ? std::log((double)std::count(x, x + vocabulary, INF))
                               : peak == -INF ? 0.0
                                              : log_total(x, vocabulary, peak);
        const auto value_of = [&](int64_t token) {
            const float own = clean(x[token]);
            if (own == -INF) return -INF;
            return (float)((own == peak ? 0.0 : (double)(own - peak)) - log_sum);
        };
        values[i] = value_of(tokens[i]);
        ranks[i] = rank_of(x, vocabulary, tokens[i]);
        if (top == 0) return;
        find_best(x, vocabulary, top, scratch);
        for (int64_t place = 0; place < top; ++place) {
            best[i * top + place] = scratch.ids[place];
            best_values[i * top + place] = value_of(scratch.ids[place]);
        }
    });
    return 0;
}
