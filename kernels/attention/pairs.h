// The two products of attention in pairs of bfloat16, with sums in single precision.
#pragma once

#include "products.h"

namespace stentor {
namespace attention {

#if defined(__AVX512BF16__)

// Queries and weights are rounded to bfloat16, as keys and values are.
struct Pairs {
    using Weight = bf16;
    using T = bf16;
    struct Held {};  // while rows meet the tiles of a part: nothing
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

    // Room that a tile's pairs take where they are put together once for all rows: none for a few rows.
    static int64_t laid_out(int64_t rows, int64_t dim) { return rows > MANY ? 2 * KEYS * dim : 0; }

    // Keys become [dim / 2, KEYS, 2], values [KEYS / 2, dim, 2].
    static Tile<T> lay_out(Tile<T> tile, int64_t rows, T* room) {
        if (laid_out(rows, tile.dim) == 0) return tile;
        T *const keys = room, *const values = room + KEYS * tile.dim;
        const int64_t dim = tile.dim, size = tile.size, last = tile.first_run() + tile.runs();
        for (int64_t run = tile.first_run(); run < last; ++run) {
            const T* from = tile.keys[run];
            T* to = keys + run * 2 * RUN;
            if (size == RUN)
                for (int64_t d = 0; d < dim; d += 2) _mm512_store_si512(to + d * KEYS, (__m512i)turned(from + d * RUN));
            else
                for (int64_t d = 0; d < dim; d += 2)
                    _mm512_store_si512(to + d * KEYS, (__m512i)beside(from + d * size, from + (d + 1) * size));
        }
        for (int64_t run = tile.first_run(); run < last; ++run) {
            const int64_t begin = std::max(tile.begin / 2 * 2, run * RUN), end = std::min(tile.end, (run + 1) * RUN);
            for (int64_t d = 0; d < dim; d += 2 * LANES) {
                const T* from = tile.values[run] + begin % RUN * dim + d;
                T* to = values + begin * dim + 2 * d;
                for (int64_t key = begin; key < end; key += 2, from += 2 * dim, to += 2 * dim) {
                    __m512bh two[2];
                    two_beside(from, key + 1 < end ? from + dim : nullptr, two);
                    _mm512_store_si512(to, (__m512i)two[0]);
                    _mm512_store_si512(to + 2 * LANES, (__m512i)two[1]);
                }
            }
        }
        tile.paired_keys = keys;
        tile.paired_values = values;
        return tile;
    }

    template <int R>
    static void score(const float* queries, const Tile<T>& tile, const float* starts, float* scores) {
        const int64_t half = tile.dim / 2;
        if (tile.paired_keys) {
            const int64_t first = tile.first_run() * RUN;
            const T* from = tile.paired_keys + 2 * first;
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
        // a block that holds one run has its keys' values at two neighbouring dimensions fill one line
        if (tile.size == RUN)
            return score_by<R, 4>(
                queries, half, [&](int64_t d, int v) { return turned(tile.keys[v] + 2 * d * RUN); }, starts,
                scores);
        const int64_t size = tile.size;
        const auto key = [&](int64_t d, int v) {
            return beside(tile.keys[v] + 2 * d * size, tile.keys[v] + (2 * d + 1) * size);
        };
        score_by<R, 4>(queries, half, key, starts, scores);
    }

    // Keys go in pairs: one before `begin` has weight zero, one at `end` is not read.
    static void accumulate(int64_t rows, const bf16* weights, const Tile<T>& tile, float* sums, int64_t stride) {
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
    static constexpr int64_t MANY = 15;  // rows above which the pairs are worth putting together once

    // The next R rows meet V runs; key(d, v) gives those of one run at dimensions 2d and 2d + 1.
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
    static void columns(const bf16* weights, const Tile<T>& tile, int64_t at, float* sums, int64_t stride) {
        const int64_t dim = tile.dim, whole = tile.end / 2 * 2;
        const auto made = [&](int64_t key, __m512bh* value) {
            const T* from = tile.paired_values + 2 * at + key * dim;
            #pragma GCC unroll 8
            for (int v = 0; v < V; ++v) value[v] = (__m512bh)_mm512_loadu_si512(from + v * 2 * LANES);
        };
        if (tile.paired_values) return columns_by<R, V>(weights, tile, made, sums, stride);
        const auto make = [&](int64_t key, __m512bh* value) {
            const T* from = tile.values[key / RUN] + at + key % RUN * dim;
            #pragma GCC unroll 8
            for (int v = 0; v < V; v += 2)
                two_beside(from + v * LANES, key < whole ? from + dim + v * LANES : nullptr, value + v);
        };
        columns_by<R, V>(weights, tile, make, sums, stride);
    }

    // R rows meet V vectors of values; pair(key, value) gives those of a key and the next one.
    template <int R, int V, class Pair>
    static void columns_by(const bf16* weights, const Tile<T>& tile, const Pair& pair, float* sums, int64_t stride) {
        __m512 acc[R][V];
        #pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            #pragma GCC unroll 8
            for (int v = 0; v < V; ++v) acc[r][v] = _mm512_loadu_ps(sums + r * stride + v * LANES);
        for (int64_t key = tile.begin / 2 * 2; key < tile.end; key += 2) {
            __m512bh value[V];
            pair(key, value);
            #pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const __m512bh weight = both(weights + r * KEYS + key);
                #pragma GCC unroll 8
                for (int v = 0; v < V; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], weight, value[v]);
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

    // Sixteen of `first`, each with its neighbour of `second`.
    static __m512bh beside(const void* first, const void* second) {
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)first));
        const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)second));
        return (__m512bh)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    }

    // The halves of a line side by side: each of the first sixteen with its neighbour of the second.
    static __m512bh turned(const void* line) {
        alignas(64) static constexpr uint16_t TURNS[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                           8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        return (__m512bh)_mm512_permutexvar_epi16(_mm512_load_si512(TURNS), _mm512_loadu_si512(line));
    }

    // Thirty-two of `first`, each with its neighbour of `second`, or with zero where there is none.
    static void two_beside(const void* first, const void* second, __m512bh* out) {
        alignas(64) static constexpr uint16_t TURNS[2][32] = {
            {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
             8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
            {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
             24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
        const __m512i a = _mm512_loadu_si512(first), b = second ? _mm512_loadu_si512(second) : _mm512_setzero_si512();
        for (int i = 0; i < 2; ++i) out[i] = (__m512bh)_mm512_permutex2var_epi16(a, _mm512_load_si512(TURNS[i]), b);
    }
};

#endif

}  // namespace attention
}  // namespace stentor
