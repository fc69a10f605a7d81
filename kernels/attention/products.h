// The two products of attention, scores and weighted values, for a few rows and a tile of keys: in single precision
// (Singles), or in pairs of bfloat16 with sums in single precision (Pairs).
#pragma once

#include "simd_math.h"

#include <algorithm>
#include <limits>
#include <type_traits>

namespace stentor {
namespace attention {

constexpr int64_t RUN = 16;   // keys that lie side by side in every block, whatever its size
constexpr int64_t KEYS = 64;  // keys of one online-softmax update
constexpr int WIDE = 4;       // vectors across in the register tiles
#if defined(__AVX512F__)
constexpr int DEEP = 6;       // rows down: 24 of 32 registers accumulate
#else
constexpr int DEEP = 2;
#endif
static_assert(RUN % LANES == 0 && KEYS % (WIDE * LANES) == 0, "tiles are whole vectors");

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

template <class T>
struct Singles {
    static int64_t query_floats(int64_t dim) { return dim; }

    template <class Q>
    static void put_query(const Q* from, float factor, int64_t dim, float* to) {
        for (int64_t d = 0; d < dim; ++d) to[d] = widen(from[d]) * factor;
    }

    // scores[r][key] = queries[r] · key, for R rows and one tile.
    template <int R>
    static void score(const float* queries, const T* const* keys, int64_t size, int64_t dim, float* scores) {
        for (int64_t base = 0; base < KEYS; base += WIDE * LANES) {
            const T* from[WIDE];
            for (int v = 0; v < WIDE; ++v) {
                const int64_t key = base + v * LANES;
                from[v] = keys[key / RUN] + key % RUN;
            }
            vf acc[R][WIDE] = {};
            for (int64_t d = 0; d < dim; ++d) {
                vf key[WIDE];
                for (int v = 0; v < WIDE; ++v) key[v] = load(from[v] + d * size);
                for (int r = 0; r < R; ++r) {
                    const vf query = set1(queries[r * dim + d]);
                    for (int v = 0; v < WIDE; ++v) acc[r][v] = fma(query, key[v], acc[r][v]);
                }
            }
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < WIDE; ++v) store(scores + r * KEYS + base + v * LANES, acc[r][v]);
        }
    }

    // sums[r][d...] += weights[r][key] * value[key][d...] over keys [begin, end) of the tile.
    template <int R>
    static void accumulate(const float* weights, const T* const* values, int64_t begin, int64_t end, int64_t dim,
                           float* sums, int64_t stride) {
        int64_t d = 0;
        for (; d + WIDE * LANES <= dim; d += WIDE * LANES)
            columns<R, WIDE>(weights, values, d, begin, end, dim, LANES, sums + d, stride);
        for (; d < dim; d += LANES)
            columns<R, 1>(weights, values, d, begin, end, dim, std::min<int64_t>(LANES, dim - d), sums + d, stride);
    }

   private:
    // V vectors wide; `lanes` is less than LANES only where the last vector of a row is not whole.
    template <int R, int V>
    static void columns(const float* weights, const T* const* values, int64_t at, int64_t begin, int64_t end,
                        int64_t dim, int64_t lanes, float* sums, int64_t stride) {
        vf acc[R][V];
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) acc[r][v] = load(sums + r * stride + v * LANES);
        for (int64_t key = begin; key < end; ++key) {
            const T* from = values[key / RUN] + at + key % RUN * dim;
            vf value[V];
            for (int v = 0; v < V; ++v) value[v] = lanes == LANES ? load(from + v * LANES) : load_part(from, lanes);
            for (int r = 0; r < R; ++r) {
                const vf weight = set1(weights[r * KEYS + key]);
                for (int v = 0; v < V; ++v) acc[r][v] = fma(weight, value[v], acc[r][v]);
            }
        }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) store(sums + r * stride + v * LANES, acc[r][v]);
    }
};

#if defined(__AVX512BF16__)

// Queries and weights are rounded to bfloat16, as keys and values are.
template <class T>
struct Pairs {
    static bool takes(int64_t dim) { return std::is_same<T, bf16>::value && dim % (2 * LANES) == 0; }

    static int64_t query_floats(int64_t dim) { return dim / 2; }

    template <class Q>
    static void put_query(const Q* from, float factor, int64_t dim, float* to) {
        for (int64_t d = 0; d < dim; d += LANES) store((bf16*)to + d, load(from + d) * set1(factor));
    }

    template <int R>
    static void score(const float* queries, const T* const* keys, int64_t size, int64_t dim, float* scores) {
        if (size == RUN) return score_by<R, true>(queries, keys, size, dim, scores);
        score_by<R, false>(queries, keys, size, dim, scores);
    }

    // Keys go in pairs: one before `begin` has weight zero, one at `end` is not read.
    template <int R>
    static void accumulate(const float* weights, const T* const* values, int64_t begin, int64_t end, int64_t dim,
                           float* sums, int64_t stride) {
        alignas(64) bf16 rounded[R][KEYS];
        for (int r = 0; r < R; ++r)
            for (int64_t key = 0; key < KEYS; key += LANES) store(rounded[r] + key, load(weights + r * KEYS + key));
        int64_t d = 0;
        for (; d + WIDE * LANES <= dim; d += WIDE * LANES)
            columns<R, WIDE>(rounded, values, d, begin, end, dim, sums + d, stride);
        for (; d < dim; d += 2 * LANES) columns<R, 2>(rounded, values, d, begin, end, dim, sums + d, stride);
    }

   private:
    // CLOSE: a block holds one run, so that the keys' values at two neighbouring dimensions fill one line.
    template <int R, bool CLOSE>
    static void score_by(const float* queries, const T* const* keys, int64_t size, int64_t dim, float* scores) {
        __m512 acc[R][WIDE];
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < WIDE; ++v) acc[r][v] = _mm512_setzero_ps();
        const int64_t half = dim / 2;
        for (int64_t d = 0; d < half; ++d) {
            __m512bh key[WIDE];
            for (int v = 0; v < WIDE; ++v)
                key[v] = CLOSE ? paired(keys[v] + 2 * d * RUN) : beside(keys[v] + 2 * d * size, keys[v] + (2 * d + 1) * size);
            for (int r = 0; r < R; ++r) {
                const __m512bh query = both(queries + r * half + d);
                for (int v = 0; v < WIDE; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], query, key[v]);
            }
        }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < WIDE; ++v) _mm512_storeu_ps(scores + r * KEYS + v * RUN, acc[r][v]);
    }

    template <int R, int V>
    static void columns(const bf16 (*weights)[KEYS], const T* const* values, int64_t at, int64_t begin, int64_t end,
                        int64_t dim, float* sums, int64_t stride) {
        __m512 acc[R][V];
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) acc[r][v] = _mm512_loadu_ps(sums + r * stride + v * LANES);
        const int64_t whole = end / 2 * 2;
        for (int64_t key = begin / 2 * 2; key < end; key += 2) {
            const T* from = values[key / RUN] + at + key % RUN * dim;
            __m512bh value[V];
            for (int v = 0; v < V; v += 2) two_beside(from + v * LANES, key < whole ? from + dim + v * LANES : nullptr, value + v);
            for (int r = 0; r < R; ++r) {
                const __m512bh weight = both(weights[r] + key);
                for (int v = 0; v < V; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], weight, value[v]);
            }
        }
        for (int r = 0; r < R; ++r)
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
    static __m512bh paired(const void* line) {
        alignas(64) static constexpr uint16_t TURNS[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                           8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        return (__m512bh)_mm512_permutexvar_epi16(_mm512_load_si512(TURNS), _mm512_loadu_si512(line));
    }

    // Thirty-two of `first`, each with its neighbour of `second`, or with zero where there is none.
    static void two_beside(const void* first, const void* second, __m512bh* out) {
        alignas(64) static constexpr uint16_t TURNS[2][32] = {
            {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
            {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
        const __m512i a = _mm512_loadu_si512(first), b = second ? _mm512_loadu_si512(second) : _mm512_setzero_si512();
        for (int i = 0; i < 2; ++i) out[i] = (__m512bh)_mm512_permutex2var_epi16(a, _mm512_load_si512(TURNS[i]), b);
    }
};

#else

template <class T>
struct Pairs : Singles<T> {
    static bool takes(int64_t) { return false; }
};

#endif

}  // namespace attention
}  // namespace stentor
