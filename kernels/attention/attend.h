// Causal attention over the paged cache with an online softmax.
//
// The work is cut into items: one sequence, some query heads of one kv head, a few tokens. The rows of an item (its
// tokens times its query heads) meet each tile of keys together, so that keys and values are loaded and widened once
// for several rows.
//
// Tiles of 64 keys stand at absolute positions, and so do the parts of 512 keys that they add up to. A row takes the
// tiles of a part in order (scores, maximum, rescale, sum, values key by key), and its parts in order; a key that a
// row does not see contributes an exact zero. So a row's result depends on its own position, query and keys, and not
// on the rows beside it, nor on who computed which part.
#pragma once

#include "parallel.h"
#include "simd_math.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace stentor {
namespace attention {

constexpr int64_t RUN = 16;    // keys that lie side by side in every block, whatever its size
constexpr int64_t KEYS = 64;   // keys of one online-softmax update
constexpr int64_t PART = 512;  // keys that are summed by themselves, at absolute positions
constexpr int64_t ROWS = 32;   // rows of an item, when one token has no more than that
constexpr int WIDE = 4;        // vectors across in the register tiles
#if defined(__AVX512F__)
constexpr int DEEP = 6;        // rows down: 24 of 32 registers accumulate
#else
constexpr int DEEP = 2;
#endif
constexpr int64_t SMALL = 1 << 17;  // multiply-adds below which a second thread does not pay
static_assert(RUN % LANES == 0 && KEYS % (WIDE * LANES) == 0, "tiles are whole vectors");

// Q: the type of queries and of what comes out; T: of the cache.
template <class Q, class T>
struct Call {
    const Q* q;        // [tokens, heads, dim], rows of q_stride
    const T* k_cache;  // [blocks, kv_heads, dim, size]
    const T* v_cache;  // [blocks, kv_heads, size, dim]
    Q* out;            // [tokens, heads, dim]
    const int32_t *query_start, *seq_lens, *tables;
    int64_t sequences, tokens, heads, kv_heads, dim, size, blocks, table_width, q_stride;
    float scale;
    int64_t window;
    float softcap;
};

struct Item {
    int64_t sequence, token, count, position;  // `count` tokens from `token`, the first at `position`
};

// What a softmax over some keys has come to, for each row: the highest score, the sum of weights, and the
// weighted sum of values, `width` floats a row.
struct Running {
    float *maxima, *totals, *sums;
    int64_t width;

    void clear(int64_t rows) const {
        std::fill_n(maxima, rows, -std::numeric_limits<float>::infinity());
        std::fill_n(totals, rows, 0.0f);
        std::fill_n(sums, rows * width, 0.0f);
    }

    // Takes in what `part` saw of the keys that follow.
    void join(int64_t row, const Running& part, int64_t part_row) const {
        const float theirs = part.maxima[part_row], top = std::max(maxima[row], theirs);
        if (part.totals[part_row] == 0.0f) return;  // it saw none
        const float mine = exp(set1(maxima[row] - top))[0], other = exp(set1(theirs - top))[0];
        maxima[row] = top;
        totals[row] = totals[row] * mine + part.totals[part_row] * other;
        float* to = sums + row * width;
        const float* from = part.sums + part_row * width;
        for (int64_t d = 0; d < width; d += LANES)
            store(to + d, load(to + d) * set1(mine) + load(from + d) * set1(other));
    }
};

static inline int64_t padded(int64_t dim) { return (dim + LANES - 1) / LANES * LANES; }

// Room for the rows of an item; it grows and is kept by its thread.
struct Scratch {
    std::vector<float> queries, scores, numbers;

    Running running(int64_t rows, int64_t width, int which) {
        const int64_t each = rows * (width + 2);
        if ((int64_t)numbers.size() < 2 * each) numbers.resize(2 * each);
        float* at = numbers.data() + which * each;
        return {at, at + rows, at + 2 * rows, width};
    }
};

template <class C>
int64_t first_visible(const C& c, int64_t position) {
    return c.window > 0 ? std::max<int64_t>(0, position - c.window + 1) : 0;
}

// scores[r][key] = queries[r] · key, for R rows and one tile.
template <int R, class T>
static void score(const float* queries, const T* const* keys, int64_t size, int64_t dim, float* scores) {
    for (int64_t base = 0; base < KEYS; base += WIDE * LANES) {
        const T* from[WIDE];
        for (int v = 0; v < WIDE; ++v) {
            const int64_t key = base + v * LANES;
            from[v] = keys[key / RUN] + key % RUN;
        }
        vf acc[R][WIDE] = {};
        for (int64_t d = 0; d < dim; ++d)
            for (int v = 0; v < WIDE; ++v) {
                const vf key = load(from[v] + d * size);
                for (int r = 0; r < R; ++r) acc[r][v] = fma(set1(queries[r * dim + d]), key, acc[r][v]);
            }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < WIDE; ++v) store(scores + r * KEYS + base + v * LANES, acc[r][v]);
    }
}

// sums[r][d...] += weights[r][key] * value[key][d...] over keys [begin, end) of the tile, V vectors wide;
// `lanes` is less than LANES only where the last vector of a row is not whole.
template <int R, int V, class T>
static void accumulate(const float* weights, const T* const* values, int64_t begin, int64_t end, int64_t dim, int64_t lanes,
                float* sums, int64_t sums_stride) {
    vf acc[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) acc[r][v] = load(sums + r * sums_stride + v * LANES);
    for (int64_t key = begin; key < end; ++key) {
        const T* from = values[key / RUN] + key % RUN * dim;
        for (int v = 0; v < V; ++v) {
            const vf value = V > 1 || lanes == LANES ? load(from + v * LANES) : load_part(from, lanes);
            for (int r = 0; r < R; ++r) acc[r][v] = fma(set1(weights[r * KEYS + key]), value, acc[r][v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) store(sums + r * sums_stride + v * LANES, acc[r][v]);
}

template <int R, class T>
static void accumulate_rows(const float* weights, const T* const* values, int64_t begin, int64_t end, int64_t dim, float* sums,
                     int64_t sums_stride) {
    int64_t d = 0;
    const T* from[KEYS / RUN];
    const auto at = [&](int64_t offset) {
        for (int64_t run = 0; run < KEYS / RUN; ++run) from[run] = values[run] + offset;
        return (const T* const*)from;
    };
    for (; d + WIDE * LANES <= dim; d += WIDE * LANES)
        accumulate<R, WIDE>(weights, at(d), begin, end, dim, LANES, sums + d, sums_stride);
    for (; d < dim; d += LANES)
        accumulate<R, 1>(weights, at(d), begin, end, dim, std::min<int64_t>(LANES, dim - d), sums + d, sums_stride);
}

template <class Body>
static void by_rows(int64_t rows, const Body& body) {
    int64_t row = 0;
    for (; row + DEEP <= rows; row += DEEP) body(row, std::integral_constant<int, DEEP>());
#if defined(__AVX512F__)
    if (row + 4 <= rows) body(row, std::integral_constant<int, 4>()), row += 4;
    if (row + 3 <= rows) body(row, std::integral_constant<int, 3>()), row += 3;
    if (row + 2 <= rows) body(row, std::integral_constant<int, 2>()), row += 2;
#endif
    if (row < rows) body(row, std::integral_constant<int, 1>());
}

// Turns the scores of one row and tile into weights, of the keys [begin, end) that it sees, and brings its
// maximum, total and sums up to date.
static inline void update(float* scores, int64_t begin, int64_t end, float softcap, float* maximum, float* total,
                          float* sums, int64_t width) {
    static const struct Ramp {
        int32_t lane[LANES];
        Ramp() {
            for (int i = 0; i < LANES; ++i) lane[i] = i;
        }
    } ramp;
    vi lane;
    std::memcpy(&lane, ramp.lane, sizeof lane);
    const vf hidden = set1(-std::numeric_limits<float>::infinity());
    vf highest = hidden;
    for (int64_t key = 0; key < KEYS; key += LANES) {
        vf s = load(scores + key);
        if (softcap > 0) s = tanh(s / set1(softcap)) * set1(softcap);
        const vi at = lane + (int32_t)key;
        s = select((at >= (int32_t)begin) & (at < (int32_t)end), s, hidden);
        store(scores + key, s);
        highest = vmax(highest, s);
    }
    const float top = std::max(*maximum, hmax(highest));
    const float factor = exp(set1(*maximum - top))[0];
    vf sum = {};
    for (int64_t key = 0; key < KEYS; key += LANES) {
        const vf weight = exp(load(scores + key) - set1(top));
        store(scores + key, weight);
        sum += weight;
    }
    *maximum = top;
    *total = *total * factor + hsum(sum);
    if (factor != 1.0f)
        for (int64_t d = 0; d < width; d += LANES) store(sums + d, load(sums + d) * set1(factor));
}

// The queries of an item, scaled: float [count * (last - first), dim], for the query heads [first, last) of a kv head's.
template <class Q, class T>
void load_queries(const Call<Q, T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last, float* queries) {
    const int64_t group = c.heads / c.kv_heads;
    for (int64_t t = 0; t < item.count; ++t)
        for (int64_t h = first; h < last; ++h) {
            const Q* from = c.q + (item.token + t) * c.q_stride + (kv_head * group + h) * c.dim;
            for (int64_t d = 0; d < c.dim; ++d) *queries++ = widen(from[d]) * c.scale;
        }
}

// What the rows of an item see of the keys [part * PART, (part + 1) * PART): `each` rows a token.
template <class Q, class T>
void attend_part(const Call<Q, T>& c, const Item& item, int64_t kv_head, int64_t each, int64_t part,
                 const float* queries, float* scores, const Running& state) {
    const int64_t rows = item.count * each, dim = c.dim;
    state.clear(rows);
    const int32_t* table = c.tables + item.sequence * c.table_width;
    const int64_t start = std::max(first_visible(c, item.position), part * PART);
    const int64_t stop = std::min(item.position + item.count, (part + 1) * PART);
    for (int64_t tile = start / KEYS * KEYS; tile < stop; tile += KEYS) {
        // A run without a visible key stands in as a copy of one that has: its scores are masked.
        const T *keys[KEYS / RUN], *values[KEYS / RUN];
        const int64_t low = std::max(start, tile) / RUN * RUN, high = (std::min(stop, tile + KEYS) - 1) / RUN * RUN;
        for (int64_t run = 0; run < KEYS / RUN; ++run) {
            const int64_t key = std::min(std::max(tile + run * RUN, low), high);
            const int64_t head = (int64_t)table[key / c.size] * c.kv_heads + kv_head, offset = key % c.size;
            keys[run] = c.k_cache + head * dim * c.size + offset;
            values[run] = c.v_cache + (head * c.size + offset) * dim;
        }
        by_rows(rows, [&](int64_t row, auto deep) {
            score<decltype(deep)::value>(queries + row * dim, keys, c.size, dim, scores + row * KEYS);
        });
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t position = item.position + row / each;
            const int64_t begin = std::max<int64_t>(0, first_visible(c, position) - tile);
            const int64_t end = std::min(KEYS, position + 1 - tile);
            if (begin >= end)
                std::fill_n(scores + row * KEYS, KEYS, 0.0f);
            else
                update(scores + row * KEYS, begin, end, c.softcap, &state.maxima[row], &state.totals[row],
                       state.sums + row * state.width, state.width);
        }
        const int64_t begin = std::max<int64_t>(0, start - tile), end = std::min(KEYS, stop - tile);
        by_rows(rows, [&](int64_t row, auto deep) {
            accumulate_rows<decltype(deep)::value>(scores + row * KEYS, values, begin, end, dim,
                                                   state.sums + row * state.width, state.width);
        });
    }
}

// Divides by the sum of weights and puts one row where it belongs.
template <class Q, class T>
void finish(const Call<Q, T>& c, int64_t token, int64_t head, const Running& state, int64_t row) {
    Q* to = c.out + (token * c.heads + head) * c.dim;
    const vf total = set1(state.totals[row]);
    for (int64_t d = 0; d < c.dim; d += LANES) {
        const vf mean = load(state.sums + row * state.width + d) / total;
        if (d + LANES <= c.dim)
            store(to + d, mean);
        else
            store_part(to + d, mean, c.dim - d);
    }
}

static inline Scratch& scratch_of_thread() {
    static thread_local Scratch scratch;
    return scratch;
}

// An item whole, for the query heads [first, last) of a kv head's.
template <class Q, class T>
void attend(const Call<Q, T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last) {
    Scratch& scratch = scratch_of_thread();
    const int64_t group = c.heads / c.kv_heads, each = last - first, rows = item.count * each;
    scratch.queries.resize(rows * c.dim);
    scratch.scores.resize(rows * KEYS);
    const Running state = scratch.running(rows, padded(c.dim), 0), piece = scratch.running(rows, padded(c.dim), 1);
    load_queries(c, item, kv_head, first, last, scratch.queries.data());
    const int64_t from = first_visible(c, item.position) / PART, to = (item.position + item.count - 1) / PART;
    const bool parts = from < to;
    if (parts) state.clear(rows);
    for (int64_t part = from; part <= to; ++part) {
        attend_part(c, item, kv_head, each, part, scratch.queries.data(), scratch.scores.data(), parts ? piece : state);
        if (parts)
            for (int64_t row = 0; row < rows; ++row) state.join(row, piece, row);
    }
    for (int64_t row = 0; row < rows; ++row)
        finish(c, item.token + row / each, kv_head * group + first + row % each, state, row);
}

// One part of a single token's row, for the query heads [first, last) of a kv head's, into `state`.
template <class Q, class T>
void attend_one_part(const Call<Q, T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last, int64_t part,
                     const Running& state) {
    Scratch& scratch = scratch_of_thread();
    scratch.queries.resize((last - first) * c.dim);
    scratch.scores.resize((last - first) * KEYS);
    load_queries(c, item, kv_head, first, last, scratch.queries.data());
    attend_part(c, item, kv_head, last - first, part, scratch.queries.data(), scratch.scores.data(), state);
}

// The first sequence whose lengths or blocks lead outside what the tensors hold, or -1.
template <class C>
int64_t find_fault(const C& c) {
    for (int64_t s = 0; s < c.sequences; ++s) {
        const int64_t begin = c.query_start[s], end = c.query_start[s + 1], length = c.seq_lens[s];
        if (begin < 0 || begin > end || end > c.tokens || length < end - begin) return s;
        if (begin == end) continue;
        const int64_t last = (length - 1) / c.size;
        if (last >= c.table_width) return s;
        for (int64_t b = first_visible(c, length - (end - begin)) / c.size; b <= last; ++b) {
            const int64_t block = c.tables[s * c.table_width + b];
            if (block < 0 || block >= c.blocks) return s;
        }
    }
    return -1;
}

// The items of a step, the longest first, so that no thread is left with one at the end; and how much there is to do.
template <class C>
std::vector<Item> items_of(const C& c, int64_t* work) {
    const int64_t group = c.heads / c.kv_heads, step = std::max<int64_t>(1, ROWS / group);
    std::vector<Item> items;
    *work = 0;
    for (int64_t s = 0; s < c.sequences; ++s) {
        const int64_t begin = c.query_start[s], end = c.query_start[s + 1];
        for (int64_t token = begin; token < end; token += step) {
            const int64_t position = c.seq_lens[s] - (end - token), count = std::min(step, end - token);
            items.push_back({s, token, count, position});
            *work += (position + count - first_visible(c, position)) * count * c.heads * c.dim;
        }
    }
    std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
        return a.position + a.count > b.position + b.count;
    });
    return items;
}

}  // namespace attention
}  // namespace stentor
