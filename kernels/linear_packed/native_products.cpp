// Products of prepared rows with tiles of packed weights: for each kind a kernel of R rows and a few tiles, all
// sums in registers. They take long to compile, hence a unit of their own.
#include "byte_blocks.h"
#include "expand.h"
#include "multiply.h"

namespace stentor {
namespace {

constexpr int DEEPEST_OF_BLOCKS = DEEPEST >= 6 ? 4 : 2;
constexpr int64_t STRETCH_BYTES = 96 * 1024;  // of weights that many rows meet one after the other; shorter is slower

// T tiles that follow each other, `apart` bytes from one to the next.
template <int R, int T>
static inline void brain_tiles(const uint8_t* codes, int64_t apart, const Prepared& x, int64_t row, int64_t begin,
                               int64_t end, vf (*acc)[T * REGISTERS]) {
    const bf16* from[R];
    for (int r = 0; r < R; ++r) from[r] = (const bf16*)x.at(row + r);
    for (int64_t p = begin; p < end; ++p) {
        vu w[T * REGISTERS];
        for (int t = 0; t < T; ++t) {
            const uint8_t* const at = codes + t * apart + p * VECTOR;
            fetch(at);
            for (int i = 0; i < REGISTERS; ++i) w[t * REGISTERS + i] = load_as<vu>(at + i * sizeof(vu));
        }
        dots2<R, T * REGISTERS>(acc, w, from, 2 * p);
    }
}

template <int R, int T>
static inline void plain_tiles(const uint8_t* codes, int64_t apart, const Prepared& x, int64_t row, int64_t begin,
                               int64_t end, vf (*acc)[T * REGISTERS]) {
    const float* from[R];
    for (int r = 0; r < R; ++r) from[r] = (const float*)x.at(row + r);
    for (int64_t k = begin; k < end; ++k) {
        vf w[T * REGISTERS];
        for (int t = 0; t < T; ++t) {
            const uint8_t* const at = codes + t * apart + k * VECTOR;
            fetch(at);
            for (int i = 0; i < REGISTERS; ++i) w[t * REGISTERS + i] = load_as<vf>(at + i * sizeof(vf));
        }
        for (int r = 0; r < R; ++r)
            for (int j = 0; j < T * REGISTERS; ++j) acc[r][j] = fma(set1(from[r][k]), w[j], acc[r][j]);
    }
}

// A stretch of K: whether it is the first, and the last.
struct Stretch {
    int64_t begin, end;
    bool first, last;
};

template <int64_t KIND, int R, int T>
static void some_tiles(const Packed& w, int64_t tile, const Prepared& x, int64_t row, const Stretch& k,
                       const Destination& to) {
    const int64_t apart = tile_bytes(KIND, w.inputs);
    const uint8_t* codes = w.codes + tile * apart;
    vf acc[R][T * REGISTERS] = {};
    expect<R, T>(to, row, tile * TILE);
    if (!k.first)
        for (int r = 0; r < R; ++r)
            for (int j = 0; j < T * REGISTERS; ++j)
                acc[r][j] = sums_so_far(to, row + r, tile * TILE + j * LANES, w.outputs);
    if constexpr (KIND == F32) {
        plain_tiles<R, T>(codes, apart, x, row, k.begin, k.end, acc);
    } else if constexpr (KIND == BF16) {
        brain_tiles<R, T>(codes, apart, x, row, k.begin, k.end, acc);
    } else {
        const Scaling<KIND> scaling(w, tile);
        blocks_tiles<KIND, R, T>(codes, apart, scaling, x, row, k.begin, k.end, acc);
    }
    if (KIND == NVFP4 && k.last)
        for (int j = 0; j < T * REGISTERS; ++j) {
            const vf factors = load(w.factors + tile * TILE + j * LANES);
            for (int r = 0; r < R; ++r) acc[r][j] *= factors;
        }
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < T * REGISTERS; ++j)
            put(to, row + r, tile * TILE + j * LANES, w.outputs, acc[r][j], k.last);
}

// With many rows, K is cut into stretches whose weights stay in the second-level cache from one group of rows to the
// next. Sums go on where they stopped, so that nothing is rounded otherwise.
template <int64_t KIND, int T>
static void rows_of_tiles(const Packed& w, int64_t tile, const Prepared& x, int64_t first, int64_t end,
                          const Destination& to) {
    constexpr int DEEP = KIND == F32 || KIND == BF16 ? DEEPEST : DEEPEST_OF_BLOCKS;
    const int64_t unit = KIND == F32 ? 1 : KIND == BF16 ? 2 : BLOCK, units = ceil_div(w.inputs, unit);
    int64_t most = STRETCH_BYTES / T * units / tile_bytes(KIND, w.inputs);
    if (end - first <= DEEP || most >= units) most = units;
    for (int64_t begin = 0; begin < units; begin += most) {
        const Stretch k{begin, std::min(begin + most, units), begin == 0, begin + most >= units};
        int64_t row = first;
        for (; row + DEEP <= end; row += DEEP) some_tiles<KIND, DEEP, T>(w, tile, x, row, k, to);
        if (DEEP > 8 && row + 8 <= end) some_tiles<KIND, 8, T>(w, tile, x, row, k, to), row += 8;
        if (DEEP > 4 && row + 4 <= end) some_tiles<KIND, 4, T>(w, tile, x, row, k, to), row += 4;
        if (DEEP == 4 && row + 3 == end) some_tiles<KIND, 3, T>(w, tile, x, row, k, to), row += 3;
        if (DEEP > 2 && row + 2 <= end) some_tiles<KIND, 2, T>(w, tile, x, row, k, to), row += 2;
        if (row < end) some_tiles<KIND, 1, T>(w, tile, x, row, k, to);
    }
}

template <int64_t KIND>
static void range(const Packed& w, int64_t tile, int64_t last, const Prepared& x, int64_t row, int64_t end,
                  const Destination& to) {
    if (WIDEST > 1)
        for (; tile + WIDEST <= last; tile += WIDEST) rows_of_tiles<KIND, WIDEST>(w, tile, x, row, end, to);
    for (; tile < last; ++tile) rows_of_tiles<KIND, 1>(w, tile, x, row, end, to);
}

}  // namespace

void multiply_tiles(const Packed& w, int64_t tile, int64_t last, const Prepared& x, int64_t row, int64_t end,
                    const Destination& to) {
    const Product product{w, tile, last, to};
    if (multiply_on_tiles(&product, 1, x, row, end)) return;
    if (x.expands) {
        for (; tile < last; tile += 2) {
            const int64_t count = std::min<int64_t>(2, last - tile);
            multiply_tiles(expanded(w, tile, tile + count, 0), 0, count, x.unexpanded(), row, end, to.from(tile * TILE));
        }
        return;
    }
    if (w.kind == F32) return range<F32>(w, tile, last, x, row, end, to);
    if (w.kind == BF16) return range<BF16>(w, tile, last, x, row, end, to);
    with_codes(w, [&](auto kind) { range<decltype(kind)::value>(w, tile, last, x, row, end, to); });
}

}  // namespace stentor
