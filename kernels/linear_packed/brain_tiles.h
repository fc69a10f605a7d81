// What products on tiles share, an area of 32 rows and 32 outputs with its sums; and the products of bfloat16.
//
// bfloat16: an instruction sums 16 pairs from zero before it adds them to what there is, and takes small numbers for zero.
// Where there are tiles, vectors sum the few rows that are theirs in the same order, so that no row depends on how many
// there are. A sum that is zero has no sign.
#pragma once

#include "byte_blocks.h"
#include "expand.h"
#include "multiply.h"

#if defined(STENTOR_TILES)

namespace stentor {
namespace {

using namespace tiles;

constexpr int64_t MOST_ROWS = 2 * ROWS;
constexpr int64_t PAIR_BYTES = PAIRS * BYTES;      // of weights of bfloat16 that an instruction takes
// Chunks of such weights that many rows meet one after the other, two tiles wide: with an area's inputs they fill three
// quarters of the first-level cache.
constexpr int64_t STRETCH_CHUNKS = 9;
constexpr int64_t STRETCH_ROWS = 512;  // whose sums are kept meanwhile

// What a kernel call has: up to 32 rows and two tiles.
struct Area {
    int64_t row, count, tile, tiles;

    bool deep() const { return count > ROWS; }
    bool wide() const { return tiles == 2; }
};

// The sums of an area, while they are not in registers.
struct Sums {
    alignas(64) float of[MOST_ROWS][2 * TILE];

    static constexpr int64_t STRIDE = 2 * TILE * sizeof(float);

    // UNSIGNED: a sum that is zero has no sign.
    template <bool UNSIGNED>
    void write(const Destination& to, const Area& area, int64_t outputs) const {
        for (int64_t r = 0; r < area.count; ++r)
            for (int64_t j = 0; j < area.tiles * TILE; j += LANES) {
                const vf sum = load(of[r] + j);
                put(to, area.row + r, area.tile * TILE + j, outputs, UNSIGNED ? sum + 0.0f : sum, true);
            }
    }
};

// Tile number A: up to 16 rows from `row` on, the bytes [at, at + n) of each, and zeros up to `width`.
template <class Tiles, int A>
__attribute__((always_inline)) inline void load_inputs(const Prepared& x, int64_t row, int64_t count, int64_t at, int64_t n, int64_t width) {
    if (!x.index && n == width) return Tiles::template load<A>(x.at(row) + at, x.stride);
    alignas(64) uint8_t some[ROWS][BYTES];
    for (int64_t r = 0; r < count; ++r) {
        std::memcpy(some[r], x.at(row + r) + at, (size_t)n);
        std::memset(some[r] + n, 0, (size_t)(width - n));
    }
    Tiles::template load<A>(some, BYTES);
}

// ---- bfloat16

struct Brain {
    const Packed& w;
    const Prepared& x;
    const Destination& to;

    int64_t pairs() const { return ceil_div(w.inputs, 2); }
    const uint8_t* weights(int64_t tile) const { return w.codes + tile * tile_bytes(BF16, w.inputs); }
};

// Some chunks of the weights of two tiles, one behind another.
struct Stretch {
    int64_t begin, end;
    const uint8_t* weights[2];
    bool streams;  // they are met once
};

// Of the last pairs, of which so many are left, the rest of the tile is zero.
template <class Tiles, int B>
void load_pairs(const uint8_t* from, int64_t left) {
    if (left >= PAIRS) return Tiles::template load<B>(from, BYTES);
    alignas(64) uint8_t some[PAIR_BYTES] = {};
    std::memcpy(some, from, (size_t)(left * BYTES));
    Tiles::template load<B>(some, BYTES);
}

// What a chunk adds to the sums: load<T>() has what tile T takes.
template <class Tiles, bool DEEP, bool WIDE, class Load>
__attribute__((always_inline)) inline void add_chunk(const Load& load) {
    load(std::integral_constant<int, 4>());
    load(std::integral_constant<int, 6>());
    Tiles::template add_bf16<0, 4, 6>();
    if constexpr (WIDE) {
        load(std::integral_constant<int, 7>());
        Tiles::template add_bf16<1, 4, 7>();
    }
    if constexpr (DEEP) {
        load(std::integral_constant<int, 5>());
        Tiles::template add_bf16<2, 5, 6>();
        if constexpr (WIDE) Tiles::template add_bf16<3, 5, 7>();
    }
}

// Adds a stretch; between stretches `sums` has what they came to.
template <class Tiles, bool DEEP, bool WIDE>
void brain_area(const Brain& of, const Area& area, const Stretch& k, Sums& sums) {
    if (k.begin == 0) {
        Tiles::template zero<0>();
        if (WIDE) Tiles::template zero<1>();
        if (DEEP) Tiles::template zero<2>();
        if (DEEP && WIDE) Tiles::template zero<3>();
    } else {
        Tiles::template load<0>(sums.of[0], Sums::STRIDE);
        if (WIDE) Tiles::template load<1>(sums.of[0] + TILE, Sums::STRIDE);
        if (DEEP) Tiles::template load<2>(sums.of[ROWS], Sums::STRIDE);
        if (DEEP && WIDE) Tiles::template load<3>(sums.of[ROWS] + TILE, Sums::STRIDE);
    }
    const int64_t whole = of.x.index ? k.begin : std::min(k.end, of.w.inputs / (2 * PAIRS));
    const uint8_t *upper = of.x.at(area.row) + k.begin * BYTES, *first = k.weights[0], *second = k.weights[1];
    const int64_t lower = ROWS * of.x.stride;
    int64_t chunk = k.begin;
    for (; chunk < whole; ++chunk, upper += BYTES, first += PAIR_BYTES, second += PAIR_BYTES) {
        if (k.streams)
            for (int64_t line = 0; line < PAIR_BYTES; line += 64) {
                fetch(first + line);
                if (WIDE) fetch(second + line);
            }
        add_chunk<Tiles, DEEP, WIDE>([&](auto number) {
            constexpr int T = decltype(number)::value;
            if constexpr (T < 6)
                Tiles::template load<T>(T == 4 ? upper : upper + lower, of.x.stride);
            else
                Tiles::template load<T>(T == 6 ? first : second, BYTES);
        });
    }
    for (; chunk < k.end; ++chunk, first += PAIR_BYTES, second += PAIR_BYTES)
        add_chunk<Tiles, DEEP, WIDE>([&](auto number) {
            constexpr int T = decltype(number)::value;
            const int64_t at = chunk * BYTES, n = std::min(BYTES, of.w.inputs * 2 - at), above = (T - 4) * ROWS;
            if constexpr (T < 6)
                load_inputs<Tiles, T>(of.x, area.row + above, std::min(ROWS, area.count - above), at, n, BYTES);
            else
                load_pairs<Tiles, T>(T == 6 ? first : second, of.pairs() - chunk * PAIRS);
        });
    Tiles::template store<0>(sums.of[0], Sums::STRIDE);
    if (WIDE) Tiles::template store<1>(sums.of[0] + TILE, Sums::STRIDE);
    if (DEEP) Tiles::template store<2>(sums.of[ROWS], Sums::STRIDE);
    if (DEEP && WIDE) Tiles::template store<3>(sums.of[ROWS] + TILE, Sums::STRIDE);
    if (k.end * PAIRS >= of.pairs()) sums.write<true>(of.to, area, of.w.outputs);
}

template <class Tiles>
void brain_area(const Brain& of, const Area& area, const Stretch& k, Sums& sums) {
    if (area.deep())
        return area.wide() ? brain_area<Tiles, true, true>(of, area, k, sums)
                           : brain_area<Tiles, true, false>(of, area, k, sums);
    area.wide() ? brain_area<Tiles, false, true>(of, area, k, sums) : brain_area<Tiles, false, false>(of, area, k, sums);
}

// Codes are written out a stretch at a time, which stays in the first-level cache while all rows meet it.
template <class Tiles>
void brain_tiles(Shaped<Tiles>& shaped, const Brain& of, int64_t tile, int64_t tiles, int64_t first, int64_t end) {
    const int64_t chunks = ceil_div(of.pairs(), PAIRS);
    const bool expands = has_codes(of.w), streams = !expands && end - first <= MOST_ROWS;
    const int64_t most = streams ? chunks : ceil_div(chunks, ceil_div(chunks, STRETCH_CHUNKS));
    Sums sums[STRETCH_ROWS / MOST_ROWS];
    alignas(64) uint8_t written[2][STRETCH_CHUNKS * PAIR_BYTES];
    for (int64_t begin = first; begin < end; begin += STRETCH_ROWS)
        for (int64_t chunk = 0; chunk < chunks; chunk += most) {
            Stretch k{chunk, std::min(chunk + most, chunks), {}, streams};
            for (int64_t t = 0; t < tiles; ++t) {
                if (expands) expand_blocks(of.w, tile + t, k.begin, k.end, written[t]);
                k.weights[t] = expands ? written[t] : of.weights(tile + t) + k.begin * PAIR_BYTES;
            }
            flushing([&] {
                for (int64_t row = begin; row < std::min(begin + STRETCH_ROWS, end); row += MOST_ROWS) {
                    const Area area{row, std::min(MOST_ROWS, end - row), tile, tiles};
                    shaped.take(area.count);
                    brain_area<Tiles>(of, area, k, sums[(row - begin) / MOST_ROWS]);
                }
            });
        }
}

// R rows by vectors, in the order in which tiles sum.
template <int R, int T>
void brain_rows(const Brain& of, int64_t tile, int64_t row) {
    constexpr int WIDTH = T * REGISTERS;
    const int64_t pairs = of.pairs();
    const bf16* from[R];
    for (int r = 0; r < R; ++r) from[r] = (const bf16*)of.x.at(row + r);
    expect<R, T>(of.to, row, tile * TILE);
    vf acc[R][WIDTH] = {};
    for (int64_t begin = 0; begin < pairs; begin += PAIRS) {
        PairSum sums[R][WIDTH];
        for (int64_t p = begin; p < std::min(begin + PAIRS, pairs); ++p) {
            vf first[WIDTH], second[WIDTH];
            for (int t = 0; t < T; ++t) {
                const uint8_t* const at = of.weights(tile + t) + p * VECTOR;
                fetch(at);
                for (int i = 0; i < REGISTERS; ++i) {
                    const vu both = load_as<vu>(at + i * sizeof(vu));
                    first[t * REGISTERS + i] = PairSum::first(both), second[t * REGISTERS + i] = PairSum::second(both);
                }
            }
            for (int r = 0; r < R; ++r) {
                uint32_t two = 0;
                std::memcpy(&two, from[r] + 2 * p, 2 * p + 1 < of.w.inputs ? 4 : 2);
                const vu both = vu{} + two;
                for (int j = 0; j < WIDTH; ++j)
                    sums[r][j].add(first[j], second[j], PairSum::first(both), PairSum::second(both));
            }
        }
        for (int r = 0; r < R; ++r)
            for (int j = 0; j < WIDTH; ++j) acc[r][j] = sums[r][j].added_to(acc[r][j]);
    }
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < WIDTH; ++j)
            put(of.to, row + r, tile * TILE + j * LANES, of.w.outputs, acc[r][j] + 0.0f, true);
}

template <int T>
void few_brain_rows(const Brain& of, int64_t tile, int64_t row, int64_t end) {
    constexpr int DEEP = LANES == 16 ? 4 : 2;
    for (; row + DEEP <= end; row += DEEP) brain_rows<DEEP, T>(of, tile, row);
    if (DEEP > 2 && row + 2 <= end) brain_rows<2, T>(of, tile, row), row += 2;
    if (row < end) brain_rows<1, T>(of, tile, row);
}

template <class Tiles>
void brain(const Brain& of, int64_t tile, int64_t last, int64_t row, int64_t end) {
    if (end - row < from_rows(Weights::BRAIN)) {
        flushing([&] {
            for (; tile + WIDEST <= last; tile += WIDEST) few_brain_rows<WIDEST>(of, tile, row, end);
            for (; tile < last; ++tile) few_brain_rows<1>(of, tile, row, end);
        });
        return;
    }
    Shaped<Tiles> shaped;
    for (; tile < last; tile += 2) brain_tiles<Tiles>(shaped, of, tile, std::min<int64_t>(2, last - tile), row, end);
}

}  // namespace
}  // namespace stentor

#endif
