// Causal attention over the paged cache with an online softmax.
//
// The work is cut into items: one sequence, one kv head, a few tokens. The rows of an item (its tokens
// times the query heads that share the kv head) meet each tile of keys together, so that keys and
// values are loaded and widened once for several rows.
//
// Tiles of 64 keys stand at absolute positions, and a row takes its tiles in order: scores, maximum,
// rescale, sum, values key by key. A key that a row does not see contributes an exact zero. So a row's
// result depends on its own position, query and keys, and not on the rows beside it.
#include "parallel.h"
#include "simd_math.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace stentor {
namespace {

constexpr int64_t RUN = 16;    // keys that lie side by side in every block, whatever its size
constexpr int64_t TILE = 64;   // keys of one online-softmax update
constexpr int64_t ROWS = 32;   // rows of an item, when one token has no more than that
constexpr int WIDE = 4;        // vectors across in the register tiles
#if defined(__AVX512F__)
constexpr int DEEP = 4;        // rows down: 16 of 32 registers accumulate
#else
constexpr int DEEP = 2;
#endif
constexpr int64_t SMALL = 1 << 17;  // multiply-adds below which a second thread does not pay
static_assert(RUN % LANES == 0 && TILE % (WIDE * LANES) == 0, "tiles are whole vectors");

template <class T>
struct Call {
    const T* q;        // [tokens, heads, dim], rows of q_stride
    const T* k_cache;  // [blocks, kv_heads, dim, size]
    const T* v_cache;  // [blocks, kv_heads, size, dim]
    T* out;            // [tokens, heads, dim]
    const int32_t *query_start, *seq_lens, *tables;
    int64_t sequences, tokens, heads, kv_heads, dim, size, blocks, table_width, q_stride;
    float scale;
    int64_t window;
    float softcap;
};

struct Item {
    int64_t sequence, token, count, position;  // `count` tokens from `token`, the first at `position`
};

struct Scratch {
    std::vector<float> queries, scores, sums, maxima, totals;
};

template <class T>
int64_t first_visible(const Call<T>& c, int64_t position) {
    return c.window > 0 ? std::max<int64_t>(0, position - c.window + 1) : 0;
}

// scores[r][key] = queries[r] · key, for R rows and one tile.
template <int R, class T>
void score(const float* queries, const T* const* keys, int64_t size, int64_t dim, float* scores) {
    for (int64_t base = 0; base < TILE; base += WIDE * LANES) {
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
            for (int v = 0; v < WIDE; ++v) store(scores + r * TILE + base + v * LANES, acc[r][v]);
    }
}

// sums[r][d...] += weights[r][key] * value[key][d...] over keys [begin, end) of the tile, V vectors wide;
// `lanes` is less than LANES only where the last vector of a row is not whole.
template <int R, int V, class T>
void accumulate(const float* weights, const T* const* values, int64_t begin, int64_t end, int64_t dim, int64_t lanes,
                float* sums, int64_t sums_stride) {
    vf acc[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) acc[r][v] = load(sums + r * sums_stride + v * LANES);
    for (int64_t key = begin; key < end; ++key) {
        const T* from = values[key / RUN] + key % RUN * dim;
        for (int v = 0; v < V; ++v) {
            const vf value = V > 1 || lanes == LANES ? load(from + v * LANES) : load_part(from, lanes);
            for (int r = 0; r < R; ++r) acc[r][v] = fma(set1(weights[r * TILE + key]), value, acc[r][v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) store(sums + r * sums_stride + v * LANES, acc[r][v]);
}

template <int R, class T>
void accumulate_rows(const float* weights, const T* const* values, int64_t begin, int64_t end, int64_t dim, float* sums,
                     int64_t sums_stride) {
    int64_t d = 0;
    const T* from[TILE / RUN];
    const auto at = [&](int64_t offset) {
        for (int64_t run = 0; run < TILE / RUN; ++run) from[run] = values[run] + offset;
        return (const T* const*)from;
    };
    for (; d + WIDE * LANES <= dim; d += WIDE * LANES)
        accumulate<R, WIDE>(weights, at(d), begin, end, dim, LANES, sums + d, sums_stride);
    for (; d < dim; d += LANES)
        accumulate<R, 1>(weights, at(d), begin, end, dim, std::min<int64_t>(LANES, dim - d), sums + d, sums_stride);
}

template <class Body>
void by_rows(int64_t rows, const Body& body) {
    int64_t row = 0;
    for (; row + DEEP <= rows; row += DEEP) body(row, std::integral_constant<int, DEEP>());
#if defined(__AVX512F__)
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
    for (int64_t key = 0; key < TILE; key += LANES) {
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
    for (int64_t key = 0; key < TILE; key += LANES) {
        const vf weight = exp(load(scores + key) - set1(top));
        store(scores + key, weight);
        sum += weight;
    }
    *maximum = top;
    *total = *total * factor + hsum(sum);
    if (factor != 1.0f)
        for (int64_t d = 0; d < width; d += LANES) store(sums + d, load(sums + d) * set1(factor));
}

template <class T>
void attend(const Call<T>& c, const Item& item, int64_t kv_head) {
    static thread_local Scratch scratch;
    const int64_t group = c.heads / c.kv_heads, rows = item.count * group, dim = c.dim;
    const int64_t width = (dim + LANES - 1) / LANES * LANES;
    scratch.queries.resize(rows * dim);
    scratch.scores.resize(rows * TILE);
    scratch.sums.assign(rows * width, 0.0f);
    scratch.maxima.assign(rows, -std::numeric_limits<float>::infinity());
    scratch.totals.assign(rows, 0.0f);
    float *queries = scratch.queries.data(), *scores = scratch.scores.data(), *sums = scratch.sums.data();

    for (int64_t row = 0; row < rows; ++row) {
        const T* from = c.q + (item.token + row / group) * c.q_stride + (kv_head * group + row % group) * dim;
        for (int64_t d = 0; d < dim; ++d) queries[row * dim + d] = widen(from[d]) * c.scale;
    }

    const int32_t* table = c.tables + item.sequence * c.table_width;
    const int64_t start = first_visible(c, item.position), stop = item.position + item.count;
    for (int64_t tile = start / TILE * TILE; tile < stop; tile += TILE) {
        // A run without a visible key stands in as a copy of one that has: its scores are masked.
        const T *keys[TILE / RUN], *values[TILE / RUN];
        const int64_t low = std::max(start, tile) / RUN * RUN, high = (std::min(stop, tile + TILE) - 1) / RUN * RUN;
        for (int64_t run = 0; run < TILE / RUN; ++run) {
            const int64_t key = std::min(std::max(tile + run * RUN, low), high);
            const int64_t head = (int64_t)table[key / c.size] * c.kv_heads + kv_head, offset = key % c.size;
            keys[run] = c.k_cache + head * dim * c.size + offset;
            values[run] = c.v_cache + (head * c.size + offset) * dim;
        }
        by_rows(rows, [&](int64_t row, auto deep) {
            score<decltype(deep)::value>(queries + row * dim, keys, c.size, dim, scores + row * TILE);
        });
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t position = item.position + row / group;
            const int64_t begin = std::max<int64_t>(0, first_visible(c, position) - tile);
            const int64_t end = std::min(TILE, position + 1 - tile);
            if (begin >= end)
                std::fill_n(scores + row * TILE, TILE, 0.0f);
            else
                update(scores + row * TILE, begin, end, c.softcap, &scratch.maxima[row], &scratch.totals[row],
                       sums + row * width, width);
        }
        const int64_t begin = std::max<int64_t>(0, start - tile), end = std::min(TILE, stop - tile);
        by_rows(rows, [&](int64_t row, auto deep) {
            accumulate_rows<decltype(deep)::value>(scores + row * TILE, values, begin, end, dim, sums + row * width,
                                                   width);
        });
    }

    for (int64_t row = 0; row < rows; ++row) {
        T* to = c.out + ((item.token + row / group) * c.heads + kv_head * group + row % group) * dim;
        const vf total = set1(scratch.totals[row]);
        for (int64_t d = 0; d < dim; d += LANES) {
            const vf mean = load(sums + row * width + d) / total;
            if (d + LANES <= dim)
                store(to + d, mean);
            else
                store_part(to + d, mean, dim - d);
        }
    }
}

// The first sequence whose lengths or blocks lead outside what the tensors hold, or -1.
template <class T>
int64_t find_fault(const Call<T>& c) {
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

template <class T>
int64_t paged_attention(const Call<T>& c, int64_t threads) {
    const int64_t fault = find_fault(c);
    if (fault >= 0) return fault;
    const int64_t group = c.heads / c.kv_heads, step = std::max<int64_t>(1, ROWS / group);
    std::vector<Item> items;
    int64_t work = 0;
    for (int64_t s = 0; s < c.sequences; ++s) {
        const int64_t begin = c.query_start[s], end = c.query_start[s + 1];
        for (int64_t token = begin; token < end; token += step) {
            const int64_t position = c.seq_lens[s] - (end - token), count = std::min(step, end - token);
            items.push_back({s, token, count, position});
            work += (position + count - first_visible(c, position)) * count * c.heads * c.dim;
        }
    }
    // The longest first, so that no thread is left with one at the end.
    std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
        return a.position + a.count > b.position + b.count;
    });
    parallel_for((int64_t)items.size() * c.kv_heads, work < SMALL ? 1 : threads, [&](int64_t index) {
        attend(c, items[index / c.kv_heads], index % c.kv_heads);
    });
    return -1;
}

}  // namespace
}  // namespace stentor

using namespace stentor;

// Returns -1, or the first sequence whose lengths or blocks lead outside the tensors; nothing is written then.
#define STENTOR_PAGED_ATTENTION(NAME, T)                                                                              \
    STENTOR_EXPORT int64_t NAME(const T* q, const T* k_cache, const T* v_cache, T* out, const int32_t* query_start,   \
                                const int32_t* seq_lens, const int32_t* tables, int64_t sequences, int64_t tokens,    \
                                int64_t heads, int64_t kv_heads, int64_t dim, int64_t size, int64_t blocks,           \
                                int64_t table_width, int64_t q_stride, float scale, int64_t window, float softcap,    \
                                int64_t threads) {                                                                    \
        return paged_attention<T>({q, k_cache, v_cache, out, query_start, seq_lens, tables, sequences, tokens, heads, \
                                   kv_heads, dim, size, blocks, table_width, q_stride, scale, window, softcap},       \
                                  threads);                                                                           \
    }

STENTOR_PAGED_ATTENTION(stentor_paged_attention_f32, float)
STENTOR_PAGED_ATTENTION(stentor_paged_attention_bf16, bf16)
