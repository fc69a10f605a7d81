// Products of prepared rows with tiles of packed weights, and how they are cut. native_products.cpp has the kernels.
#pragma once

#include "amx.h"
#include "stream.h"

namespace stentor {

// Rows and tiles of the largest kernel, whose sums stay in registers.
#if defined(__AVX512F__)
constexpr int DEEPEST = 12, WIDEST = 2;
#elif defined(__AVX2__) || defined(__aarch64__)
constexpr int DEEPEST = 6, WIDEST = 1;
#else
constexpr int DEEPEST = 2, WIDEST = 1;
#endif

// Rows whose sums a caller keeps in the first-level cache.
#if defined(STENTOR_AMX)
constexpr int64_t FEW_ROWS = 256;
#else
constexpr int64_t FEW_ROWS = 4 * DEEPEST;
#endif

// The rows that meet weights together: blocks of rows are made of so many.
static inline int64_t rows_together() { return tiles::form() == tiles::Form::NONE ? DEEPEST : 2 * tiles::ROWS; }

// Tiles [tile, last) of a weight, and where their products go.
struct Product {
    const Packed& w;
    int64_t tile, last;
    const Destination& to;
};

// As multiply_tiles of each, where the processor's tiles are taken for it, or for others of the kind, whose bits it must
// have; otherwise false, and nothing counts that is done. native_tiles.cpp
bool multiply_on_tiles(const Product* products, int64_t count, const Prepared& x, int64_t row, int64_t end);

// Rows [row, end) of x times tiles [tile, last) of w. native_products.cpp
void multiply_tiles(const Packed& w, int64_t tile, int64_t last, const Prepared& x, int64_t row, int64_t end,
                    const Destination& to);

// Rows of a block of rows: no more than `most`, and where there are many, as many blocks for each thread, which then
// meets the rows that it has written itself.
static inline int64_t rows_of_block(int64_t rows, int64_t most, int64_t threads) {
    constexpr int64_t MANY = 96;  // rows of a thread for which it pays to read all weights
    int64_t blocks = ceil_div(rows, most);
    if (rows >= MANY * threads) blocks = ceil_div(blocks, threads) * threads;
    const int64_t unit = rows_together();
    return std::max<int64_t>(1, std::min(ceil_div(ceil_div(rows, blocks), unit) * unit, rows));
}

// Rows of so many bytes that stay in the second-level cache while weights pass.
static inline int64_t rows_in_cache(int64_t bytes) {
    const int64_t unit = rows_together(), room = (tiles::form() == tiles::Form::NONE ? 512 : 768) * 1024;
    return std::max(unit, room / bytes / unit * unit);
}

// How a product is cut: blocks of rows that stay in the second-level cache, and of tiles a few kilobytes long.
struct Cut {
    int64_t row_blocks, rows, tile_blocks, tiles;

    Cut(const Packed& w, const Prepared& x, int64_t row_count, int64_t threads) {
        constexpr int64_t TILE_BYTES = 16 * 1024, TILES_TOGETHER = 8, FROM_ROWS = 5;
        const int64_t all = ceil_div(w.outputs, TILE), bytes = tile_bytes(w.kind, w.inputs);
        rows = rows_of_block(row_count, rows_in_cache(x.stride), x.expands ? 1 : threads);  // each block expands them
        row_blocks = ceil_div(row_count, rows);
        tiles = std::max<int64_t>(2, TILE_BYTES / bytes / 2 * 2);
        if (tiles::form() != tiles::Form::NONE && row_count >= FROM_ROWS) tiles = std::max(tiles, TILES_TOGETHER);
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
