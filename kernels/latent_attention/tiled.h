// Attention to latents on tiles (native/amx.h), in bfloat16: both products, for up to 16 rows at a time, which are heads of
// one token or several.
//
// Latents in the cache have the layout of a product's left operand, so that scores are computed by latent and then
// transposed. As values, latents are interleaved in pairs, 32 numbers of each of 64 at a time, which fit the L1 cache.
//
// Sums over numbers of a latent (scores) and over latents (values) take 32 at a time from zero, as the instruction does, at
// absolute positions.
#pragma once

#include "../attention/paired.h"
#include "../attention/softmax.h"
#include "amx.h"
#include "room.h"

namespace stentor {
namespace latent {

#if defined(STENTOR_TILES)

using namespace attention;

constexpr int64_t SUMMED = 2 * tiles::PAIRS;  // numbers or latents of one instruction; there are whole multiples

// to[j][i] = from[i][j] of 16 times 16 numbers of 32 bits; rows of `to` lie `stride` numbers apart.
static inline void turn(const float* const* from, float* to, int64_t stride) {
#if defined(__AVX512F__)
    __m512 a[16], b[16];
    #pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(from[i]);
    #pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    const auto pairs = [&](int x, int y, bool high) {
        const __m512d p = _mm512_castps_pd(b[x]), q = _mm512_castps_pd(b[y]);
        return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(p, q) : _mm512_unpacklo_pd(p, q));
    };
    #pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        a[i] = pairs(i, i + 2, false), a[i + 1] = pairs(i, i + 2, true);
        a[i + 2] = pairs(i + 1, i + 3, false), a[i + 3] = pairs(i + 1, i + 3, true);
    }
    // quarter q of a[4 i + j] has column 4 q + j of the rows from 4 i on
    #pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        const __m512 even = _mm512_shuffle_f32x4(a[j], a[4 + j], 0x88), odd = _mm512_shuffle_f32x4(a[j], a[4 + j], 0xdd);
        const __m512 even_below = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x88);
        const __m512 odd_below = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xdd);
        _mm512_storeu_ps(to + j * stride, _mm512_shuffle_f32x4(even, even_below, 0x88));
        _mm512_storeu_ps(to + (4 + j) * stride, _mm512_shuffle_f32x4(odd, odd_below, 0x88));
        _mm512_storeu_ps(to + (8 + j) * stride, _mm512_shuffle_f32x4(even, even_below, 0xdd));
        _mm512_storeu_ps(to + (12 + j) * stride, _mm512_shuffle_f32x4(odd, odd_below, 0xdd));
    }
#else
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) std::memcpy(to + j * stride + i, from[i] + j, 4);
#endif
}

struct Rooms {
    Room queries, scores, weights, nothing;
};

static inline Rooms& rooms_of_thread() {
    static thread_local Rooms rooms;
    return rooms;
}

// Some rows with their state over the latents of a part.
template <class Tiles>
class TiledRows {
   public:
    // `rows` is a multiple of a tile's rows; `row_at(i)` is the query of row i, [dim], null after the last one.
    template <class RowAt>
    TiledRows(int64_t rows, int64_t dim, int64_t rank, float factor, const Running& state, const RowAt& row_at)
        : rows_(rows), dim_(dim), rank_(rank), factor_(factor), state_(state) {
        Rooms& rooms = rooms_of_thread();
        queries_ = rooms.queries.of<bf16>(rows * dim);
        scores_ = rooms.scores.of<float>(rows * KEYS);
        weights_ = rooms.weights.of<bf16>(rows * KEYS);
        const bf16* const nothing = rooms.nothing.of<bf16>(SUMMED);  // zeros: a room begins so
        for (int64_t first = 0; first < rows; first += tiles::ROWS)
            for (int64_t d = 0; d < dim; d += SUMMED) {
                const float* from[tiles::ROWS];
                for (int64_t i = 0; i < tiles::ROWS; ++i) {
                    const bf16* const row = row_at(first + i);
                    from[i] = (const float*)(row ? row + d : nothing);
                }
                turn(from, (float*)(queries_ + first * dim + d * tiles::ROWS), tiles::ROWS);
            }
        state.clear(rows);
        shaped_.take(2 * tiles::ROWS);
    }

    // Adds 64 latents in runs of 16, of which `count` exist; row i sees the first `seen(i)`, none if that is 0 or less.
    template <class Seen>
    void meet(const bf16* const* runs, int64_t count, const Seen& seen) {
        for (int64_t first = 0; first < rows_; first += tiles::ROWS) score(first, runs);
        for (int64_t row = 0; row < rows_; ++row) weigh_row(row, seen(row));
        for (int64_t d = 0; d < rank_; d += SUMMED) accumulate(d, runs, count);
    }

   private:
    const int64_t rows_, dim_, rank_;
    const float factor_;
    const Running& state_;
    tiles::Shaped<Tiles> shaped_;
    bf16* queries_;  // of each 16 rows, [dim / 2, 16, 2]
    float* scores_;  // [rows, KEYS]
    bf16* weights_;  // [rows, KEYS]

    template <int RUN_NUMBER, int LEFT>
    static void add_run(const bf16* from, int64_t dim) {
        Tiles::template load<LEFT>(from, dim * (int64_t)sizeof(bf16));
        Tiles::template add_bf16<RUN_NUMBER, LEFT, 6>();
    }

    // Of 16 rows and four runs.
    void score(int64_t first, const bf16* const* runs) {
        alignas(64) float by_key[KEYS][tiles::ROWS];
        Tiles::template zero<0>();
        Tiles::template zero<1>();
        Tiles::template zero<2>();
        Tiles::template zero<3>();
        for (int64_t d = 0; d < dim_; d += SUMMED) {
            Tiles::template load<6>(queries_ + first * dim_ + d * tiles::ROWS, tiles::BYTES);
            add_run<0, 4>(runs[0] + d, dim_);
            add_run<1, 5>(runs[1] + d, dim_);
            add_run<2, 4>(runs[2] + d, dim_);
            add_run<3, 5>(runs[3] + d, dim_);
        }
        Tiles::template store<0>(by_key[0], tiles::BYTES);
        Tiles::template store<1>(by_key[RUN], tiles::BYTES);
        Tiles::template store<2>(by_key[2 * RUN], tiles::BYTES);
        Tiles::template store<3>(by_key[3 * RUN], tiles::BYTES);
        for (int64_t run = 0; run < RUNS; ++run) {
            const float* from[RUN];
            for (int64_t i = 0; i < RUN; ++i) from[i] = by_key[run * RUN + i];
            turn(from, scores_ + first * KEYS + run * RUN, KEYS);
        }
    }

    void weigh_row(int64_t row, int64_t seen) {
        bf16* const to = weights_ + row * KEYS;
        if (seen <= 0) {
            std::fill_n(to, KEYS, bf16{});
            return;
        }
        float* const scores = scores_ + row * KEYS;
        for (int64_t i = 0; i < KEYS; i += LANES) store(scores + i, load(scores + i) * set1(factor_));
        if (seen < KEYS) hide(scores, KEYS, 0, seen);
        weigh<KEYS, true>(scores, to, KEYS, state_, row, 1);
    }

    // Adds 32 numbers of each latent to all rows. Missing latents are zero.
    void accumulate(int64_t d, const bf16* const* runs, int64_t count) {
        constexpr int64_t ACROSS = 2 * tiles::BYTES;  // bytes of two interleaved latents
        alignas(64) bf16 values[KEYS * SUMMED];
        const auto at = [&](int64_t key) { return key < count ? runs[key / RUN] + key % RUN * dim_ + d : nullptr; };
        for (int64_t key = 0; key < KEYS; key += 2) pair_values(at(key), at(key + 1), SUMMED, values + key * SUMMED);
        const bf16* const lower = values + SUMMED * SUMMED;
        Tiles::template load<2>(values, ACROSS);
        Tiles::template load<3>(values + SUMMED, ACROSS);
        Tiles::template load<6>(lower, ACROSS);
        Tiles::template load<7>(lower + SUMMED, ACROSS);
        const int64_t stride = state_.width * (int64_t)sizeof(float), wide = KEYS * sizeof(bf16);
        for (int64_t row = 0; row < rows_; row += tiles::ROWS) {
            float* const sums = state_.sums + row * state_.width + d;
            const bf16* const weights = weights_ + row * KEYS;
            Tiles::template load<0>(sums, stride);
            Tiles::template load<1>(sums + tiles::ROWS, stride);
            Tiles::template load<4>(weights, wide);
            Tiles::template load<5>(weights + SUMMED, wide);
            Tiles::template add_bf16<0, 4, 2>();
            Tiles::template add_bf16<1, 4, 3>();
            Tiles::template add_bf16<0, 5, 6>();
            Tiles::template add_bf16<1, 5, 7>();
            Tiles::template store<0>(sums, stride);
            Tiles::template store<1>(sums + tiles::ROWS, stride);
        }
    }
};

#endif

}  // namespace latent
}  // namespace stentor
