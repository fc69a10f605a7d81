// Products of prepared rows with tiles of packed weights: for each kind a kernel of R rows and a few tiles, all
// sums in registers.
#pragma once

#include "packed.h"

namespace stentor {

// Rows that are there already, in the form that the weight takes.
struct Prepared {
    const uint8_t* rows;
    int64_t stride;  // bytes
};

#if defined(__AVX512F__)
constexpr int DEEPEST = 8;  // rows of the largest kernel
#else
constexpr int DEEPEST = 2;
#endif
constexpr int64_t AHEAD = 2048;  // bytes fetched ahead of a stream of weights

static inline void fetch(const uint8_t* p) { __builtin_prefetch(p + AHEAD, 0, 2); }

// Unpacks the eight vectors of a block.
template <int64_t KIND>
static inline void codes_of(const uint8_t* at, u8x64* out) {
    if constexpr (KIND == Q4 || KIND == Q4M) {
        for (int v = 0; v < 4; ++v) {
            fetch(at + 64 * v);
            const u8x64 both = load_as<u8x64>(at + 64 * v);
            out[v] = both & 15;
            out[v + 4] = (u8x64)(((u16x32)both >> 4)) & 15;
        }
    } else {
        for (int v = 0; v < 8; ++v) {
            fetch(at + 64 * v);
            out[v] = load_as<u8x64>(at + 64 * v);
        }
    }
}

template <int64_t KIND, class Scale, int R>
static inline void blocks_tile(const uint8_t* codes, const Scale* scales, const Prepared& x, int64_t row,
                               int64_t blocks, f32x16* acc) {
    constexpr bool EIGHT = KIND == Q8 || KIND == Q8H;
    constexpr int64_t BYTES_OF_BLOCK = EIGHT ? 512 : 256, PARTS = scale_parts(KIND);
    const ByteBlock* from[R];
    for (int r = 0; r < R; ++r) from[r] = (const ByteBlock*)(x.rows + (row + r) * x.stride);
    for (int64_t block = 0; block < blocks; ++block) {
        u8x64 w[8];
        codes_of<KIND>(codes + block * BYTES_OF_BLOCK, w);
        fetch((const uint8_t*)(scales + block * PARTS * TILE));
        const f32x16 first = load16(scales + block * PARTS * TILE);
        const f32x16 second = PARTS == 2 ? load16(scales + (block * PARTS + 1) * TILE) : f32x16{};
        for (int r = 0; r < R; ++r) {
            const ByteBlock& b = from[r][block];
            i32x16 low = {}, high = {};
            for (int v = 0; v < 4; ++v) low = dot4<EIGHT>(low, w[v], b.q + 4 * v);
            if constexpr (KIND == Q8H) {
                for (int v = 4; v < 8; ++v) high = dot4<EIGHT>(high, w[v], b.q + 4 * v);
                acc[r] = fma16(fma16(to_float(low), all16(b.scale), all16(b.half128[0])), first, acc[r]);
                acc[r] = fma16(fma16(to_float(high), all16(b.scale), all16(b.half128[1])), second, acc[r]);
            } else {
                for (int v = 4; v < 8; ++v) low = dot4<EIGHT>(low, w[v], b.q + 4 * v);
                if constexpr (KIND == Q4M) {
                    acc[r] = fma16(to_float(low) * b.scale, first, acc[r]);
                    acc[r] = fma16(all16(b.sum), second, acc[r]);
                } else {
                    const float offset = KIND == Q4 ? b.minus8 : b.minus128;
                    acc[r] = fma16(fma16(to_float(low), all16(b.scale), all16(offset)), first, acc[r]);
                }
            }
        }
    }
}

// T tiles that follow each other, `apart` bytes from one to the next.
template <int R, int T>
static inline void brain_tiles(const uint8_t* codes, int64_t apart, const Prepared& x, int64_t row, int64_t pairs,
                               f32x16 (*acc)[T]) {
    const bf16* from[R];
    for (int r = 0; r < R; ++r) from[r] = (const bf16*)(x.rows + (row + r) * x.stride);
    for (int64_t p = 0; p < pairs; ++p) {
        u32x16 w[T];
        for (int t = 0; t < T; ++t) {
            fetch(codes + t * apart + p * 64);
            w[t] = load_as<u32x16>(codes + t * apart + p * 64);
        }
        for (int r = 0; r < R; ++r)
            for (int t = 0; t < T; ++t) acc[r][t] = dot2(acc[r][t], w[t], from[r] + 2 * p);
    }
}

template <int R, int T>
static inline void plain_tiles(const uint8_t* codes, int64_t apart, const Prepared& x, int64_t row, int64_t inputs,
                               f32x16 (*acc)[T]) {
    const float* from[R];
    for (int r = 0; r < R; ++r) from[r] = (const float*)(x.rows + (row + r) * x.stride);
    for (int64_t k = 0; k < inputs; ++k) {
        f32x16 w[T];
        for (int t = 0; t < T; ++t) {
            fetch(codes + t * apart + k * 64);
            w[t] = load_as<f32x16>(codes + t * apart + k * 64);
        }
        for (int r = 0; r < R; ++r)
            for (int t = 0; t < T; ++t) acc[r][t] = fma16(all16(from[r][k]), w[t], acc[r][t]);
    }
}

// Where products go: float [rows, stride], from `column`.
struct Destination {
    float* out;
    int64_t stride;
    const float* bias;  // [outputs] or null
};

static inline void put(const Destination& to, int64_t row, int64_t column, int64_t outputs, f32x16 sums) {
    const int64_t n = std::min<int64_t>(TILE, outputs - column);
    float* at = to.out + row * to.stride + column;
    if (n == TILE) {
        if (to.bias) sums += load_as<f32x16>(to.bias + column);
        std::memcpy(at, &sums, sizeof sums);
        return;
    }
    for (int64_t i = 0; i < n; ++i) at[i] = sums[i] + (to.bias ? to.bias[column + i] : 0.0f);
}

template <int64_t KIND, class Scale, int R, int T>
static void some_tiles(const Packed& w, int64_t tile, const Prepared& x, int64_t row, const Destination& to) {
    const int64_t apart = tile_bytes(KIND, w.inputs);
    const uint8_t* codes = w.codes + tile * apart;
    f32x16 acc[R][T] = {};
    if constexpr (KIND == F32) {
        plain_tiles<R, T>(codes, apart, x, row, w.inputs, acc);
    } else if constexpr (KIND == BF16) {
        brain_tiles<R, T>(codes, apart, x, row, ceil_div(w.inputs, 2), acc);
    } else {
        static_assert(T == 1, "blocks keep eight vectors of one tile");
        const int64_t blocks = ceil_div(w.inputs, BLOCK);
        const Scale* scales = (const Scale*)w.scales + tile * blocks * scale_parts(KIND) * TILE;
        f32x16 sums[R] = {};
        blocks_tile<KIND, Scale, R>(codes, scales, x, row, blocks, sums);
        for (int r = 0; r < R; ++r) acc[r][0] = sums[r];
    }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) put(to, row + r, (tile + t) * TILE, w.outputs, acc[r][t]);
}

template <int64_t KIND, class Scale, int T>
static void rows_of_tiles(const Packed& w, int64_t tile, const Prepared& x, int64_t row, int64_t end,
                          const Destination& to) {
    for (; row + DEEPEST <= end; row += DEEPEST) some_tiles<KIND, Scale, DEEPEST, T>(w, tile, x, row, to);
#if defined(__AVX512F__)
    if (row + 4 <= end) some_tiles<KIND, Scale, 4, T>(w, tile, x, row, to), row += 4;
    if (row + 2 <= end) some_tiles<KIND, Scale, 2, T>(w, tile, x, row, to), row += 2;
#endif
    if (row < end) some_tiles<KIND, Scale, 1, T>(w, tile, x, row, to);
}

template <int64_t KIND, class Scale>
static void range(const Packed& w, int64_t tile, int64_t last, const Prepared& x, int64_t row, int64_t end,
                  const Destination& to) {
    if constexpr (KIND == F32 || KIND == BF16)
        for (; tile + 2 <= last; tile += 2) rows_of_tiles<KIND, Scale, 2>(w, tile, x, row, end, to);
    for (; tile < last; ++tile) rows_of_tiles<KIND, Scale, 1>(w, tile, x, row, end, to);
}

// Rows [row, end) of x times tiles [tile, last) of w.
static inline void multiply_tiles(const Packed& w, int64_t tile, int64_t last, const Prepared& x, int64_t row,
                                  int64_t end, const Destination& to) {
    switch (w.kind) {
        case F32: return range<F32, float>(w, tile, last, x, row, end, to);
        case BF16: return range<BF16, float>(w, tile, last, x, row, end, to);
        case Q4: return range<Q4, uint16_t>(w, tile, last, x, row, end, to);
        case Q4M:
            return w.wide ? range<Q4M, float>(w, tile, last, x, row, end, to)
                          : range<Q4M, uint16_t>(w, tile, last, x, row, end, to);
        case Q8:
            return w.wide ? range<Q8, float>(w, tile, last, x, row, end, to)
                          : range<Q8, uint16_t>(w, tile, last, x, row, end, to);
        default:
            return w.wide ? range<Q8H, float>(w, tile, last, x, row, end, to)
                          : range<Q8H, uint16_t>(w, tile, last, x, row, end, to);
    }
}

// How a product is cut: blocks of rows that stay in the second-level cache, and of tiles a few kilobytes long.
struct Cut {
    int64_t row_blocks, rows, tile_blocks, tiles;

    Cut(const Packed& w, int64_t row_count, int64_t threads) {
        constexpr int64_t ROW_BYTES = 256 * 1024, TILE_BYTES = 16 * 1024;
        const int64_t all = ceil_div(w.outputs, TILE), bytes = tile_bytes(w.kind, w.inputs);
        rows = std::max<int64_t>(DEEPEST, ROW_BYTES / prepared_stride(form_of(w.kind), w.inputs) / DEEPEST * DEEPEST);
        rows = std::min(rows, std::max<int64_t>(row_count, 1));
        row_blocks = ceil_div(row_count, rows);
        tiles = std::max<int64_t>(2, TILE_BYTES / bytes / 2 * 2);
        while (tiles > 2 && row_blocks * ceil_div(all, tiles) < 4 * threads) tiles -= 2;
        tile_blocks = ceil_div(all, tiles);
    }
    int64_t items() const { return row_blocks * tile_blocks; }
};

static inline void multiply_item(const Packed& w, const Cut& cut, int64_t item, const Prepared& x, int64_t row_count,
                                 const Destination& to) {
    const int64_t row = item / cut.tile_blocks * cut.rows, tile = item % cut.tile_blocks * cut.tiles;
    multiply_tiles(w, tile, std::min(tile + cut.tiles, ceil_div(w.outputs, TILE)), x, row,
                   std::min(row + cut.rows, row_count), to);
}

}  // namespace stentor
