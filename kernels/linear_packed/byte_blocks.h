// Codes meet inputs of eight bits: integer dot products within a block, scaled once a block, and the block's peak.
#pragma once

#include "stream.h"

namespace stentor {

// Four of the eight vectors of a block: HALF 0 holds its inputs 0 to 15, HALF 1 the others.
template <int64_t KIND, int HALF>
static inline void half_block(const uint8_t* at, u8x64* out) {
    for (int v = 0; v < 4; ++v) {
        if constexpr (KIND == Q4 || KIND == Q4M) {
            const u8x64 both = load_as<u8x64>(at + 64 * v);
            out[v] = (HALF ? (u8x64)((u16x32)both >> 4) : both) & 15;
        } else {
            out[v] = load_as<u8x64>(at + 64 * (4 * HALF + v));
        }
    }
}

// Code k of all sixteen outputs of a block, counted from 128 where CENTRED.
template <int64_t KIND>
static inline f32x16 code_at(const uint8_t* block, uint32_t k) {
    constexpr bool FOUR = KIND == Q4 || KIND == Q4M;
    const u32x16 all = load_as<u32x16>(block + (FOUR ? k % 16 / 4 : k / 4) * 64);
    const u32x16 code = all >> (FOUR ? k % 4 * 8 + k / 16 * 4 : k % 4 * 8) & (FOUR ? 15u : 255u);
    return to_float((i32x16)code - (!FOUR && CENTRED ? 128 : 0));
}

// R rows meet T tiles of blocks: 16 inputs of a block at a time, so that the codes of two tiles fit into registers
// and each broadcast of inputs serves both.
template <int64_t KIND, class Scale, int R, int T>
static inline void blocks_tiles(const uint8_t* codes, int64_t apart, const Scale* scales, int64_t scales_apart,
                                const Prepared& x, int64_t row, int64_t begin, int64_t end, f32x16 (*acc)[T]) {
    constexpr bool EIGHT = KIND == Q8 || KIND == Q8H;
    constexpr int64_t BYTES_OF_BLOCK = EIGHT ? 512 : 256, PARTS = scale_parts(KIND);
    const ByteBlock* from[R];
    for (int r = 0; r < R; ++r) from[r] = (const ByteBlock*)(x.rows + (row + r) * x.stride);
    for (int64_t block = begin; block < end; ++block) {
        const uint8_t* at[T];
        f32x16 first[T], second[T];
        // behind the end of a tile lies the next: where several are read at a time, one that is being read itself
        const int64_t ahead = CODES_AHEAD + (block * BYTES_OF_BLOCK + CODES_AHEAD < apart ? 0 : (T - 1) * apart);
        for (int t = 0; t < T; ++t) {
            at[t] = codes + t * apart + block * BYTES_OF_BLOCK;
            for (int64_t line = 0; line < BYTES_OF_BLOCK; line += 64) fetch(at[t] + line, ahead);
            const Scale* scale = scales + t * scales_apart + block * PARTS * TILE;
            fetch((const uint8_t*)scale);
            first[t] = load16(scale);
            if (PARTS == 2) second[t] = load16(scale + TILE);
        }
        i32x16 low[R][T] = {}, high[R][T] = {};
        u8x64 w[T][4];
        for (int t = 0; t < T; ++t) half_block<KIND, 0>(at[t], w[t]);
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < 4; ++v)
                for (int t = 0; t < T; ++t) low[r][t] = dot4<EIGHT>(low[r][t], w[t][v], from[r][block].q + 4 * v);
        for (int t = 0; t < T; ++t) half_block<KIND, 1>(at[t], w[t]);
        for (int r = 0; r < R; ++r) {
            const ByteBlock& b = from[r][block];
            for (int v = 0; v < 4; ++v)
                for (int t = 0; t < T; ++t) {
                    i32x16& sum = KIND == Q8H ? high[r][t] : low[r][t];
                    sum = dot4<EIGHT>(sum, w[t][v], b.q + 16 + 4 * v);
                }
            for (int t = 0; t < T; ++t) {
                const f32x16 code = code_at<KIND>(at[t], (uint32_t)b.peak_at);
                if constexpr (KIND == Q8H) {
                    const bool early = b.peak_at < 16;
                    f32x16 left = fma16(to_float(low[r][t]), all16(b.scale), all16(b.half128[0]));
                    f32x16 right = fma16(to_float(high[r][t]), all16(b.scale), all16(b.half128[1]));
                    left = fma16(code, all16(early ? b.peak : 0.0f), left);
                    right = fma16(code, all16(early ? 0.0f : b.peak), right);
                    acc[r][t] = fma16(right, second[t], fma16(left, first[t], acc[r][t]));
                } else if constexpr (KIND == Q4M) {
                    acc[r][t] = fma16(fma16(code, all16(b.peak), to_float(low[r][t]) * b.scale), first[t], acc[r][t]);
                    acc[r][t] = fma16(all16(b.sum), second[t], acc[r][t]);
                } else {
                    const float offset = KIND == Q4 ? b.minus8 : b.minus128;
                    const f32x16 others = fma16(to_float(low[r][t]), all16(b.scale), all16(offset));
                    acc[r][t] = fma16(fma16(code, all16(b.peak), others), first[t], acc[r][t]);
                }
            }
        }
    }
}

}  // namespace stentor
