// Codes meet inputs of bfloat16: a block's codes are turned into bfloat16, which holds them exactly, on their way to
// the product, again for each group of rows (that is cheaper than to keep them), and a block's sums are scaled once.
#pragma once

#include "stream.h"

namespace stentor {

constexpr int PAIRS = BLOCK / 2;

// The bytes of the bfloat16 of each code of four bits.
struct CodeTable {
    __m512i low, high;

    template <int64_t KIND>
    static CodeTable of() {
        alignas(16) static constexpr uint8_t FROM_0[2][16] = {
            {0x00, 0x80, 0x00, 0x40, 0x80, 0xa0, 0xc0, 0xe0, 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70},
            {0x00, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41}};
        alignas(16) static constexpr uint8_t FROM_MINUS_8[2][16] = {
            {0x00, 0xe0, 0xc0, 0xa0, 0x80, 0x40, 0x00, 0x80, 0x00, 0x80, 0x00, 0x40, 0x80, 0xa0, 0xc0, 0xe0},
            {0xc1, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xbf, 0x00, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40}};
        const auto(&table)[2][16] = KIND == Q4 ? FROM_MINUS_8 : FROM_0;
        return {_mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)table[0])),
                _mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)table[1]))};
    }
};

// Pairs 2v and 2v + 1 of a half block of one tile, each [16 outputs][2].
template <int64_t KIND>
static inline void two_pairs(const uint8_t* block, int half, int v, const CodeTable& table, __m512bh* out) {
    if constexpr (KIND == Q4 || KIND == Q4M) {
        const __m512i both = _mm512_loadu_si512(block + 64 * v);
        const __m512i codes = _mm512_and_si512(half ? _mm512_srli_epi16(both, 4) : both, _mm512_set1_epi8(15));
        const __m512i low = _mm512_shuffle_epi8(table.low, codes), high = _mm512_shuffle_epi8(table.high, codes);
        out[0] = (__m512bh)_mm512_unpacklo_epi8(low, high);
        out[1] = (__m512bh)_mm512_unpackhi_epi8(low, high);
    } else {
        const auto widened = [&](int k) {
            const __m128i bytes = _mm_loadu_si128((const __m128i*)(block + TILE * (16 * half + 4 * v + k)));
            return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
        };
        // the lower half of such a float is zero
        for (int i = 0; i < 2; ++i)
            out[i] = (__m512bh)_mm512_or_si512(_mm512_srli_epi32(widened(2 * i), 16), widened(2 * i + 1));
    }
}

static inline __m512bh broadcast_pair(const uint8_t* at) {
    int32_t pair;
    std::memcpy(&pair, at, 4);
    return (__m512bh)_mm512_set1_epi32(pair);
}

// Where the rows, codes and scales of R rows and T tiles begin, and their sums so far.
template <int64_t KIND, class Scale, int R, int T>
struct Cell {
    static constexpr int64_t BYTES = KIND == Q4 || KIND == Q4M ? 256 : 512, PARTS = scale_parts(KIND);
    const uint8_t* from[R];
    const uint8_t* codes[T];
    const Scale* scales[T];
    int64_t sums_begin;
    f32x16 sums[R][T];

    Cell(const Packed& w, int64_t tile, const Prepared& x, int64_t row) : sums_begin(sums_at(w.inputs)) {
        const int64_t blocks = ceil_div(w.inputs, BLOCK), apart = tile_bytes(KIND, w.inputs);
        for (int r = 0; r < R; ++r) from[r] = x.rows + (row + r) * x.stride;
        for (int t = 0; t < T; ++t) {
            codes[t] = w.codes + (tile + t) * apart;
            scales[t] = (const Scale*)w.scales + (tile + t) * blocks * PARTS * TILE;
        }
    }

    // Adds one block.
    void add(int64_t block, const CodeTable& table) {
        __m512 acc[R][T];
        for (int half = 0; half < 2; ++half) {
            if (half == 0 || KIND == Q8H)
                for (int r = 0; r < R; ++r)
                    for (int t = 0; t < T; ++t) acc[r][t] = _mm512_setzero_ps();
            for (int v = 0; v < 4; ++v) {
                __m512bh codes_of[T][2];
                for (int t = 0; t < T; ++t) two_pairs<KIND>(codes[t] + block * BYTES, half, v, table, codes_of[t]);
                for (int r = 0; r < R; ++r)
                    for (int i = 0; i < 2; ++i) {
                        const __m512bh x = broadcast_pair(from[r] + block * BLOCK * 2 + half * 32 + v * 8 + i * 4);
                        for (int t = 0; t < T; ++t) acc[r][t] = _mm512_dpbf16_ps(acc[r][t], codes_of[t][i], x);
                    }
            }
            if (half == 0 && KIND != Q8H) continue;
            for (int t = 0; t < T; ++t) {
                const f32x16 scale = load16(scales[t] + (block * PARTS + (KIND == Q8H ? half : 0)) * TILE);
                for (int r = 0; r < R; ++r) sums[r][t] = fma16((f32x16)acc[r][t], scale, sums[r][t]);
            }
        }
        if constexpr (KIND == Q4M)
            for (int t = 0; t < T; ++t) {
                const f32x16 least = load16(scales[t] + (block * PARTS + 1) * TILE);
                for (int r = 0; r < R; ++r) {
                    float sum;
                    std::memcpy(&sum, from[r] + sums_begin + block * 4, 4);
                    sums[r][t] = fma16(all16(sum), least, sums[r][t]);
                }
            }
    }
};

// R rows meet T tiles, all sums in registers.
template <int64_t KIND, class Scale, int R, int T>
static void meet(const Packed& w, int64_t tile, const Prepared& x, int64_t row, const Destination& to) {
    using Here = Cell<KIND, Scale, R, T>;
    Here cell(w, tile, x, row);
    expect<R, T>(to, row, tile * TILE);
    const CodeTable table = CodeTable::of<KIND>();
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) cell.sums[r][t] = f32x16{};
    const int64_t blocks = ceil_div(w.inputs, BLOCK);
    for (int64_t block = 0; block < blocks; ++block) {
        for (int t = 0; t < T; ++t) {
            for (int64_t line = 0; line < Here::BYTES; line += 64) fetch(cell.codes[t] + block * Here::BYTES + line);
            fetch((const uint8_t*)(cell.scales[t] + block * Here::PARTS * TILE));
        }
        cell.add(block, table);
    }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) put(to, row + r, (tile + t) * TILE, w.outputs, cell.sums[r][t], true);
}

// R rows meet T tiles: one tile at a time where the sums of two would not fit into registers.
template <int64_t KIND, class Scale, int R, int T>
static void rows_of_blocks(const Packed& w, int64_t tile, const Prepared& x, int64_t row, const Destination& to) {
    if constexpr (R <= 4) return meet<KIND, Scale, R, T>(w, tile, x, row, to);
    for (int t = 0; t < T; ++t) meet<KIND, Scale, R, 1>(w, tile + t, x, row, to);
}

// Rows [row, end) meet T tiles.
template <int64_t KIND, class Scale, int T>
static void brain_blocks(const Packed& w, int64_t tile, const Prepared& x, int64_t row, int64_t end,
                         const Destination& to) {
    for (; row + 12 <= end; row += 12) rows_of_blocks<KIND, Scale, 12, T>(w, tile, x, row, to);
    if (row + 8 <= end) rows_of_blocks<KIND, Scale, 8, T>(w, tile, x, row, to), row += 8;
    if (row + 4 <= end) rows_of_blocks<KIND, Scale, 4, T>(w, tile, x, row, to), row += 4;
    if (row + 2 <= end) rows_of_blocks<KIND, Scale, 2, T>(w, tile, x, row, to), row += 2;
    if (row < end) rows_of_blocks<KIND, Scale, 1, T>(w, tile, x, row, to);
}

}  // namespace stentor
