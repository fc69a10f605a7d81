// Sampling, edits of logits, and log-probabilities. reference.py is the definition; choices are the same bit for bit.
#include <numeric>

#include "filter.h"
#include "noise.h"
#include "parallel.h"
#include "gumbel_max.h"
#include "scan.h"

namespace {

using namespace stentor;
using namespace stentor::sampling;

// Work below which a second thread does not pay.
constexpr int64_t LOGITS_PER_THREAD = 1 << 18;
// Masking a row takes microseconds, less than waiting for a helper thread that was descheduled within one.
constexpr int64_t MASKED_PER_THREAD = 1 << 21;

int64_t useful_threads(int64_t logits, int64_t threads, int64_t each = LOGITS_PER_THREAD) {
    return std::min(threads, 1 + logits / each);
}

int64_t draw_row(const float* x, int64_t vocabulary, const RowParams& params, uint64_t key) {
    if (params.inverse_temperature == 0.0f) return find_argmax(x, vocabulary);
    Scratch& scratch = Scratch::of_thread(vocabulary);
    const float peak = scan_maxima(x, vocabulary, scratch.maxima);
    if (peak == -INF) return -1;
    GumbelMax gumbel_max{key, peak, params.inverse_temperature};
    const bool infinite = peak == INF;
    if (!infinite && params.top_k == 0 && params.min_p_threshold == -INF && !(params.top_p < 1.0)) {
        // The most likely token runs first: its value bounds what the others need.
        const int64_t first = std::find(scratch.maxima.begin(), scratch.maxima.end(), peak) - scratch.maxima.begin();
        gumbel_max.start((int32_t)(first * BLOCK + first_equal(x + first * BLOCK, peak)));
        for (int64_t block = 0; block < blocks_of(vocabulary); ++block) {
            const float z = (scratch.maxima[block] - peak) * params.inverse_temperature;
            if (z + (NOISE_MAX + 1e-3f) < (float)gumbel_max.best) continue;
            const int64_t begin = block * BLOCK;
            gumbel_max.offer_range((int32_t)begin, x + begin, block_length(vocabulary, block));
        }
        return gumbel_max.winner;
    }
    if (infinite) gumbel_max.peak = 0.0f;
    const int64_t n =
        infinite ? filter_infinite(x, vocabulary, params.top_p, scratch) : filter(x, vocabulary, peak, params, scratch);
    gumbel_max.start(scratch.ids[first_equal(scratch.values.data(), gumbel_max.peak)]);
    for (int64_t i = 0; i < n; i += BLOCK)
        gumbel_max.offer_list(scratch.ids.data() + i, scratch.values.data() + i, std::min(BLOCK, n - i));
    return gumbel_max.winner;
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

// Writes the `top` largest logits to the front of scratch.ids, best first, lowest id first among equals.
void find_best(const float* x, int64_t vocabulary, int64_t top, Scratch& scratch) {
    const float bound = reached_by(top, vocabulary, scratch);
    int64_t n = collect(x, vocabulary, 0.0f, bound, -INF, scratch);
    if (n < top) {  // -inf and NaN follow
        std::iota(scratch.ids.begin(), scratch.ids.begin() + vocabulary, 0);
        n = vocabulary;
    }
    const auto better = [x](int32_t a, int32_t b) {
        const float left = clean(x[a]), right = clean(x[b]);
        return left > right || (left == right && a < b);
    };
    const auto begin = scratch.ids.begin();
    std::partial_sort(begin, begin + top, begin + n, better);
}

bool outside(const int64_t* ids, int64_t n, int64_t limit) {
    bool bad = false;
    for (int64_t i = 0; i < n; ++i) bad |= (uint64_t)ids[i] >= (uint64_t)limit;
    return bad;
}

// The arguments of a call over ragged lists; false if a row, an offset or an id is out of range.
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

// Logits of tokens whose bit is not set become -inf; token t is bit t % 32 of word t / 32.
void mask_row(float* x, int64_t vocabulary, const uint32_t* words) {
    constexpr int64_t WORD = 32;
    vi bit_of_lane;
    for (int lane = 0; lane < LANES; ++lane) bit_of_lane[lane] = 1 << lane;
    const vf none = set1(-INF);
    const int64_t whole = vocabulary / WORD;
    for (int64_t at = 0; at < whole; ++at) {
        const uint32_t word = words[at];
        if (word == UINT32_MAX) continue;
        float* const y = x + at * WORD;
        for (int64_t lane = 0; lane < WORD; lane += LANES) {
            const vi here = vi{} + (int32_t)(word >> lane);
            store(y + lane, select((here & bit_of_lane) != 0, load(y + lane), none));
        }
    }
    for (int64_t token = whole * WORD; token < vocabulary; ++token)
        if (!(words[whole] >> (token - whole * WORD) & 1)) x[token] = -INF;
}

}  // namespace

// First arguments of each: logits [batch, vocabulary], batch, vocabulary. Returns 0; or 1 if an index is out of range, and
// writes nothing.

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

// `words` [rows, words of a vocabulary].
STENTOR_EXPORT int64_t stentor_sampling_mask(float* logits, int64_t batch, int64_t vocabulary, int64_t rows,
                                             const int64_t* row, const uint32_t* words, int64_t threads) {
    if (outside(row, rows, batch)) return 1;
    const int64_t each = (vocabulary + 31) / 32;
    parallel_for(rows, useful_threads(rows * vocabulary, threads, MASKED_PER_THREAD),
                 [&](int64_t i) { mask_row(logits + row[i] * vocabulary, vocabulary, words + i * each); });
    return 0;
}

STENTOR_EXPORT void stentor_sampling_argmax(const float* logits, int64_t batch, int64_t vocabulary, int64_t* tokens,
                                            int64_t threads) {
    parallel_for(batch, useful_threads(batch * vocabulary, threads),
                 [&](int64_t row) { tokens[row] = find_argmax(logits + row * vocabulary, vocabulary); });
}

// `slots` [batch] index the tables, which have `size` entries.
STENTOR_EXPORT int64_t stentor_sampling_draw(const float* logits, int64_t batch, int64_t vocabulary,
                                             const int64_t* slots, const int64_t* indices, int64_t size,
                                             const float* inverse_temperature, const int64_t* top_k, const float* min_p_threshold,
                                             const double* top_p, const int64_t* seed, int64_t* tokens,
                                             int64_t threads) {
    if (outside(slots, batch, size)) return 1;
    parallel_for(batch, useful_threads(batch * vocabulary, threads), [&](int64_t row) {
        const int64_t slot = slots[row];
        const int64_t k = top_k[slot] < vocabulary ? top_k[slot] : 0;
        const RowParams params{inverse_temperature[slot], k, min_p_threshold[slot], top_p[slot]};
        const uint64_t key = row_key((uint64_t)seed[slot], (uint64_t)indices[row]);
        tokens[row] = draw_row(logits + row * vocabulary, vocabulary, params, key);
    });
    return 0;
}

// ids [rows, given]. Results: values and ranks [rows], best and best_values [rows, top + given].
STENTOR_EXPORT int64_t stentor_sampling_logprobs(const float* logits, int64_t batch, int64_t vocabulary, int64_t rows,
                                                 const int64_t* row, const int64_t* tokens, const int64_t* ids,
                                                 int64_t top, int64_t given, float* values, int64_t* ranks,
                                                 int64_t* best, float* best_values, int64_t threads) {
    if (outside(row, rows, batch) || outside(tokens, rows, vocabulary) || outside(ids, rows * given, vocabulary) ||
        top > vocabulary)
        return 1;
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
        int64_t* out = best + i * (top + given);
        float* out_values = best_values + i * (top + given);
        if (top > 0) find_best(x, vocabulary, top, scratch);
        for (int64_t place = 0; place < top + given; ++place) {
            out[place] = place < top ? scratch.ids[place] : ids[i * given + place - top];
            out_values[place] = value_of(out[place]);
        }
    });
    return 0;
}

// The noise and the masses, for tests that compare them with the definition.
STENTOR_EXPORT void stentor_sampling_gumbel(const uint32_t* words, int64_t n, double* noise) {
    for (int64_t i = 0; i < n; ++i) noise[i] = gumbel(words[i]);
}

STENTOR_EXPORT void stentor_sampling_mass(const float* z, int64_t n, int64_t* masses) { weigh(z, n, masses); }
