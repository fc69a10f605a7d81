// The two products of attention by the processor's tiles (native/amx.h), over keys and values in bfloat16. Queries and
// weights are rounded to it too.
//
// Scores sum dimensions, and values sum keys, 32 at a time from zero, as the instruction does: at absolute places, so that
// vectors, which take few rows, give the same bits.
#pragma once

#include "amx.h"
#include "products.h"

namespace stentor {
namespace attention {

#if defined(STENTOR_TILES)

constexpr int64_t SUMMED = 2 * tiles::PAIRS;  // dimensions or keys; a head has whole chunks of them

template <class Tiles>
struct Tiled {
    using Weight = bf16;
    using T = bf16;
    using Held = tiles::Shaped<Tiles>;
    static constexpr bool ON_TILES = true;
    static constexpr int64_t SCORED = 2 * tiles::ROWS;

    static int64_t query_floats(int64_t dim) { return dim / 2; }

    template <class Q>
    static void put_query(const Q* from, float factor, int64_t dim, float* to) {
        for (int64_t d = 0; d < dim; d += LANES) store((bf16*)to + d, load(from + d) * set1(factor));
    }

    // Few rows take keys and values as they lie.
    static int64_t laid_out(int64_t rows, int64_t dim) { return rows < tiles::FROM_ROWS ? 0 : 2 * KEYS * dim; }

    // Keys become [dim / 2, KEYS, 2], values [KEYS / 2, dim, 2]; values of keys that no row sees are zero.
    static Tile<T> lay_out(Tile<T> tile, int64_t rows, T* room) {
        if (laid_out(rows, tile.dim) == 0) return tile;
        T *const keys = room, *const values = room + KEYS * tile.dim;
        const int64_t dim = tile.dim, last = tile.first_run() + tile.runs();
        for (int64_t run = tile.first_run(); run < last; ++run)
            for (int64_t d = 0; d < dim; d += 2)
                beside(tile.keys[run] + d * tile.size, tile.keys[run] + (d + 1) * tile.size, RUN,
                       keys + d * KEYS + run * 2 * RUN);
        for (int64_t key = 0; key < KEYS; key += 2) {
            const T* two[2];
            for (int64_t i = 0; i < 2; ++i) {
                const bool seen = key + i >= tile.begin && key + i < tile.end;
                two[i] = seen ? tile.values[(key + i) / RUN] + (key + i) % RUN * dim : nullptr;
            }
            beside(two[0], two[1], dim, values + key * dim);
        }
        tile.paired_keys = keys;
        tile.paired_values = values;
        return tile;
    }

    // scores[r][key] = queries[r] · key of some rows at a time; weigh(first, count, scores) is called for these then.
    // `scores` has room for SCORED rows.
    template <class Weigh>
    static void score(Held& held, int64_t rows, const float* queries, const Tile<T>& tile, float* scores,
                      const Weigh& weigh) {
        for (int64_t first = 0; first < rows; first += SCORED) {
            const int64_t count = std::min(SCORED, rows - first);
            const bf16* const mine = (const bf16*)queries + first * tile.dim;
            if (tile.paired_keys) {
                held.take(count);
                score_on_tiles(count, mine, tile, scores);
            } else {
                tiles::flushing([&] {
                    by_rows<2>(count, [&](int64_t row, auto deep) {
                        score_rows<decltype(deep)::value>(mine + row * tile.dim, tile, scores + row * KEYS);
                    });
                });
            }
            weigh(first, count, scores);
        }
    }

    // sums[row][d...] += weights[row][key] * value[key][d...] over the keys of the tile that some row sees; weights of the
    // others become zero.
    static void accumulate(Held& held, int64_t rows, bf16* weights, const Tile<T>& tile, float* sums, int64_t stride) {
        if (tile.paired_values) return accumulate_on_tiles(held, rows, weights, tile, sums, stride);
        tiles::flushing([&] {
            by_rows<2>(rows, [&](int64_t row, auto deep) {
                for (int64_t d = 0; d < tile.dim; d += 2 * LANES)
                    add_values<decltype(deep)::value>(weights + row * KEYS, tile, d, sums + row * stride + d, stride);
            });
        });
    }

   private:
    // `count` of the first, 16 or a multiple of 32, each with its neighbour of the second; nothing is zeros.
    static void beside(const bf16* first, const bf16* second, int64_t count, bf16* to) {
#if defined(__AVX512BW__)
        alignas(64) static constexpr uint16_t TURNS[3][32] = {
            {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
             8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
            {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
             24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63},
            {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
             8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31}};
        if (count == RUN) {
            const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)first));
            const __m512i both = _mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i*)second), 1);
            return _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(TURNS[2]), both));
        }
        for (int64_t i = 0; i < count; i += 2 * LANES) {
            const __m512i a = first ? _mm512_loadu_si512(first + i) : __m512i{};
            const __m512i b = second ? _mm512_loadu_si512(second + i) : __m512i{};
            for (int half = 0; half < 2; ++half)
                _mm512_storeu_si512(to + 2 * (i + half * LANES),
                                    _mm512_permutex2var_epi16(a, _mm512_load_si512(TURNS[half]), b));
        }
#else
        for (int64_t i = 0; i < count; i += LANES) {
            const vu low = first ? (vu)load(first + i) >> 16 : vu{}, high = second ? (vu)load(second + i) : vu{};
            const vu both = low | high;
            std::memcpy(to + 2 * i, &both, sizeof both);
        }
#endif
    }

    // Queries meet two runs of keys at a time.
    static void score_on_tiles(int64_t count, const bf16* queries, const Tile<T>& tile, float* scores) {
        constexpr int64_t ACROSS = KEYS * sizeof(float);
        const int64_t last = tile.first_run() + tile.runs(), row = tile.dim * (int64_t)sizeof(bf16);
        for (int64_t run = tile.first_run() / 2 * 2; run < last; run += 2)
            tiles::add_area<Tiles, true>(count, tile.dim / SUMMED, (const char*)queries, row, tiles::BYTES,
                                         (const char*)(tile.paired_keys + run * 2 * RUN), ACROSS, tiles::PAIRS * ACROSS,
                                         scores + run * RUN, ACROSS);
    }

    static void accumulate_on_tiles(Held& held, int64_t rows, bf16* weights, const Tile<T>& tile, float* sums,
                                    int64_t stride) {
        const int64_t begin = tile.first_run() * RUN, end = begin + tile.runs() * RUN, pair = tile.dim * 4;
        for (int64_t row = 0; row < rows && end - begin < KEYS; ++row) {
            std::fill_n(weights + row * KEYS, begin, bf16{});
            std::fill_n(weights + row * KEYS + end, KEYS - end, bf16{});
        }
        for (int64_t first = 0; first < rows; first += SCORED) {
            const int64_t count = std::min(SCORED, rows - first);
            held.take(count);
            for (int64_t d = 0; d < tile.dim; d += 2 * tiles::ROWS)
                tiles::add_area<Tiles, false>(count, KEYS / SUMMED, (const char*)(weights + first * KEYS),
                                              KEYS * sizeof(bf16), tiles::BYTES,
                                              (const char*)(tile.paired_values + 2 * d), pair, tiles::PAIRS * pair,
                                              sums + first * stride + d, stride * (int64_t)sizeof(float));
        }
    }

    template <int R>
    static void score_rows(const bf16* queries, const Tile<T>& tile, float* scores) {
        constexpr int V = 2;
        const int64_t dim = tile.dim;
        for (int64_t base = tile.begin / (V * LANES) * (V * LANES); base < tile.end; base += V * LANES) {
            const T* from[V];
            for (int v = 0; v < V; ++v) from[v] = tile.keys[(base + v * LANES) / RUN] + (base + v * LANES) % RUN;
            vf acc[R][V] = {};
            for (int64_t chunk = 0; chunk < dim; chunk += SUMMED) {
                tiles::PairSum sums[R][V];
                for (int64_t d = chunk; d < chunk + SUMMED; d += 2) {
                    vf first[V], second[V];
                    for (int v = 0; v < V; ++v) {
                        first[v] = load(from[v] + d * tile.size);
                        second[v] = load(from[v] + (d + 1) * tile.size);
                    }
                    for (int r = 0; r < R; ++r) {
                        const vf a = set1(widen(queries[r * dim + d])), b = set1(widen(queries[r * dim + d + 1]));
                        for (int v = 0; v < V; ++v) sums[r][v].add(first[v], second[v], a, b);
                    }
                }
                for (int r = 0; r < R; ++r)
                    for (int v = 0; v < V; ++v) acc[r][v] = sums[r][v].added_to(acc[r][v]);
            }
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < V; ++v) store(scores + r * KEYS + base + v * LANES, acc[r][v]);
        }
    }

    // Two vectors wide, from dimension `at` on.
    template <int R>
    static void add_values(const bf16* weights, const Tile<T>& tile, int64_t at, float* sums, int64_t stride) {
        constexpr int V = 2;
        vf acc[R][V];
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) acc[r][v] = load(sums + r * stride + v * LANES);
        for (int64_t chunk = tile.begin / SUMMED * SUMMED; chunk < tile.end; chunk += SUMMED) {
            vf even[R][V] = {}, odd[R][V] = {};
            for (int64_t key = std::max(chunk, tile.begin); key < std::min(chunk + SUMMED, tile.end); ++key) {
                const T* from = tile.values[key / RUN] + key % RUN * tile.dim + at;
                for (int r = 0; r < R; ++r) {
                    const vf weight = set1(widen(weights[r * KEYS + key]));
                    vf* const chain = key % 2 ? odd[r] : even[r];
                    for (int v = 0; v < V; ++v) chain[v] = fma(weight, load(from + v * LANES), chain[v]);
                }
            }
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < V; ++v) acc[r][v] = acc[r][v] + (even[r][v] + odd[r][v]);
        }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) store(sums + r * stride + v * LANES, acc[r][v]);
    }
};

#endif

}  // namespace attention
}  // namespace stentor
