// Causal attention over the paged cache with an online softmax.
//
// Work is split into items: one sequence, some query heads of one kv head, a few tokens. The rows of an item (tokens
// times query heads) share each tile of keys, so that keys and values are loaded and widened once for several rows.
//
// Tiles of 64 keys, and parts of 512, begin at absolute positions. A row processes its parts, and the tiles of a part, in
// order (scores, maximum, rescale, sum, values key by key). A masked key contributes an exact zero. So a row's result
// depends on its own position, query and keys, not on other rows or on which thread computed which part.
#pragma once

#include "coded.h"
#include "expanded.h"
#include "pairs.h"
#include "parallel.h"
#include "room.h"
#include "softmax.h"
#include "tiled.h"

#include <cmath>
#include <vector>

namespace stentor {
namespace attention {

constexpr float ZEROS[DEEP] = {};
constexpr int64_t PART = 512;  // keys of a partial sum, at absolute positions
constexpr int64_t ITEMS = 4;   // of one kv head for each thread; if there would be fewer, items are made smaller
constexpr int64_t SMALL = 1 << 17;  // multiply-adds below which a second thread does not pay

// Rows of an item, unless one token has more; half if there are few items. The processor's tiles copy keys and values
// into their layout for each item.
static inline int64_t rows_of_item() { return tiles::form() == tiles::Form::NONE ? 96 : 192; }

// T: the type of the cache. That of queries and outputs is a value: what takes long and is many instructions, a tile of keys,
// does not depend on it.
template <class T>
struct Call {
    const void* q;     // [tokens, heads, dim], rows of q_stride
    const T* k_cache;  // [blocks, kv_heads, dim, size]
    const T* v_cache;  // [blocks, kv_heads, size, dim]
    void* out;         // [tokens, heads, dim]
    bool brain;        // both are bfloat16, not float
    const int32_t *query_start, *seq_lens, *tables;
    int64_t sequences, tokens, heads, kv_heads, dim, size, blocks, table_width, q_stride;
    float scale;
    int64_t window;  // keys up to a query's own that it sees; 0: all; below 0: those from the last multiple of -window on
    float softcap;
    const float* sinks;  // [heads], scores without a value that take part in the softmax; null: none
    int64_t after = 0;  // keys after its own that it sees; -1: all
    bool fewer = false;  // whether a sequence may have fewer keys than queries
    const float *k_scales = nullptr, *v_scales = nullptr;  // int8: [blocks, kv_heads, size]; float8: [kv_heads]
    const float* slopes = nullptr;  // [heads], times the key's position less the query's, added to scores; null: none
    // [tokens, heads, extent], added to scores by the query's position less the key's; the last number is that of all
    // farther keys, and the next token's are by_token behind
    const float* distances = nullptr;
    int64_t extent = 0, by_token = 0;
    float* logsums = nullptr;  // [tokens, heads], written: logarithms of the sums of exponentials of scores; null: none

    // The scale of all keys, or values, of a head.
    float key_factor(int64_t kv_head) const { return factor(k_scales, kv_head); }
    float value_factor(int64_t kv_head) const { return factor(v_scales, kv_head); }

   private:
    static float factor(const float* scales, int64_t kv_head) {
        return std::is_same<T, e4m3>::value ? scales[kv_head] * FLOAT8_UNIT : 1.0f;
    }
};

struct Item {
    // `count` tokens from `token`, the first at `position` among `length` keys; `position` is negative if there are fewer keys.
    int64_t sequence, token, count, position, length;
};

// Scratch memory for the rows of an item.
struct Scratch {
    Room queries, scores, weights, tile, numbers;

    Running running(int64_t rows, int64_t width, int which) {
        const int64_t each = padded(Running::floats(rows, width));
        return Running::at(numbers.of<float>(2 * each) + which * each, rows, width);
    }
};

template <class C>
int64_t first_visible(const C& c, int64_t position) {
    if (c.window < 0 && position > 0) return position - position % -c.window;
    return c.window > 0 ? std::max<int64_t>(0, position - c.window + 1) : 0;
}

// One past the last key that token number `token` of the item sees; 0 or less if it sees none.
template <class C>
int64_t end_visible(const C& c, const Item& item, int64_t token) {
    return c.after < 0 ? item.length : std::min(item.length, item.position + token + 1 + c.after);
}

// The queries of an item, scaled, for the query heads [first, last) of a kv head's: `count * (last - first)` rows.
// Scores are multiplied by log2 e, because weights are powers of two; a soft cap is applied before.
template <class Kernel, class T>
void load_queries(const Call<T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last, float* queries) {
    const int64_t group = c.heads / c.kv_heads, stride = Kernel::query_floats(c.dim);
    const float factor = (c.softcap > 0 ? c.scale : c.scale * LOG2E) * c.key_factor(kv_head);
    for (int64_t t = 0; t < item.count; ++t)
        for (int64_t h = first; h < last; ++h, queries += stride) {
            const int64_t at = (item.token + t) * c.q_stride + (kv_head * group + h) * c.dim;
            if (c.brain)
                Kernel::put_query((const bf16*)c.q + at, factor, c.dim, queries);
            else
                Kernel::put_query((const float*)c.q + at, factor, c.dim, queries);
        }
}

// Prefetches keys and values of the next tile: steps of few rows wait for memory, steps of many for the shared cache.
template <class T>
void fetch_tile(const Call<T>& c, const int32_t* table, int64_t kv_head, int64_t tile, int64_t stop) {
    const int64_t bytes = c.dim * c.size * (int64_t)sizeof(T), step = std::min(KEYS, c.size);
    for (int64_t key = tile; key < std::min(tile + KEYS, stop); key += step) {
        const int64_t head = (int64_t)table[key / c.size] * c.kv_heads + kv_head;
        if (key % c.size) continue;
        for (const void* cache : {(const void*)c.k_cache, (const void*)c.v_cache}) {
            const char* from = (const char*)cache + head * bytes;
            const int64_t wanted = std::min(bytes, KEYS * c.dim * (int64_t)sizeof(T));
            for (int64_t line = 0; line < wanted; line += 64) __builtin_prefetch(from + line, 0, 2);
        }
        if constexpr (std::is_same<T, i8>::value)
            for (const float* scales : {c.k_scales, c.v_scales})
                for (int64_t at = 0; at < step; at += RUN) __builtin_prefetch(scales + head * c.size + at, 0, 2);
    }
}

// Cache lines to prefetch while tiles multiply, from line `first` of each run: as many as can be in flight at once. More
// would delay the products.
template <class T>
void fetch_lines(const T* const* runs, int64_t count, int64_t first, int64_t lines) {
    for (int64_t run = 0; run < count; ++run)
        for (int64_t line = first; line < first + lines; ++line) __builtin_prefetch((const char*)runs[run] + line * 64);
}

// What is added to the scores of a tile for one row: `slope` (times log2 e) times the distance of each key from the query,
// which is `from` for the first key; and what `table` has for the distance back to a key, up to `last`.
struct Bias {
    float slope = 0.0f;
    int64_t from = 0;
    const float* table = nullptr;
    int64_t last = 0;

    bool adds() const { return slope != 0.0f || table; }
    Bias behind(int64_t keys) const { return {slope, from + keys, table, last}; }
    void add(float* scores, int64_t keys) const {
        if (slope != 0.0f)
            for (int64_t key = 0; key < keys; ++key) scores[key] += slope * (float)(from + key);
        if (!table) return;
        for (int64_t key = 0; key < keys; ++key)
            scores[key] += LOG2E * table[std::min(last, std::max<int64_t>(0, -from - key))];
    }
};

// Computes the weights of N keys for one row that sees [begin, end) of them.
template <int N, bool FROM_ZERO, class Weight>
void weigh_some(float* scores, int64_t begin, int64_t end, float softcap, const Bias& bias, const Running& state,
                int64_t row, Weight* weights) {
    if (softcap > 0) cap(scores, N, softcap, state.starts[row]);
    if (bias.adds()) bias.add(scores, N);
    if (begin > 0 || end < N) hide(scores, N, begin, end);
    if (FROM_ZERO && softcap <= 0) return weigh<N, true>(scores, weights, N, state, row, 1);
    weigh<N>(scores, weights, N, state, row, 1);
}

// Computes the weights of a tile for one row, which sees [begin, end) of its keys.
template <class Kernel, class T>
void weigh_runs(float* scores, const Tile<T>& tile, int64_t begin, int64_t end, float softcap, const Bias& of_tile,
                const Running& state, int64_t row, typename Kernel::Weight* weights) {
    const int64_t first = tile.first_run() * RUN;
    const Bias bias = of_tile.behind(first);
    scores += first, weights += first, begin -= first, end -= first;
    switch (tile.runs()) {
        case 1: return weigh_some<RUN, Kernel::ON_TILES>(scores, begin, end, softcap, bias, state, row, weights);
        case 2: return weigh_some<2 * RUN, Kernel::ON_TILES>(scores, begin, end, softcap, bias, state, row, weights);
        case 3: return weigh_some<3 * RUN, Kernel::ON_TILES>(scores, begin, end, softcap, bias, state, row, weights);
        default: return weigh_some<4 * RUN, Kernel::ON_TILES>(scores, begin, end, softcap, bias, state, row, weights);
    }
}

// Computes the softmax state of an item over the keys [part * PART, (part + 1) * PART); `each` rows a token, for the query
// heads of a kv head from number `first_head` on.
template <class Kernel, class T>
void attend_part(const Call<T>& c, const Item& item, int64_t kv_head, int64_t first_head, int64_t each, int64_t part,
                 const float* queries, Scratch& scratch, const Running& state) {
    using Weight = typename Kernel::Weight;
    const int64_t rows = item.count * each, dim = c.dim, query = Kernel::query_floats(dim);
    float* const scores = scratch.scores.of<float>(Kernel::SCORED * KEYS);
    Weight* const weights = scratch.weights.of<Weight>(rows * KEYS);
    bf16* const room = scratch.tile.of<bf16>(Kernel::laid_out(rows, dim));
    state.clear(rows);
    [[maybe_unused]] typename Kernel::Held held;
    const int32_t* table = c.tables + item.sequence * c.table_width;
    const auto head_at = [&](int64_t key) { return (int64_t)table[key / c.size] * c.kv_heads + kv_head; };
    const auto keys_at = [&](int64_t key) { return c.k_cache + head_at(key) * dim * c.size + key % c.size; };
    const int64_t start = std::max(first_visible(c, item.position), part * PART);
    const int64_t stop = std::min(end_visible(c, item, item.count - 1), (part + 1) * PART);
    for (int64_t key = start / KEYS * KEYS; key < stop; key += KEYS) {
        Tile<T> cached{{}, {}, c.size, dim, std::max<int64_t>(0, start - key), std::min(KEYS, stop - key)};
        const int64_t low = cached.begin / RUN * RUN, high = (cached.end - 1) / RUN * RUN;
        for (int64_t run = 0; run < RUNS; ++run) {
            const int64_t at = key + std::min(std::max(run * RUN, low), high);
            const int64_t head = head_at(at), offset = at % c.size;
            cached.keys[run] = keys_at(at);
            cached.values[run] = c.v_cache + (head * c.size + offset) * dim;
            if constexpr (std::is_same<T, i8>::value) {
                cached.key_scales[run] = c.k_scales + head * c.size + offset;
                cached.value_scales[run] = c.v_scales + head * c.size + offset;
            }
        }
        if constexpr (!Kernel::ON_TILES)
            if (key + KEYS < stop) fetch_tile(c, table, kv_head, key + KEYS, stop);
        const auto& tile = Kernel::lay_out(cached, rows, room);
        const int64_t from_all = first_visible(c, item.position + item.count - 1), to_all = end_visible(c, item, 0);
        // every row sees every key, and takes its score as it is
        const bool all = from_all <= key && to_all >= key + KEYS && !c.slopes && !c.distances && c.softcap <= 0;
        const auto weigh_seen = [&](int64_t row, float* from) {
            Weight* const to = weights + row * KEYS;
            const int64_t token = row / each;
            const int64_t begin = std::max<int64_t>(0, first_visible(c, item.position + token) - key);
            const int64_t end = std::min(KEYS, end_visible(c, item, token) - key);
            if (begin >= end)
                std::fill_n(to, KEYS, Weight{});
            else {
                const int64_t head = kv_head * (c.heads / c.kv_heads) + first_head + row % each;
                const float* const table =
                    c.distances ? c.distances + (item.token + token) * c.by_token + head * c.extent : nullptr;
                const float slope = c.slopes ? c.slopes[head] * LOG2E : 0.0f;
                const Bias bias{slope, key - item.position - token, table, c.extent - 1};
                weigh_runs<Kernel>(from, tile, begin, end, c.softcap, bias, state, row, to);
            }
        };
        const auto weigh_rows = [&](int64_t first, int64_t count, float* from) {
            if (all) return weigh<KEYS, Kernel::ON_TILES>(from, weights + first * KEYS, KEYS, state, first, count);
            for (int64_t row = 0; row < count; ++row) weigh_seen(first + row, from + row * KEYS);
        };
        if constexpr (Kernel::ON_TILES) {
            const T* next[RUNS];
            int64_t runs = 0;
            for (int64_t at = key + KEYS; at < std::min(key + 2 * KEYS, stop); at += RUN) next[runs++] = keys_at(at);
            fetch_lines(cached.values, RUNS, 0, 12);
            Kernel::score(held, rows, queries, tile, scores, [&](int64_t first, int64_t count, float* from) {
                if (first == 0) fetch_lines(cached.values, RUNS, 12, 10);
                weigh_rows(first, count, from);
            });
            Kernel::lay_out_values(cached, room);
            fetch_lines(next, runs, 0, 12);
            Kernel::accumulate(held, rows, weights, tile, state.sums, state.width, [&](int64_t made) {
                fetch_lines(next, runs, 12 + made * 6, 6);
            });
        } else {
            by_rows<DEEP>(rows, [&](int64_t first, auto deep) {
                constexpr int R = decltype(deep)::value;
                const float* const starts = c.softcap > 0 ? ZEROS : state.starts + first;
                Kernel::template score<R>(queries + first * query, tile, starts, scores);
                weigh_rows(first, R, scores);
            });
            Kernel::accumulate(rows, weights, tile, state.sums, state.width);
        }
    }
}

// The weight that a head's sink adds to the sum of a row, once, after all keys. Capped at 2^126 to stay finite; no value
// contributes measurably beside that.
template <class C>
float sink_weight(const C& c, int64_t head, const Running& state, int64_t row) {
    if (!c.sinks) return 0.0f;
    return exp2(set1(std::min(c.sinks[head] * LOG2E + state.starts[row], 126.0f)))[0];
}

// Divides by the sum of weights and writes one row of the output: zeros if it saw no key.
template <class T>
void finish(const Call<T>& c, int64_t token, int64_t head, const Running& state, int64_t row) {
    const auto put = [&](auto* out, int64_t d, vf mean) {
        auto* const to = out + (token * c.heads + head) * c.dim + d;
        if (d + LANES <= c.dim)
            store(to, mean);
        else
            store_part(to, mean, c.dim - d);
    };
    const float sum = hsum(load(state.totals + row * LANES)) + sink_weight(c, head, state, row);
    if (c.logsums) c.logsums[token * c.heads + head] = std::log(sum) - state.starts[row] / LOG2E;
    const vf total = set1(sum > 0 ? sum : 1.0f), factor = set1(c.value_factor(head / (c.heads / c.kv_heads)));
    for (int64_t d = 0; d < c.dim; d += LANES) {
        const vf mean = load(state.sums + row * state.width + d) / total * factor + 0.0f;  // turns -0 into 0
        if (c.brain)
            put((bf16*)c.out, d, mean);
        else
            put((float*)c.out, d, mean);
    }
}

static inline Scratch& scratch_of_thread() {
    static thread_local Scratch scratch;
    return scratch;
}

template <class Kernel, class T>
void attend_by(const Call<T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last) {
    Scratch& scratch = scratch_of_thread();
    const int64_t group = c.heads / c.kv_heads, each = last - first, rows = item.count * each;
    float* const queries = scratch.queries.of<float>(rows * Kernel::query_floats(c.dim));
    const Running state = scratch.running(rows, padded(c.dim), 0), piece = scratch.running(rows, padded(c.dim), 1);
    load_queries<Kernel>(c, item, kv_head, first, last, queries);
    const int64_t from = first_visible(c, item.position) / PART, end = end_visible(c, item, item.count - 1);
    const int64_t to = std::max(from, (end - 1) / PART);
    attend_part<Kernel>(c, item, kv_head, first, each, from, queries, scratch, state);
    for (int64_t part = from + 1; part <= to; ++part) {
        attend_part<Kernel>(c, item, kv_head, first, each, part, queries, scratch, piece);
        for (int64_t row = 0; row < rows; ++row) state.join(row, piece, row);
    }
    for (int64_t row = 0; row < rows; ++row)
        finish(c, item.token + row / each, kv_head * group + first + row % each, state, row);
}

template <class Kernel, class T>
void attend_one_part_by(const Call<T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last,
                        int64_t part, const Running& state) {
    Scratch& scratch = scratch_of_thread();
    float* const queries = scratch.queries.of<float>((last - first) * Kernel::query_floats(c.dim));
    load_queries<Kernel>(c, item, kv_head, first, last, queries);
    attend_part<Kernel>(c, item, kv_head, first, last - first, part, queries, scratch, state);
}

// Calls body(Kernel()) with the products to use: tiles if the processor has them, else vectors; the same for all rows.
template <class T, class Body>
void by_kernel(int64_t rows, int64_t dim, const Body& body) {
    [[maybe_unused]] constexpr bool brain = std::is_same<T, bf16>::value || std::is_same<T, e4m3>::value;
#if defined(STENTOR_TILES)
    if constexpr (brain)
        if (dim % SUMMED == 0 && tiles::with_tiles([&](auto of) { return body(Tiled<decltype(of), T>()), true; }, false))
            return;
#endif
#if defined(__AVX512BF16__)
    if constexpr (brain)
        if (Pairs<T>::takes(dim)) return body(Pairs<T>());
#endif
#if defined(STENTOR_PRODUCTS_OF_CODES)
    if constexpr (std::is_same<T, i8>::value)
        if (Codes::takes(dim)) return body(Codes());
#endif
    if constexpr (std::is_same<T, e4m3>::value)
        if (rows > DEEP) return body(Expanded());
    if constexpr (std::is_same<T, i8>::value)
        body(SingleCodes());
    else
        body(Singles<T>());
}

// Computes a whole item, for the query heads [first, last) of a kv head.
template <class T>
void attend(const Call<T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last) {
    by_kernel<T>(item.count * (last - first), c.dim, [&](auto kernel) {
        attend_by<decltype(kernel)>(c, item, kv_head, first, last);
    });
}

// Computes one part of a single token's rows, for the query heads [first, last) of a kv head, into `state`.
template <class T>
void attend_one_part(const Call<T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last, int64_t part,
                     const Running& state) {
    by_kernel<T>(last - first, c.dim, [&](auto kernel) {
        attend_one_part_by<decltype(kernel)>(c, item, kv_head, first, last, part, state);
    });
}

// Both take long to compile, so each type of cache has one translation unit that instantiates them (native*.cpp).
#define STENTOR_ATTEND(EXTERN, T)                                                                                 \
    EXTERN template void attend(const Call<T>& c, const Item& item, int64_t kv_head, int64_t first, int64_t last); \
    EXTERN template void attend_one_part(const Call<T>& c, const Item& item, int64_t kv_head, int64_t first,       \
                                         int64_t last, int64_t part, const Running& state);

STENTOR_ATTEND(extern, float)
STENTOR_ATTEND(extern, bf16)
STENTOR_ATTEND(extern, i8)
STENTOR_ATTEND(extern, e4m3)

// The first sequence whose lengths or blocks are outside the tensors, or -1.
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

// The items of a step, longest first, so that threads finish together; and their total work.
template <class C>
std::vector<Item> items_of(const C& c, int64_t threads, int64_t* work) {
    const int64_t rows = rows_of_item();
    const bool few = c.tokens * c.heads < rows * ITEMS * threads;
    const int64_t step = std::max<int64_t>(1, (few ? rows / 2 : rows) / (c.heads / c.kv_heads));
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
