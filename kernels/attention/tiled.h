// The two products of attention on the processor's tiles (native/amx.h), over keys and values in bfloat16 or float8. Queries
// and weights are rounded to bfloat16.
//
// Sums over dimensions (scores) and over keys (values) take 32 at a time from zero, as the instruction does, at absolute
// positions.
#pragma once

#include "amx.h"
#include "paired.h"

namespace stentor {
namespace attention {

#if defined(STENTOR_TILES)

constexpr int64_t SUMMED = 2 * tiles::PAIRS;  // dimensions or keys of one instruction; a head has whole multiples

template <class Tiles, class T>
struct Tiled {
    using Weight = bf16;
    using Held = tiles::Shaped<Tiles>;
    static constexpr bool ON_TILES = true;
    static constexpr int64_t SCORED = 2 * tiles::ROWS;

    static int64_t query_floats(int64_t dim) { return dim / 2; }

    template <class Q>
    static void put_query(const Q* from, float factor, int64_t dim, float* to) {
        for (int64_t d = 0; d < dim; d += LANES) store((bf16*)to + d, load(from + d) * set1(factor));
    }

    // Scratch memory for a tile's keys and, after them, its values.
    static int64_t laid_out(int64_t, int64_t dim) { return 2 * KEYS * dim; }

    // Keys become [dim / 2, KEYS, 2].
    static Tile<bf16> lay_out(const Tile<T>& tile, int64_t, bf16* room) {
        const int64_t dim = tile.dim, last = tile.first_run() + tile.runs();
        for (int64_t run = tile.first_run(); run < last; ++run)
            pair_keys(tile.keys[run], tile.size, dim, room + run * 2 * RUN);
        return {{}, {}, tile.size, dim, tile.begin, tile.end, room, room + KEYS * dim};
    }

    // Values become [KEYS / 2, dim, 2]; those of keys that no row sees are zero. This overlaps the scores and weights, on
    // which it does not depend.
    static void lay_out_values(const Tile<T>& tile, bf16* room) {
        const int64_t dim = tile.dim;
        for (int64_t key = 0; key < KEYS; key += 2) {
            const T* two[2];
            for (int64_t i = 0; i < 2; ++i) {
                const bool seen = key + i >= tile.begin && key + i < tile.end;
                two[i] = seen ? tile.values[(key + i) / RUN] + (key + i) % RUN * dim : nullptr;
            }
            pair_values(two[0], two[1], dim, room + (KEYS + key) * dim);
        }
    }

    // scores[r][key] = queries[r] · key, for some rows at a time; then calls weigh(first, count, scores) for these rows.
    // `scores` holds SCORED rows. Each product takes two runs of keys.
    template <class Weigh>
    static void score(Held& held, int64_t rows, const float* queries, const Tile<bf16>& tile, float* scores,
                      const Weigh& weigh) {
        constexpr int64_t ACROSS = KEYS * sizeof(float);
        const int64_t last = tile.first_run() + tile.runs(), row = tile.dim * (int64_t)sizeof(bf16);
        for (int64_t first = 0; first < rows; first += SCORED) {
            const int64_t count = std::min(SCORED, rows - first);
            const char* const mine = (const char*)queries + first * row;
            held.take(count);
            for (int64_t run = tile.first_run() / 2 * 2; run < last; run += 2)
                tiles::add_area<Tiles, true>(count, tile.dim / SUMMED, mine, row, tiles::BYTES,
                                             (const char*)(tile.paired_keys + run * 2 * RUN), ACROSS,
                                             tiles::PAIRS * ACROSS, scores + run * RUN, ACROSS);
            weigh(first, count, scores);
        }
    }

    // sums[row][d...] += weights[row][key] * value[key][d...] over the keys of the tile that some row sees; weights of the
    // others become zero. between(n) is called once the n-th of the first rows' areas of sums is made.
    template <class Between>
    static void accumulate(Held& held, int64_t rows, bf16* weights, const Tile<bf16>& tile, float* sums, int64_t stride,
                           const Between& between) {
        const int64_t begin = tile.first_run() * RUN, end = begin + tile.runs() * RUN, pair = tile.dim * 4;
        for (int64_t row = 0; row < rows && end - begin < KEYS; ++row) {
            std::fill_n(weights + row * KEYS, begin, bf16{});
            std::fill_n(weights + row * KEYS + end, KEYS - end, bf16{});
        }
        for (int64_t first = 0; first < rows; first += SCORED) {
            const int64_t count = std::min(SCORED, rows - first);
            held.take(count);
            for (int64_t d = 0; d < tile.dim; d += 2 * tiles::ROWS) {
                tiles::add_area<Tiles, false>(count, KEYS / SUMMED, (const char*)(weights + first * KEYS),
                                              KEYS * sizeof(bf16), tiles::BYTES,
                                              (const char*)(tile.paired_values + 2 * d), pair, tiles::PAIRS * pair,
                                              sums + first * stride + d, stride * (int64_t)sizeof(float));
                if (first == 0) between(d / (2 * tiles::ROWS));
            }
        }
    }
};

#endif

}  // namespace attention
}  // namespace stentor
