// Codes meet inputs of eight bits: integer dot products within a block, scaled once a block, and the block's peak.
#pragma once

#include "stream.h"

namespace stentor {

// Four of the eight vectors of a block, or a register's part of them: HALF 0 holds its inputs 0 to 15, HALF 1 the others.
template <int64_t KIND, int HALF>
static inline void half_block(const uint8_t* at, vb* out) {
    for (int v = 0; v < 4; ++v) {
        if constexpr (four_bits(KIND)) {
            const vb both = load_as<vb>(at + VECTOR * v);
            out[v] = (HALF ? (vb)((vs)both >> 4) : both) & 15;
            if constexpr (has_table(KIND)) out[v] = look_up(out[v], table_of<KIND>());
        } else {
            out[v] = load_as<vb>(at + VECTOR * (4 * HALF + v));
        }
    }
}

// Code k of a register's outputs of a block, counted from 128 where CENTRED.
template <int64_t KIND>
static inline vf code_at(const uint8_t* block, uint32_t k) {
    constexpr bool FOUR = four_bits(KIND);
    const vu all = load_as<vu>(block + (FOUR ? k % 16 / 4 : k / 4) * VECTOR);
    vu code = all >> (FOUR ? k % 4 * 8 + k / 16 * 4 : k % 4 * 8) & (FOUR ? 15u : 255u);
    if constexpr (has_table(KIND)) code = (vu)look_up((vb)code, table_of<KIND>()) & 255u;
    return to_float((vi)code - ((!FOUR || has_table(KIND)) && CENTRED ? 128 : 0));
}

// R rows meet T tiles of blocks: 16 inputs of a block at a time, so that the codes of two tiles fit into registers
// and each broadcast of inputs serves both.
template <int64_t KIND, class Scale, int R, int T>
static inline void blocks_tiles(const uint8_t* codes, int64_t apart, const Scale* scales, int64_t scales_apart,
                                const Prepared& x, int64_t row, int64_t begin, int64_t end,
                                vf (*acc)[T * REGISTERS]) {
    constexpr int WIDTH = T * REGISTERS;
    constexpr bool EIGHT = !four_bits(KIND) || has_table(KIND), HALVES = has_halves(KIND);
    constexpr int64_t BYTES_OF_BLOCK = four_bits(KIND) ? 256 : 512, PARTS = scale_parts(KIND);
    const ByteBlock* from[R];
    for (int r = 0; r < R; ++r) from[r] = (const ByteBlock*)x.at(row + r);
    for (int64_t block = begin; block < end; ++block) {
        const uint8_t* at[WIDTH];
        vf first[WIDTH], second[WIDTH];
        // behind the end of a tile lies the next: where several are read at a time, one that is being read itself
        const int64_t ahead = CODES_AHEAD + (block * BYTES_OF_BLOCK + CODES_AHEAD < apart ? 0 : (T - 1) * apart);
        for (int t = 0; t < T; ++t) {
            const uint8_t* const tile = codes + t * apart + block * BYTES_OF_BLOCK;
            for (int64_t line = 0; line < BYTES_OF_BLOCK; line += 64) fetch(tile + line, ahead);
            const Scale* const scale = scales + t * scales_apart + block * PARTS * TILE;
            fetch((const uint8_t*)scale);
            for (int i = 0; i < REGISTERS; ++i) {
                const int j = t * REGISTERS + i;
                at[j] = tile + i * sizeof(vb);
                first[j] = load_scales(scale + i * LANES);
                if (PARTS == 2) second[j] = load_scales(scale + TILE + i * LANES);
            }
        }
        vi low[R][WIDTH] = {}, high[R][WIDTH] = {};
        vb w[WIDTH][4];
        for (int j = 0; j < WIDTH; ++j) half_block<KIND, 0>(at[j], w[j]);
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < 4; ++v)
                for (int j = 0; j < WIDTH; ++j) low[r][j] = dot4<EIGHT>(low[r][j], w[j][v], from[r][block].q + 4 * v);
        for (int j = 0; j < WIDTH; ++j) half_block<KIND, 1>(at[j], w[j]);
        for (int r = 0; r < R; ++r) {
            const ByteBlock& b = from[r][block];
            for (int v = 0; v < 4; ++v)
                for (int j = 0; j < WIDTH; ++j) {
                    vi& sum = HALVES ? high[r][j] : low[r][j];
                    sum = dot4<EIGHT>(sum, w[j][v], b.q + 16 + 4 * v);
                }
            for (int j = 0; j < WIDTH; ++j) {
                const vf code = code_at<KIND>(at[j], (uint32_t)b.peak_at);
                if constexpr (HALVES) {
                    const bool early = b.peak_at < 16;
                    vf left = fma(to_float(low[r][j]), set1(b.scale), set1(b.half128[0]));
                    vf right = fma(to_float(high[r][j]), set1(b.scale), set1(b.half128[1]));
                    left = fma(code, set1(early ? b.peak : 0.0f), left);
                    right = fma(code, set1(early ? 0.0f : b.peak), right);
                    acc[r][j] = fma(right, second[j], fma(left, first[j], acc[r][j]));
                } else if constexpr (KIND == Q4M) {
                    acc[r][j] = fma(fma(code, set1(b.peak), to_float(low[r][j]) * b.scale), first[j], acc[r][j]);
                    acc[r][j] = fma(set1(b.sum), second[j], acc[r][j]);
                } else {
                    const float offset = KIND == Q4 ? b.minus8 : b.minus128;
                    const vf others = fma(to_float(low[r][j]), set1(b.scale), set1(offset));
                    acc[r][j] = fma(fma(code, set1(b.peak), others), first[j], acc[r][j]);
                    if constexpr (KIND == Q8M) acc[r][j] = fma(set1(b.sum), second[j], acc[r][j]);
                }
            }
        }
    }
}

}  // namespace stentor
