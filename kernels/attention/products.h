// The two products of attention, scores and weighted values, for a few rows and a tile of keys: here in single
// precision, in pairs.h with pairs of bfloat16.
#pragma once

#include "float8.h"
#include "simd_math.h"

#include <algorithm>
#include <type_traits>

namespace stentor {
namespace attention {

constexpr int64_t RUN = 16;   // contiguous keys in every block, whatever its size
constexpr int64_t KEYS = 64;  // keys of one online-softmax update
constexpr int64_t RUNS = KEYS / RUN;
// Vectors across and rows down in the register tiles.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int WIDE = 4, DEEP = 4;  // 16 sums keep two units busy, and the next rows' sums overlap them
#elif defined(__AVX2__)
constexpr int WIDE = 2, DEEP = 6;  // 12 of 16 registers are sums; three loads for every four products
#else
constexpr int WIDE = 4, DEEP = 2;
#endif
static_assert(RUN % LANES == 0 && KEYS % (WIDE * LANES) == 0, "tiles are whole vectors");

// Keeps a loaded value in a register; the compiler would load it again for every use.
static inline vf held(vf x) {
#if defined(__AVX512F__)
    asm("" : "+v"(x));
#endif
    return x;
}

// Calls body(row, R) for rows [0, rows) in groups of R, an integral constant of up to MOST.
template <int MOST, class Body>
static void by_rows(int64_t rows, const Body& body) {
    int64_t row = 0;
    for (; row + MOST <= rows; row += MOST) body(row, std::integral_constant<int, MOST>());
    if constexpr (MOST > 1) {
        constexpr int LESS = MOST > 4 ? 4 : MOST - 1;
        by_rows<LESS>(rows - row, [&](int64_t more, auto deep) { body(row + more, deep); });
    }
}

// sums[r][...] += weights[r][key] * value[key][at ...] over keys [begin, end), which lie in runs, for R rows and V vectors;
// `lanes` is below LANES only for a partial last vector of a row.
template <int R, int V, class T>
static void add_columns(const float* weights, const T* const* runs, int64_t dim, int64_t begin, int64_t end, int64_t at,
                        int64_t lanes, float* sums, int64_t stride) {
    vf acc[R][V];
    #pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
        #pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[r][v] = load(sums + r * stride + v * LANES);
    for (int64_t key = begin; key < end; ++key) {
        const T* from = runs[key / RUN] + at + key % RUN * dim;
        vf value[V];
        if (V > 1 || lanes == LANES)
            load_next<V>(from, value);
        else
            value[0] = load_part(from, lanes);
        #pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const vf weight = set1(weights[r * KEYS + key]);
            #pragma GCC unroll 8
            for (int v = 0; v < V; ++v) acc[r][v] = fma(weight, value[v], acc[r][v]);
        }
    }
    #pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
        #pragma GCC unroll 8
        for (int v = 0; v < V; ++v) store(sums + r * stride + v * LANES, acc[r][v]);
}

// A tile of keys for the rows of an item.
template <class T>
struct Tile {
    // The start of each run. A run without a visible key points to one with such a key; its scores are masked.
    const T *keys[RUNS], *values[RUNS];
    int64_t size, dim;    // tokens of a block; dimensions of a head
    int64_t begin, end;   // keys that some row sees
    const T *paired_keys = nullptr, *paired_values = nullptr;  // the tile in pairs, made once for many rows
    const float *key_scales[RUNS] = {}, *value_scales[RUNS] = {};  // scales of each run's codes

    // The runs that some row sees.
    int64_t first_run() const { return begin / RUN; }
    int64_t runs() const { return (end + RUN - 1) / RUN - begin / RUN; }
};

template <class T>
struct Singles {
    using Weight = float;
    struct Held {};  // state kept over the tiles of a part: none
    static constexpr bool ON_TILES = false;
    static constexpr int64_t SCORED = DEEP;  // most rows whose scores are computed at once

    static int64_t query_floats(int64_t dim) { return dim; }

    // Bytes to convert a tile once for all rows, and the converted tile: 0, and the tile itself.
    static int64_t laid_out(int64_t, int64_t) { return 0; }
    static const Tile<T>& lay_out(const Tile<T>& tile, int64_t, bf16*) { return tile; }

    template <class Q>
    static void put_query(const Q* from, float factor, int64_t dim, float* to) {
        for (int64_t d = 0; d < dim; ++d) to[d] = widen(from[d]) * factor;
    }

    // scores[r][key] = starts[r] + queries[r] · key, for R rows and the runs of a tile that some row sees.
    template <int R>
    static void score(const float* queries, const Tile<T>& tile, const float* starts, float* scores) {
        const int64_t dim = tile.dim;
        for (int64_t base = tile.begin / (WIDE * LANES) * (WIDE * LANES); base < tile.end; base += WIDE * LANES) {
            const T* from[WIDE];
            #pragma GCC unroll 8
            for (int v = 0; v < WIDE; ++v) {
                const int64_t key = base + v * LANES;
                from[v] = tile.keys[key / RUN] + key % RUN;
            }
            vf acc[R][WIDE];
            #pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
                #pragma GCC unroll 8
                for (int v = 0; v < WIDE; ++v) acc[r][v] = set1(starts[r]);
            for (int64_t d = 0; d < dim; ++d) {
                vf key[WIDE];
                #pragma GCC unroll 8
                for (int v = 0; v < WIDE; v += SIXTEEN) load_next<SIXTEEN>(from[v] + d * tile.size, key + v);
                #pragma GCC unroll 8
                for (int v = 0; v < WIDE; ++v) key[v] = held(key[v]);
                #pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const vf query = set1(queries[r * dim + d]);
                    #pragma GCC unroll 8
                    for (int v = 0; v < WIDE; ++v) acc[r][v] = fma(query, key[v], acc[r][v]);
                }
            }
            #pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
                #pragma GCC unroll 8
                for (int v = 0; v < WIDE; ++v) store(scores + r * KEYS + base + v * LANES, acc[r][v]);
        }
    }

    // sums[row][d...] += weights[row][key] * value[key][d...] over the keys of the tile that some row sees.
    static void accumulate(int64_t rows, const float* weights, const Tile<T>& tile, float* sums, int64_t stride) {
        by_rows<DEEP>(rows, [&](int64_t row, auto deep) {
            constexpr int R = decltype(deep)::value;
            const float* mine = weights + row * KEYS;
            float* to = sums + row * stride;
            int64_t d = 0;
            for (; d + WIDE * LANES <= tile.dim; d += WIDE * LANES)
                add_columns<R, WIDE>(mine, tile.values, tile.dim, tile.begin, tile.end, d, LANES, to + d, stride);
            for (; d + 2 * LANES <= tile.dim; d += 2 * LANES)
                add_columns<R, 2>(mine, tile.values, tile.dim, tile.begin, tile.end, d, LANES, to + d, stride);
            for (; d < tile.dim; d += LANES)
                add_columns<R, 1>(mine, tile.values, tile.dim, tile.begin, tile.end, d,
                                  std::min<int64_t>(LANES, tile.dim - d), to + d, stride);
        });
    }
};

}  // namespace attention
}  // namespace stentor
