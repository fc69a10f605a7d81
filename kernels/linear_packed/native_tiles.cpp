// Products of prepared rows with tiles of packed weights by the processor's tiles (native/amx.h), 32 rows and 32 outputs
// at a time: four sums, two tiles of rows, two of weights.
//
// Codes: a block's dot products are whole numbers, which vectors scale as they scale their own: the bits are those of
// native_products.cpp, and few rows are left to it.
//
// bfloat16: an instruction sums 16 pairs from zero before it adds them to what there is, and takes small numbers for zero.
// Where there are tiles, vectors sum the few rows that are theirs in the same order, so that no row depends on how many
// there are. A sum that is zero has no sign.
#include "byte_blocks.h"
#include "multiply.h"

namespace stentor {

#if defined(STENTOR_TILES)

namespace {

using namespace tiles;

constexpr int64_t MOST_ROWS = 2 * ROWS;
constexpr int64_t PAIR_BYTES = PAIRS * BYTES;      // of weights of bfloat16 that an instruction takes
constexpr int64_t STRETCH_BYTES = 48 * 1024;       // of such weights that many rows meet one after the other
constexpr int64_t STRETCH_BLOCKS = 32;             // of codes, the same; they stand unpacked on the stack
constexpr int64_t BYTES_OF_CODES = BLOCK * TILE;   // of a block, one to a byte

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

    void read(const Destination& to, const Area& area, int64_t outputs) {
        for (int64_t r = 0; r < area.count; ++r)
            for (int64_t j = 0; j < area.tiles * TILE; j += LANES)
                store(of[r] + j, sums_so_far(to, area.row + r, area.tile * TILE + j, outputs));
    }
    void write(const Destination& to, const Area& area, int64_t outputs, bool last) const {
        for (int64_t r = 0; r < area.count; ++r)
            for (int64_t j = 0; j < area.tiles * TILE; j += LANES)
                put(to, area.row + r, area.tile * TILE + j, outputs, load(of[r] + j), last);
    }
};

// Tile number A: up to 16 rows from `row` on, the bytes [at, at + n) of each, and zeros up to `width`.
template <class Tiles, int A>
void load_inputs(const Prepared& x, int64_t row, int64_t count, int64_t at, int64_t n, int64_t width) {
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

// Of the last pairs, the rest of the tile is zero.
template <class Tiles, int B>
void load_pairs(const Brain& of, int64_t tile, int64_t chunk, bool streams) {
    const uint8_t* const from = of.weights(tile) + chunk * PAIR_BYTES;
    const int64_t left = (of.pairs() - chunk * PAIRS) * BYTES;
    if (left >= PAIR_BYTES) {
        if (streams)
            for (int64_t line = 0; line < PAIR_BYTES; line += 64) fetch(from + line);
        return Tiles::template load<B>(from, BYTES);
    }
    alignas(64) uint8_t some[PAIR_BYTES] = {};
    std::memcpy(some, from, (size_t)left);
    Tiles::template load<B>(some, BYTES);
}

// The chunks [begin, end) of 16 pairs.
template <class Tiles>
void brain_area(const Brain& of, const Area& area, int64_t begin, int64_t end, bool streams) {
    Sums sums;
    const bool last = end * PAIRS >= of.pairs(), deep = area.deep(), wide = area.wide();
    if (begin == 0)
        std::memset(sums.of, 0, sizeof sums.of);
    else
        sums.read(of.to, area, of.w.outputs);
    Tiles::template load<0>(sums.of[0], Sums::STRIDE);
    if (wide) Tiles::template load<1>(sums.of[0] + TILE, Sums::STRIDE);
    if (deep) Tiles::template load<2>(sums.of[ROWS], Sums::STRIDE);
    if (deep && wide) Tiles::template load<3>(sums.of[ROWS] + TILE, Sums::STRIDE);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t at = chunk * BYTES, n = std::min(BYTES, of.w.inputs * 2 - at);
        load_inputs<Tiles, 4>(of.x, area.row, std::min(area.count, ROWS), at, n, BYTES);
        load_pairs<Tiles, 6>(of, area.tile, chunk, streams);
        Tiles::template add_bf16<0, 4, 6>();
        if (wide) {
            load_pairs<Tiles, 7>(of, area.tile + 1, chunk, streams);
            Tiles::template add_bf16<1, 4, 7>();
        }
        if (!deep) continue;
        load_inputs<Tiles, 5>(of.x, area.row + ROWS, area.count - ROWS, at, n, BYTES);
        Tiles::template add_bf16<2, 5, 6>();
        if (wide) Tiles::template add_bf16<3, 5, 7>();
    }
    Tiles::template store<0>(sums.of[0], Sums::STRIDE);
    if (wide) Tiles::template store<1>(sums.of[0] + TILE, Sums::STRIDE);
    if (deep) Tiles::template store<2>(sums.of[ROWS], Sums::STRIDE);
    if (deep && wide) Tiles::template store<3>(sums.of[ROWS] + TILE, Sums::STRIDE);
    if (last)
        for (auto& row : sums.of)
            for (float& sum : row) sum += 0.0f;
    sums.write(of.to, area, of.w.outputs, last);
}

template <class Tiles>
void brain_tiles(const Brain& of, int64_t tile, int64_t tiles, int64_t first, int64_t end) {
    const int64_t chunks = ceil_div(of.pairs(), PAIRS);
    const int64_t most = end - first <= MOST_ROWS ? chunks : std::max<int64_t>(1, STRETCH_BYTES / PAIR_BYTES);
    int64_t shaped = 0;
    for (int64_t begin = 0; begin < chunks; begin += most)
        for (int64_t row = first; row < end; row += MOST_ROWS) {
            const Area area{row, std::min(MOST_ROWS, end - row), tile, tiles};
            if (area.count != shaped) configure_area<Tiles>(shaped = area.count, BYTES);
            brain_area<Tiles>(of, area, begin, std::min(begin + most, chunks), row == first);
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
    if (end - row < FROM_ROWS) {
        for (; tile + WIDEST <= last; tile += WIDEST) few_brain_rows<WIDEST>(of, tile, row, end);
        for (; tile < last; ++tile) few_brain_rows<1>(of, tile, row, end);
        return;
    }
    const Configured<Tiles> configured;
    for (; tile < last; tile += 2) brain_tiles<Tiles>(of, tile, std::min<int64_t>(2, last - tile), row, end);
}

// ---- codes

// Of eight bits they count from 128: where the scales take that out again, they are unsigned.
template <int64_t KIND>
constexpr bool UNSIGNED = eight_bits(KIND) && !CENTRED;
// Or they lie as tiles take them already.
template <int64_t KIND>
constexpr bool AS_THEY_LIE = !four_bits(KIND) && !CENTRED;

template <int64_t KIND>
void unpack_block(const uint8_t* from, uint8_t* to) {
    const auto half = [&](auto of) {
        constexpr int HALF = decltype(of)::value;
        for (int v = 0; v < 4; ++v)
            for (int i = 0; i < REGISTERS; ++i) {
                vb codes = codes_of<KIND, HALF>(from + i * sizeof(vb), v);
                if (eight_bits(KIND) && CENTRED) codes ^= 0x80;
                std::memcpy(to + VECTOR * (4 * HALF + v) + i * sizeof(vb), &codes, sizeof codes);
            }
    };
    half(std::integral_constant<int, 0>());
    half(std::integral_constant<int, 1>());
}

template <class Tiles, bool UNSIGNED_CODES, int C, int A, int B>
void add_codes() {
    if constexpr (UNSIGNED_CODES)
        Tiles::template add_signed_by_unsigned<C, A, B>();
    else
        Tiles::template add_signed<C, A, B>();
}

// Whole numbers, as tiles leave them: of the first and the second tile of rows, or half of a block.
struct Dots {
    alignas(64) int32_t of[2][ROWS][2 * TILE];
};

// The dot products of a block: of the first and the second 16 rows, or of each half of a block for 16 rows.
template <class Tiles, int64_t KIND>
void dots_of_block(const Prepared& x, const Area& area, int64_t block, const uint8_t* const* codes, Dots& dots) {
    constexpr bool HALVES = has_halves(KIND), PLAIN = UNSIGNED<KIND>;
    constexpr int64_t WIDTH = HALVES ? BLOCK / 2 : BLOCK;  // inputs, of a byte, of a product
    const int64_t at = block * (int64_t)sizeof(ByteBlock), stride = sizeof(dots.of[0][0]);
    load_inputs<Tiles, 4>(x, area.row, std::min(area.count, ROWS), at, WIDTH, WIDTH);
    Tiles::template load<6>(codes[0], VECTOR);
    Tiles::template zero<0>();
    add_codes<Tiles, PLAIN, 0, 4, 6>();
    Tiles::template store<0>(dots.of[0][0], stride);
    if (area.wide()) {
        Tiles::template load<7>(codes[1], VECTOR);
        Tiles::template zero<1>();
        add_codes<Tiles, PLAIN, 1, 4, 7>();
        Tiles::template store<1>(dots.of[0][0] + TILE, stride);
    }
    if (HALVES) {
        load_inputs<Tiles, 5>(x, area.row, area.count, at + WIDTH, WIDTH, WIDTH);
        Tiles::template load<6>(codes[0] + WIDTH * TILE, VECTOR);
        if (area.wide()) Tiles::template load<7>(codes[1] + WIDTH * TILE, VECTOR);
    } else {
        if (!area.deep()) return;
        load_inputs<Tiles, 5>(x, area.row + ROWS, area.count - ROWS, at, WIDTH, WIDTH);
    }
    Tiles::template zero<2>();
    add_codes<Tiles, PLAIN, 2, 5, 6>();
    Tiles::template store<2>(dots.of[1][0], stride);
    if (area.wide()) {
        Tiles::template zero<3>();
        add_codes<Tiles, PLAIN, 3, 5, 7>();
        Tiles::template store<3>(dots.of[1][0] + TILE, stride);
    }
}

// What a block adds to the sums of an area, tile number t of it.
template <int64_t KIND, class Scale>
void add_scaled(const Packed& w, const Prepared& x, const Area& area, int64_t t, int64_t block, const uint8_t* packed,
                const Dots& dots, Sums& sums) {
    vf first[REGISTERS], second[REGISTERS];
    read_scales(Scaling<KIND, Scale>(w, area.tile), t, block / w.shared, first, second);
    for (int64_t r = 0; r < area.count; ++r) {
        const ByteBlock& b = ((const ByteBlock*)x.at(area.row + r))[block];
        const int32_t *const low = dots.of[r / ROWS][r % ROWS], *const late = dots.of[1][r % ROWS];
        for (int i = 0; i < REGISTERS; ++i) {
            const int64_t at = t * TILE + i * LANES;
            const vf code = codes_at_peak<KIND>(packed + i * sizeof(vb), b);
            vi high = {};
            if constexpr (has_halves(KIND)) high = load_as<vi>(late + at);
            float* const sum = sums.of[r] + at;
            store(sum, with_block<KIND>(load(sum), load_as<vi>(low + at), high, code, b, first[i], second[i]));
        }
    }
}

// Codes of a stretch of blocks, as tiles take them.
using Unpacked = uint8_t[2][STRETCH_BLOCKS][BYTES_OF_CODES];

template <class Tiles, int64_t KIND, class Scale>
void code_area(const Packed& w, const Prepared& x, const Area& area, int64_t begin, int64_t end, const Unpacked& unpacked,
               const Destination& to) {
    Sums sums;
    const bool last = end == ceil_div(w.inputs, BLOCK);
    if (begin == 0)
        std::memset(sums.of, 0, sizeof sums.of);
    else
        sums.read(to, area, w.outputs);
    for (int64_t block = begin; block < end; ++block) {
        const uint8_t *packed[2], *codes[2];
        for (int64_t t = 0; t < area.tiles; ++t) {
            packed[t] = w.codes + (area.tile + t) * tile_bytes(KIND, w.inputs) + block * bytes_of_block(KIND);
            codes[t] = AS_THEY_LIE<KIND> ? packed[t] : unpacked[t][block - begin];
        }
        Dots dots;
        dots_of_block<Tiles, KIND>(x, area, block, codes, dots);
        for (int64_t t = 0; t < area.tiles; ++t)
            add_scaled<KIND, Scale>(w, x, area, t, block, packed[t], dots, sums);
    }
    if (KIND == NVFP4 && last)
        for (int64_t r = 0; r < area.count; ++r)
            for (int64_t i = 0; i < area.tiles * TILE; ++i) sums.of[r][i] *= w.factors[area.tile * TILE + i];
    sums.write(to, area, w.outputs, last);
}

template <class Tiles, int64_t KIND, class Scale>
void code_tiles(const Packed& w, int64_t tile, int64_t tiles, const Prepared& x, int64_t first, int64_t end,
                const Destination& to) {
    constexpr bool HALVES = has_halves(KIND);
    constexpr int64_t TOGETHER = HALVES ? ROWS : MOST_ROWS;
    alignas(64) Unpacked unpacked;
    const int64_t blocks = ceil_div(w.inputs, BLOCK);
    int64_t shaped = 0;
    for (int64_t begin = 0; begin < blocks; begin += STRETCH_BLOCKS) {
        const int64_t stop = std::min(begin + STRETCH_BLOCKS, blocks);
        for (int64_t t = 0; t < tiles && !AS_THEY_LIE<KIND>; ++t) {
            const uint8_t* const packed = w.codes + (tile + t) * tile_bytes(KIND, w.inputs);
            for (int64_t block = begin; block < stop; ++block)
                unpack_block<KIND>(packed + block * bytes_of_block(KIND), unpacked[t][block - begin]);
        }
        for (int64_t row = first; row < end; row += TOGETHER) {
            const Area area{row, std::min(TOGETHER, end - row), tile, tiles};
            if (area.count != shaped) configure_area<Tiles>(shaped = area.count, HALVES ? BLOCK / 2 : BLOCK, HALVES);
            code_area<Tiles, KIND, Scale>(w, x, area, begin, stop, unpacked, to);
        }
    }
}

template <class Tiles, int64_t KIND, class Scale>
void range(const Packed& w, int64_t tile, int64_t last, const Prepared& x, int64_t row, int64_t end,
           const Destination& to) {
    const Configured<Tiles> configured;
    for (; tile < last; tile += 2)
        code_tiles<Tiles, KIND, Scale>(w, tile, std::min<int64_t>(2, last - tile), x, row, end, to);
}

template <class Tiles, int64_t KIND>
void of_groups(const Packed& w, int64_t tile, int64_t last, const Prepared& x, int64_t row, int64_t end,
               const Destination& to) {
    switch (w.precision) {
        case SINGLE: return range<Tiles, KIND, float>(w, tile, last, x, row, end, to);
        case BRAIN: return range<Tiles, KIND, bf16>(w, tile, last, x, row, end, to);
        default: return range<Tiles, KIND, f16>(w, tile, last, x, row, end, to);
    }
}

template <class Tiles, int64_t KIND>
void of_spans(const Packed& w, int64_t tile, int64_t last, const Prepared& x, int64_t row, int64_t end,
              const Destination& to) {
    if (is_whole(w)) return range<Tiles, KIND, U8>(w, tile, last, x, row, end, to);
    range<Tiles, KIND, f16>(w, tile, last, x, row, end, to);
}

template <class Tiles>
bool by(const Packed& w, int64_t tile, int64_t last, const Prepared& x, int64_t row, int64_t end, const Destination& to) {
    if (w.kind == BF16) {
        flushing([&] { brain<Tiles>({w, x, to}, tile, last, row, end); });
        return true;
    }
    if (w.kind == F32 || end - row < FROM_ROWS) return false;
    switch (w.kind) {
        case Q4: range<Tiles, Q4, f16>(w, tile, last, x, row, end, to); break;
        case Q4M: of_spans<Tiles, Q4M>(w, tile, last, x, row, end, to); break;
        case Q4Z: of_groups<Tiles, Q4Z>(w, tile, last, x, row, end, to); break;
        case Q8: of_groups<Tiles, Q8>(w, tile, last, x, row, end, to); break;
        case Q8M: of_spans<Tiles, Q8M>(w, tile, last, x, row, end, to); break;
        case Q8Z: of_groups<Tiles, Q8Z>(w, tile, last, x, row, end, to); break;
        case IQ4NL: range<Tiles, IQ4NL, f16>(w, tile, last, x, row, end, to); break;
        case MXFP4: range<Tiles, MXFP4, E8M0>(w, tile, last, x, row, end, to); break;
        case NVFP4: range<Tiles, NVFP4, E4M3>(w, tile, last, x, row, end, to); break;
        default: range<Tiles, Q8H, S8>(w, tile, last, x, row, end, to); break;
    }
    return true;
}

}  // namespace

bool multiply_on_tiles(const Packed& w, int64_t tile, int64_t last, const Prepared& x, int64_t row, int64_t end,
                       const Destination& to) {
    return with_tiles([&](auto of) { return by<decltype(of)>(w, tile, last, x, row, end, to); }, false);
}

#else

bool multiply_on_tiles(const Packed&, int64_t, int64_t, const Prepared&, int64_t, int64_t, const Destination&) {
    return false;
}

#endif

}  // namespace stentor
