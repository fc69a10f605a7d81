// The two products of attention in pairs of bfloat16, with sums in single precision.
#pragma once

#include "paired.h"

namespace stentor {
namespace attention {

#if defined(__AVX512BF16__)

// Queries and weights are rounded to bfloat16, as keys and values are.
template <class T>
struct Pairs {
    using Weight = bf16;
    struct Held {};  // state kept over the tiles of a part: none
    static constexpr bool ON_TILES = false;
    static constexpr int64_t SCORED = DEEP;

    static bool takes(int64_t dim) { return dim % (2 * LANES) == 0; }

    static int64_t query_floats(int64_t dim) { return dim / 2; }

    template <class Q>
    static void put_query(const Q* from, float factor, int64_t dim, float* to) {
        for (int64_t d = 0; d < dim; d += 2 * LANES) {
            const __m512 low = (__m512)(load(from + d) * set1(factor));
            const __m512 high = (__m512)(load(from + d + LANES) * set1(factor));
            _mm512_storeu_si512(to + d / 2, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    }

    // Bytes for a tile's pairs if they are made once for all rows; 0 for a few rows over bfloat16.
    static int64_t laid_out(int64_t rows, int64_t dim) {
        return rows > MANY || !std::is_same<T, bf16>::value ? 2 * KEYS * dim : 0;
    }

    // Keys become [dim / 2, KEYS, 2], values [KEYS / 2, dim, 2].
    static Tile<bf16> lay_out(const Tile<T>& tile, int64_t rows, bf16* room) {
        if constexpr (std::is_same<T, bf16>::value)
            if (rows <= MANY) return tile;
        bf16 *const keys = room, *const values = room + KEYS * tile.dim;
        const int64_t dim = tile.dim, last = tile.first_run() + tile.runs();
        for (int64_t run = tile.first_run(); run < last; ++run)
            pair_keys(tile.keys[run], tile.size, dim, keys + run * 2 * RUN);
        for (int64_t key = tile.begin / 2 * 2; key < tile.end; key += 2) {
            const T* const from = tile.values[key / RUN] + key % RUN * dim;
            pair_values(from, key + 1 < tile.end ? from + dim : nullptr, dim, values + key * dim);
        }
        return {{}, {}, tile.size, dim, tile.begin, tile.end, keys, values};
    }

    template <int R>
    static void score(const float* queries, const Tile<bf16>& tile, const float* starts, float* scores) {
        const int64_t half = tile.dim / 2;
        if (tile.paired_keys) {
            const int64_t first = tile.first_run() * RUN;
            const bf16* from = tile.paired_keys + 2 * first;
            const auto key = [&](int64_t d, int v) {
                return (__m512bh)_mm512_loadu_si512(from + d * 2 * KEYS + v * 2 * RUN);
            };
            switch (tile.runs()) {
                case 1: return score_by<R, 1>(queries, half, key, starts, scores + first);
                case 2: return score_by<R, 2>(queries, half, key, starts, scores + first);
                case 3: return score_by<R, 3>(queries, half, key, starts, scores + first);
                default: return score_by<R, 4>(queries, half, key, starts, scores + first);
            }
        }
        // in a block of one run, two neighbouring dimensions of its keys fill one cache line
        if (tile.size == RUN)
            return score_by<R, 4>(
                queries, half, [&](int64_t d, int v) { return (__m512bh)turned(tile.keys[v] + 2 * d * RUN); },
                starts, scores);
        const int64_t size = tile.size;
        const auto key = [&](int64_t d, int v) {
            return (__m512bh)beside(tile.keys[v] + 2 * d * size, tile.keys[v] + (2 * d + 1) * size);
        };
        score_by<R, 4>(queries, half, key, starts, scores);
    }

    // Keys are read in pairs: a key before `begin` has weight zero, the key at `end` is not read.
    static void accumulate(int64_t rows, const bf16* weights, const Tile<bf16>& tile, float* sums, int64_t stride) {
        int64_t d = 0;
        for (; d + WIDE * LANES <= tile.dim; d += WIDE * LANES)
            by_rows<DEEP>(rows, [&](int64_t row, auto deep) {
                columns<decltype(deep)::value, WIDE>(weights + row * KEYS, tile, d, sums + row * stride + d, stride);
            });
        for (; d < tile.dim; d += 2 * LANES)
            by_rows<2 * DEEP>(rows, [&](int64_t row, auto deep) {
                columns<decltype(deep)::value, 2>(weights + row * KEYS, tile, d, sums + row * stride + d, stride);
            });
    }

   private:
    static constexpr int64_t MANY = 15;  // rows above which making the pairs once pays

    // Scores of R rows and V runs; key(d, v) returns one run at dimensions 2d and 2d + 1.
    template <int R, int V, class Key>
    static void score_by(const float* queries, int64_t half, const Key& key, const float* starts, float* scores) {
        __m512 acc[R][V];
        #pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            #pragma GCC unroll 8
            for (int v = 0; v < V; ++v) acc[r][v] = _mm512_set1_ps(starts[r]);
        for (int64_t d = 0; d < half; ++d) {
            __m512bh keys[V];
            #pragma GCC unroll 8
            for (int v = 0; v < V; ++v) keys[v] = key(d, v);
            #pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const __m512bh query = both(queries + r * half + d);
                #pragma GCC unroll 8
                for (int v = 0; v < V; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], query, keys[v]);
            }
        }
        #pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            #pragma GCC unroll 8
            for (int v = 0; v < V; ++v) _mm512_storeu_ps(scores + r * KEYS + v * RUN, acc[r][v]);
    }

    // V vectors wide, from dimension `at` on.
    template <int R, int V>
    static void columns(const bf16* weights, const Tile<bf16>& tile, int64_t at, float* sums, int64_t stride) {
        const int64_t dim = tile.dim, whole = tile.end / 2 * 2;
        const auto made = [&](int64_t key, __m512i* value) {
            const bf16* from = tile.paired_values + 2 * at + key * dim;
            #pragma GCC unroll 8
            for (int v = 0; v < V; ++v) value[v] = _mm512_loadu_si512(from + v * 2 * LANES);
        };
        if (tile.paired_values) return columns_by<R, V>(weights, tile, made, sums, stride);
        const auto make = [&](int64_t key, __m512i* value) {
            const bf16* from = tile.values[key / RUN] + at + key % RUN * dim;
            #pragma GCC unroll 8
            for (int v = 0; v < V; v += 2)
                two_beside(from + v * LANES, key < whole ? from + dim + v * LANES : nullptr, value + v);
        };
        columns_by<R, V>(weights, tile, make, sums, stride);
    }

    // Products of R rows and V vectors of values; pair(key, value) returns those of a key and the next one.
    template <int R, int V, class Pair>
    static void columns_by(const bf16* weights, const Tile<bf16>& tile, const Pair& pair, float* sums, int64_t stride) {
        __m512 acc[R][V];
        #pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            #pragma GCC unroll 8
            for (int v = 0; v < V; ++v) acc[r][v] = _mm512_loadu_ps(sums + r * stride + v * LANES);
        for (int64_t key = tile.begin / 2 * 2; key < tile.end; key += 2) {
            __m512i value[V];
            pair(key, value);
            #pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const __m512bh weight = both(weights + r * KEYS + key);
                #pragma GCC unroll 8
                for (int v = 0; v < V; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], weight, (__m512bh)value[v]);
            }
        }
        #pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            #pragma GCC unroll 8
            for (int v = 0; v < V; ++v) _mm512_storeu_ps(sums + r * stride + v * LANES, acc[r][v]);
    }

    static __m512bh both(const void* pair) {
        int32_t bits;
        std::memcpy(&bits, pair, 4);
        return (__m512bh)_mm512_set1_epi32(bits);
    }
};

#endif

}  // namespace attention
}  // namespace stentor
