// Multiplies prepared rows by tiles of packed weights, and decides how products are cut. The kernels are in
// native_products.cpp.
#pragma once

#include "amx.h"
#include "stream.h"

namespace stentor {

// Rows and tiles of the largest kernel whose sums stay in registers.
#if defined(__AVX512F__)
constexpr int DEEPEST = 12, WIDEST = 2;
#elif defined(__AVX2__) || defined(__aarch64__)
constexpr int DEEPEST = 6, WIDEST = 1;
#else
constexpr int DEEPEST = 2, WIDEST = 1;
#endif

// Rows whose sums the caller keeps in the L1 cache.
#if defined(STENTOR_AMX)
constexpr int64_t FEW_ROWS = 256;
#else
constexpr int64_t FEW_ROWS = 4 * DEEPEST;
#endif

// Returns the rows that are multiplied together; blocks of rows are multiples of it.
static inline int64_t rows_together() { return tiles::form() == tiles::Form::NONE ? DEEPEST : 2 * tiles::ROWS; }

// Tiles [tile, last) of a weight, and the destination of their products.
struct Product {
    const Packed& w;
    int64_t tile, last;
    const Destination& to;
};

// Like multiply_tiles for each product, if the processor's tiles are used for it, or for others of its kind, whose bits
// it must have. Otherwise returns false, and any work done does not count. Defined in native_tiles.cpp.
bool multiply_on_tiles(const Product* products, int64_t count, const Prepared& x, int64_t row, int64_t end);

// Multiplies rows [row, end) of x by tiles [tile, last) of w. Defined in native_products.cpp.
void multiply_tiles(const Packed& w, int64_t tile, int64_t last, const Prepared& x, int64_t row, int64_t end,
                    const Destination& to);

// Returns the rows of a block of rows: at most `most`. If there are many rows, each thread gets the same number of
// blocks, and multiplies the rows that it has written itself.
static inline int64_t rows_of_block(int64_t rows, int64_t most, int64_t threads) {
    constexpr int64_t MANY = 96;  // rows per thread from which it pays to read all weights
    int64_t blocks = ceil_div(rows, most);
    if (rows >= MANY * threads) blocks = ceil_div(blocks, threads) * threads;
    const int64_t unit = rows_together();
    return std::max<int64_t>(1, std::min(ceil_div(ceil_div(rows, blocks), unit) * unit, rows));
}

// Returns how many rows of this many bytes stay in the L2 cache while weights pass.
static inline int64_t rows_in_cache(int64_t bytes) {
    const int64_t unit = rows_together(), room = (tiles::form() == tiles::Form::NONE ? 512 : 768) * 1024;
    return std::max(unit, room / bytes / unit * unit);
}

// How a product is cut: into blocks of rows that stay in the L2 cache, and blocks of tiles a few kilobytes
// long.
struct Cut {
    int64_t row_blocks, rows, tile_blocks, tiles;

    Cut(const Packed& w, const Prepared& x, int64_t row_count, int64_t threads) {
        constexpr int64_t TILE_BYTES = 16 * 1024, TILES_TOGETHER = 8, FROM_ROWS = 5;
        const int64_t all = ceil_div(w.outputs, TILE), bytes = tile_bytes(w.kind, w.inputs);
        rows = rows_of_block(row_count, rows_in_cache(x.bytes(w.inputs)), x.expands ? 1 : threads);  // each block expands them
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
