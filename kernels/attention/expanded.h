// The two products of attention over float8 caches in single precision, for many rows: a tile becomes bfloat16 once, which
// holds all codes exactly. Few rows read the codes (Singles<e4m3>), with the same bits.
#pragma once

#include "products.h"

namespace stentor {
namespace attention {

struct Expanded : Singles<bf16> {
    static int64_t laid_out(int64_t, int64_t dim) { return 2 * KEYS * dim; }

    // Keys become [dim, KEYS], values [KEYS, dim].
    static Tile<bf16> lay_out(const Tile<e4m3>& tile, int64_t, bf16* room) {
        const int64_t dim = tile.dim, low = tile.first_run(), high = low + tile.runs() - 1;
        bf16 *const keys = room, *const values = room + KEYS * dim;
        for (int64_t run = low; run <= high; ++run)
            for (int64_t d = 0; d < dim; ++d) expand(tile.keys[run] + d * tile.size, RUN, keys + d * KEYS + run * RUN);
        for (int64_t key = tile.begin; key < tile.end; ++key)
            expand(tile.values[key / RUN] + key % RUN * dim, dim, values + key * dim);
        Tile<bf16> out{{}, {}, KEYS, dim, tile.begin, tile.end};
        for (int64_t run = 0; run < RUNS; ++run) {
            const int64_t seen = std::min(std::max(run, low), high);
            out.keys[run] = keys + seen * RUN;
            out.values[run] = values + seen * RUN * dim;
        }
        return out;
    }

   private:
    static void expand(const e4m3* from, int64_t count, bf16* to) {
        int64_t i = 0;
        for (; i + RUN <= count; i += RUN) {
            vf numbers[SIXTEEN];
            load_sixteen(from + i, numbers);
            for (int v = 0; v < SIXTEEN; ++v) store_upper(numbers[v], to + i + v * LANES);
        }
        for (; i < count; ++i) narrow(widen(from[i]), to + i);
    }

    // Bits below bfloat16's are zero.
    static void store_upper(vf x, bf16* to) {
        const vh half = __builtin_convertvector((vu)x >> 16, vh);
        std::memcpy(to, &half, sizeof half);
    }
};

}  // namespace attention
}  // namespace stentor
