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
#include "products.h"

#include <vector>

namespace stentor {
namespace attention {

constexpr int64_t PART = 512;  // keys that are summed by themselves, at absolute positions
constexpr int64_t ROWS = 48;   // rows of an item, when one token has no more than that
constexpr int64_t FEW = 16;    // rows that compute less than their keys take to come
constexpr int64_t SMALL = 1 << 17;  // multiply-adds below which a second thread does not pay
constexpr float LOG2E = 1.44269504088896341f;

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
    int64_t window;  // keys up to a query's own that it sees; 0: all
    float softcap;
    int64_t after = 0;  // keys after its own that it sees; -1: all
    bool fewer = false;  // a sequence may have fewer keys than queries
};

struct Item {
    // `count` tokens from `token`, the first at `position` among `length` keys; below 0 where there are fewer keys.
    int64_t sequence, token, count, position, length;
};

// What a softmax over some keys has come to, for each row: the highest score (times log2 e), the sum of weights in
// LANES parts, and the weighted sum of values, `width` floats a row.
struct Running {
    float *maxima, *totals, *sums;
    int64_t width;

    // Floats of so many rows; `at` is where they begin.
    static int64_t floats(int64_t rows, int64_t width) { return rows * (1 + LANES + width); }
    static Running at(float* at, int64_t rows, int64_t width) {
        return {at, at + rows, at + rows * (1 + LANES), width};
    }
    // The rows from `row` on.
    Running from(int64_t row) const {
        return {maxima + row, totals + row * LANES, sums + row * width, width};
    }

    void clear(int64_t rows) const {
        std::fill_n(maxima, rows, -std::numeric_limits<float>::infinity());
        std::fill_n(totals, rows * LANES, 0.0f);
        std::fill_n(sums, rows * width, 0.0f);
    }

    // Takes in what `part` saw of the keys that follow.
    void join(int64_t row, const Running& part, int64_t part_row) const {
        const float theirs = part.maxima[part_row], top = std::max(maxima[row], theirs);
        if (theirs == -std::numeric_limits<float>::infinity()) return;  // it saw none
        const vf mine = exp2(set1(maxima[row] - top)), other = exp2(set1(theirs - top));
        maxima[row] = top;
        blend(totals + row * LANES, mine, part.totals + part_row * LANES, other, LANES);
        blend(sums + row * width, mine, part.sums + part_row * width, other, width);
    }

   private:
    static void blend(float* to, vf mine, const float* from, vf other, int64_t n) {
        for (int64_t i = 0; i < n; i += LANES) store(to + i, load(to + i) * mine + load(from + i) * other);
    }
};

static inline int64_t padded(int64_t dim) { return (dim + LANES - 1) / LANES * LANES; }

// Room for the rows of an item; it grows and is kept by its thread.
struct Scratch {
    std::vector<float> queries, scores, numbers;

    Running running(int64_t rows, int64_t width, int which) {
        const int64_t each = Running::floats(rows, width);
        if ((int64_t)numbers.size() < 2 * each) numbers.resize(2 * each);
        return Running::at(numbers.data() + which * each, rows, width);
    }
};

template <class C>
int64_t first_visible(const C& c, int64_t position) {
    return c.window > 0 ? std::max<int64_t>(0, position - c.window + 1) : 0;
}

// One past the last key that the item's token number `token` sees; 0 or less where it sees none.
template <class C>
int64_t end_visible(const C& c, const Item& item, int64_t token) {
    return c.after < 0 ? item.length : std::min(item.length, item.position + token + 1 + c.after);
}

// Turns the scores of one row and tile into weights, of the keys [begin, end) that it sees, and brings its maximum,
// total and sums up to date.
static inline void update(float* scores, int64_t begin, int64_t end, float softcap, const Running& state, int64_t row) {
    constexpr int VECTORS = KEYS / LANES;
    vf s[VECTORS];
    for (int v = 0; v < VECTORS; ++v) s[v] = load(scores + v * LANES);
    if (softcap > 0)
        for (int v = 0; v < VECTORS; ++v) s[v] = tanh(s[v] / set1(softcap)) * set1(softcap * LOG2E);
    if (begin > 0 || end < KEYS) {
        vi lane;
        for (int i = 0; i < LANES; ++i) lane[i] = i;
        const vf hidden = set1(-std::numeric_limits<float>::infinity());
        for (int v = 0; v < VECTORS; ++v) {
            const vi at = lane + (int32_t)(v * LANES);
            s[v] = select((at >= (int32_t)begin) & (at < (int32_t)end), s[v], hidden);
        }
    }
    vf highest = s[0];
    for (int v = 1; v < VECTORS; ++v) highest = vmax(highest, s[v]);
    const float before = state.maxima[row], top = std::max(before, hmax(highest));
    vf sum = {};
    for (int v = 0; v < VECTORS; ++v) {
        const vf weight = exp2(s[v] - set1(top));
        store(scores + v * LANES, weight);
        sum += weight;
    }
    float* total = state.totals + row * LANES;
    if (top == before) {
        store(total, load(total) + sum);
        return;
    }
    state.maxima[row] = top;
    const vf factor = exp2(set1(before - top));
    store(total, load(total) * factor + sum);
    float* sums = state.sums + row * state.width;
    for (int64_t d = 0; d < state.width; d += LANES) store(sums + d, load(sums + d) * factor);
}

// The queries of an item, scaled, for the query heads [first, last) of a kv head's: `count * (last - first)` rows.
// Scores come out times log2 e, since powers of two are taken of them; a soft cap is applied before.
template <class Kernel, class Q, class T>
void load_queries(const Call<Q, T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last, float* queries) {
    const int64_t group = c.heads / c.kv_heads, stride = Kernel::query_floats(c.dim);
    const float factor = c.softcap > 0 ? c.scale : c.scale * LOG2E;
    for (int64_t t = 0; t < item.count; ++t)
        for (int64_t h = first; h < last; ++h, queries += stride)
            Kernel::put_query(c.q + (item.token + t) * c.q_stride + (kv_head * group + h) * c.dim, factor, c.dim, queries);
}

// Few rows wait for memory: the keys and values of the tile after this one are fetched meanwhile.
template <class Q, class T>
void fetch_tile(const Call<Q, T>& c, const int32_t* table, int64_t kv_head, int64_t tile, int64_t stop) {
    const int64_t bytes = c.dim * c.size * (int64_t)sizeof(T), step = std::min(KEYS, c.size);
    for (int64_t key = tile; key < std::min(tile + KEYS, stop); key += step) {
        const int64_t head = (int64_t)table[key / c.size] * c.kv_heads + kv_head;
        if (key % c.size) continue;
        for (const void* cache : {(const void*)c.k_cache, (const void*)c.v_cache}) {
            const char* from = (const char*)cache + head * bytes;
            const int64_t wanted = std::min(bytes, KEYS * c.dim * (int64_t)sizeof(T));
            for (int64_t line = 0; line < wanted; line += 64) __builtin_prefetch(from + line, 0, 2);
        }
    }
}

// What the rows of an item see of the keys [part * PART, (part + 1) * PART): `each` rows a token.
template <class Kernel, class Q, class T>
void attend_part(const Call<Q, T>& c, const Item& item, int64_t kv_head, int64_t each, int64_t part,
                 const float* queries, float* scores, const Running& state) {
    const int64_t rows = item.count * each, dim = c.dim, query = Kernel::query_floats(dim);
    state.clear(rows);
    const int32_t* table = c.tables + item.sequence * c.table_width;
    const int64_t start = std::max(first_visible(c, item.position), part * PART);
    const int64_t stop = std::min(end_visible(c, item, item.count - 1), (part + 1) * PART);
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
        if (rows <= FEW && tile + KEYS < stop) fetch_tile(c, table, kv_head, tile + KEYS, stop);
        by_rows(rows, [&](int64_t row, auto deep) {
            Kernel::template score<decltype(deep)::value>(queries + row * query, keys, c.size, dim, scores + row * KEYS);
        });
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t token = row / each;
            const int64_t begin = std::max<int64_t>(0, first_visible(c, item.position + token) - tile);
            const int64_t end = std::min(KEYS, end_visible(c, item, token) - tile);
            if (begin >= end)
                std::fill_n(scores + row * KEYS, KEYS, 0.0f);
            else
                update(scores + row * KEYS, begin, end, c.softcap, state, row);
        }
        const int64_t begin = std::max<int64_t>(0, start - tile), end = std::min(KEYS, stop - tile);
        by_rows(rows, [&](int64_t row, auto deep) {
            Kernel::template accumulate<decltype(deep)::value>(scores + row * KEYS, values, begin, end, dim,
                                                               state.sums + row * state.width, state.width);
        });
    }
}

// Divides by the sum of weights and puts one row where it belongs: zeros where it saw nothing.
template <class Q, class T>
void finish(const Call<Q, T>& c, int64_t token, int64_t head, const Running& state, int64_t row) {
    Q* to = c.out + (token * c.heads + head) * c.dim;
    const float sum = hsum(load(state.totals + row * LANES));
    const vf total = set1(sum > 0 ? sum : 1.0f);
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

template <class Kernel, class Q, class T>
void attend_by(const Call<Q, T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last) {
    Scratch& scratch = scratch_of_thread();
    const int64_t group = c.heads / c.kv_heads, each = last - first, rows = item.count * each;
    scratch.queries.resize(rows * Kernel::query_floats(c.dim));
    scratch.scores.resize(rows * KEYS);
    const Running state = scratch.running(rows, padded(c.dim), 0), piece = scratch.running(rows, padded(c.dim), 1);
    load_queries<Kernel>(c, item, kv_head, first, last, scratch.queries.data());
    const int64_t from = first_visible(c, item.position) / PART, end = end_visible(c, item, item.count - 1);
    const int64_t to = std::max(from, (end - 1) / PART);
    const bool parts = from < to;
    if (parts) state.clear(rows);
    for (int64_t part = from; part <= to; ++part) {
        attend_part<Kernel>(c, item, kv_head, each, part, scratch.queries.data(), scratch.scores.data(),
                            parts ? piece : state);
        if (parts)
            for (int64_t row = 0; row < rows; ++row) state.join(row, piece, row);
    }
    for (int64_t row = 0; row < rows; ++row)
        finish(c, item.token + row / each, kv_head * group + first + row % each, state, row);
}

template <class Kernel, class Q, class T>
void attend_one_part_by(const Call<Q, T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last,
                        int64_t part, const Running& state) {
    Scratch& scratch = scratch_of_thread();
    scratch.queries.resize((last - first) * Kernel::query_floats(c.dim));
    scratch.scores.resize((last - first) * KEYS);
    load_queries<Kernel>(c, item, kv_head, first, last, scratch.queries.data());
    attend_part<Kernel>(c, item, kv_head, last - first, part, scratch.queries.data(), scratch.scores.data(), state);
}

// An item whole, for the query heads [first, last) of a kv head's.
template <class Q, class T>
void attend(const Call<Q, T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last) {
    if (Pairs<T>::takes(c.dim)) return attend_by<Pairs<T>>(c, item, kv_head, first, last);
    attend_by<Singles<T>>(c, item, kv_head, first, last);
}

// One part of a single token's row, for the query heads [first, last) of a kv head's, into `state`.
template <class Q, class T>
void attend_one_part(const Call<Q, T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last, int64_t part,
                     const Running& state) {
    if (Pairs<T>::takes(c.dim)) return attend_one_part_by<Pairs<T>>(c, item, kv_head, first, last, part, state);
    attend_one_part_by<Singles<T>>(c, item, kv_head, first, last, part, state);
}

// Both take long to compile: native.cpp does it, once for all who call them.
#define STENTOR_ATTEND(EXTERN, Q, T)                                                                                \
    EXTERN template void attend(const Call<Q, T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last); \
    EXTERN template void attend_one_part(const Call<Q, T>& c, const Item& item, int64_t kv_head, int64_t first,      \
                                         int64_t last, int64_t part, const Running& state);

STENTOR_ATTEND(extern, float, float)
STENTOR_ATTEND(extern, float, bf16)
STENTOR_ATTEND(extern, bf16, bf16)

// The first sequence whose lengths or blocks lead outside what the tensors hold, or -1.
template <class C>
int64_t find_fault(const C& c) {
    for (int64_t s = 0; s < c.sequences; ++s) {
        const int64_t begin = c.query_start[s], end = c.query_start[s + 1], length = c.seq_lens[s];
        if (begin < 0 || begin > end || end > c.tokens || length < 0) return s;
        if (!c.fewer && length < end - begin) return s;
        if (begin == end || length == 0) continue;
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
            items.push_back({s, token, count, position, c.seq_lens[s]});
            const int64_t keys = end_visible(c, items.back(), count - 1) - first_visible(c, position);
            *work += std::max<int64_t>(0, keys) * count * c.heads * c.dim;
        }
    }
    std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
        return a.position + a.count > b.position + b.count;
    });
    return items;
}

}  // namespace attention
}  // namespace stentor
