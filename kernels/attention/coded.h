// The two products of attention over int8 caches, whose keys and values have a scale a token and head.
#pragma once

#include "codes.h"
#include "products.h"

namespace stentor {
namespace attention {

// In single precision, over dequantised codes.
struct SingleCodes : Singles<i8> {
    template <int R>
    static void score(const float* queries, const Tile<i8>& tile, const float* starts, float* scores) {
        const float none[R] = {};
        Singles<i8>::score<R>(queries, tile, none, scores);
        const int64_t last = (tile.first_run() + tile.runs()) * RUN;
        for (int r = 0; r < R; ++r)
            for (int64_t key = tile.first_run() * RUN; key < last; key += LANES)
                store(scores + r * KEYS + key,
                      fma(load(scores + r * KEYS + key), load(tile.key_scales[key / RUN] + key % RUN), set1(starts[r])));
    }

    static void accumulate(int64_t rows, float* weights, const Tile<i8>& tile, float* sums, int64_t stride) {
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t key = tile.begin; key < tile.end; ++key)
                weights[row * KEYS + key] *= tile.value_scales[key / RUN][key % RUN];
        Singles<i8>::accumulate(rows, weights, tile, sums, stride);
    }
};

#if defined(__AVX2__) && (!defined(__AVX512F__) || defined(__AVX512BW__))
#define STENTOR_PRODUCTS_OF_CODES

typedef int16_t vp __attribute__((vector_size(LANES * 4)));

// acc + the products of neighbours, summed in pairs.
static inline vi dot(vi acc, vp a, vp b) {
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
    return (vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
    return acc + (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
    return acc + (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
}

// Two codes of 16 bits in every lane.
static inline vp both(const void* pair) {
    int32_t bits;
    std::memcpy(&bits, pair, 4);
    return (vp)(vi{} + bits);
}

// As products of integers: queries and weights are 16-bit codes with a scale for each row, sums are exact in 32 bits.
struct Codes {
    using Weight = float;
    struct Held {};  // state kept over the tiles of a part: none
    static constexpr bool ON_TILES = false;
    static constexpr int64_t SCORED = DEEP;

    static bool takes(int64_t dim) { return dim % RUN == 0; }

    // A scale, and codes.
    static int64_t query_floats(int64_t dim) { return 1 + dim / 2; }

    static int64_t laid_out(int64_t, int64_t) { return 0; }
    static const Tile<i8>& lay_out(const Tile<i8>& tile, int64_t, bf16*) { return tile; }

    template <class Q>
    static void put_query(const Q* from, float factor, int64_t dim, float* to) {
        const float most = greatest(from, dim), largest = std::min(32767.0f, (float)(16777216 / dim));
        const vf into = set1(most > LEAST ? largest / most : 0.0f);
        to[0] = most / largest * factor;
        for (int64_t d = 0; d < dim; d += LANES) put(codes_of(load(from + d) * into), (int16_t*)(to + 1) + d);
    }

    template <int R>
    static void score(const float* queries, const Tile<i8>& tile, const float* starts, float* scores) {
        const int64_t dim = tile.dim, size = tile.size, stride = query_floats(dim);
        for (int64_t base = tile.begin / ACROSS * ACROSS; base < tile.end; base += ACROSS) {
            const i8* const* const from = tile.keys + base / RUN;
            vi acc[R][WIDE];
            #pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
                #pragma GCC unroll 8
                for (int v = 0; v < WIDE; ++v) acc[r][v] = vi{};
            for (int64_t d = 0; d < dim; d += 2) {
                vp key[WIDE];
                #pragma GCC unroll 8
                for (int v = 0; v < WIDE; v += PER_RUN) {
                    const i8* const at = from[v / PER_RUN] + d * size;
                    beside(at, at + size, key + v);
                }
                #pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const vp query = both(queries + r * stride + 1 + d / 2);
                    #pragma GCC unroll 8
                    for (int v = 0; v < WIDE; ++v) acc[r][v] = dot(acc[r][v], query, key[v]);
                }
            }
            #pragma GCC unroll 8
            for (int v = 0; v < WIDE; ++v) {
                const int64_t key = base + v * LANES;
                const vf scale = load(tile.key_scales[key / RUN] + key % RUN);
                #pragma GCC unroll 8
                for (int r = 0; r < R; ++r)
                    store(scores + r * KEYS + key,
                          fma(__builtin_convertvector(acc[r][v], vf), scale * set1(queries[r * stride]), set1(starts[r])));
            }
        }
    }

    // Quantises weights in place; their scale follows them.
    static void accumulate(int64_t rows, float* weights, const Tile<i8>& tile, float* sums, int64_t stride) {
        for (int64_t row = 0; row < rows; ++row) put_weights(weights + row * KEYS, tile);
        by_rows<DEEP>(rows, [&](int64_t row, auto deep) {
            constexpr int R = decltype(deep)::value;
            const float* const mine = weights + row * KEYS;
            float* const to = sums + row * stride;
            int64_t d = 0;
            for (; d + ACROSS <= tile.dim; d += ACROSS) columns<R, WIDE>(mine, tile, d, to + d, stride);
            for (; d < tile.dim; d += RUN) columns<R, PER_RUN>(mine, tile, d, to + d, stride);
        });
    }

   private:
    static constexpr int PER_RUN = RUN / LANES;
    static constexpr int64_t ACROSS = WIDE * LANES;
    static constexpr float LEAST = 1e-30f;  // below this, the quotient is not finite
    static_assert(WIDE % PER_RUN == 0, "a register tile is whole runs");

    static void put(vi codes, int16_t* to) {
        const auto halves = __builtin_convertvector(codes, vh);
        std::memcpy(to, &halves, sizeof halves);
    }

    // Interleaves sixteen numbers of `first` and `second`.
    static void beside(const i8* first, const i8* second, vp* out) {
        const __m128i a = _mm_loadu_si128((const __m128i*)first), b = _mm_loadu_si128((const __m128i*)second);
        const __m128i low = _mm_unpacklo_epi8(a, b), high = _mm_unpackhi_epi8(a, b);
#if defined(__AVX512BW__)
        out[0] = (vp)_mm512_cvtepi8_epi16(_mm256_set_m128i(high, low));
#else
        out[0] = (vp)_mm256_cvtepi8_epi16(low);
        out[1] = (vp)_mm256_cvtepi8_epi16(high);
#endif
    }

    // Multiplies by the scales of the values; weights of keys that no row sees are zero.
    static void put_weights(float* weights, const Tile<i8>& tile) {
        vi lane;
        for (int i = 0; i < LANES; ++i) lane[i] = i;
        vf product[KEYS / LANES];
        #pragma GCC unroll 16
        for (int v = 0; v < KEYS / LANES; ++v) {
            const int64_t key = v * LANES;
            const vi at = lane + (int32_t)key, seen = (at >= (int32_t)tile.begin) & (at < (int32_t)tile.end);
            const vf scale = load(tile.value_scales[key / RUN] + key % RUN);
            product[v] = select(seen, load(weights + key) * scale, vf{});
        }
        float all[KEYS];
        for (int v = 0; v < KEYS / LANES; ++v) store(all + v * LANES, product[v]);
        const float most = greatest(all, KEYS);
        const vf into = set1(most > LEAST ? 32767.0f / most : 0.0f);
        #pragma GCC unroll 16
        for (int v = 0; v < KEYS / LANES; ++v) put(codes_of(product[v] * into), (int16_t*)weights + v * LANES);
        weights[KEYS / 2] = most / 32767.0f;
    }

    // sums[r][at ...] += weights[r][key] * value[key][at ...] over the keys of the tile, V vectors wide.
    template <int R, int V>
    static void columns(const float* weights, const Tile<i8>& tile, int64_t at, float* sums, int64_t stride) {
        vi acc[R][V];
        #pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            #pragma GCC unroll 8
            for (int v = 0; v < V; ++v) acc[r][v] = vi{};
        for (int64_t key = tile.begin / 2 * 2; key < tile.end; key += 2) {
            const i8* const from = tile.values[key / RUN] + key % RUN * tile.dim + at;
            vp value[V];
            #pragma GCC unroll 8
            for (int v = 0; v < V; v += PER_RUN) beside(from + v * LANES, from + tile.dim + v * LANES, value + v);
            #pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const vp weight = both(weights + r * KEYS + key / 2);
                #pragma GCC unroll 8
                for (int v = 0; v < V; ++v) acc[r][v] = dot(acc[r][v], weight, value[v]);
            }
        }
        #pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const vf scale = set1(weights[r * KEYS + KEYS / 2]);
            #pragma GCC unroll 8
            for (int v = 0; v < V; ++v) {
                float* const to = sums + r * stride + v * LANES;
                store(to, fma(__builtin_convertvector(acc[r][v], vf), scale, load(to)));
            }
        }
    }
};

#endif

}  // namespace attention
}  // namespace stentor
