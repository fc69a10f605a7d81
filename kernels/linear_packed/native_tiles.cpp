// Products of prepared rows with tiles of packed weights by the processor's tiles (native/amx.h), 32 rows and 32 outputs
// at a time: four sums, two tiles of rows, two of weights.
//
// Codes: a block's dot products are whole numbers, which vectors scale as they scale their own: the bits are those of
// native_products.cpp, and few rows are left to it.
//
// bfloat16: brain_tiles.h.
#include "brain_tiles.h"

namespace stentor {

#if defined(STENTOR_TILES)

namespace {

using namespace tiles;

constexpr int64_t BYTES_OF_CODES = BLOCK * TILE;  // of a block, one to a byte

// Codes of four bits stand twice, as they are and times 16: a row of a tile has both digits of a block's inputs, so that
// one product has the peak too.
template <int64_t KIND>
constexpr bool TWO_DIGITS = four_bits(KIND) && !has_table(KIND);
// Codes of eight bits count from 128: where the scales take that out again, they are unsigned.
template <int64_t KIND>
constexpr bool UNSIGNED = TWO_DIGITS<KIND> ? KIND != Q4 : !CENTRED;
// Or they lie as tiles take them already.
template <int64_t KIND>
constexpr bool AS_THEY_LIE = !four_bits(KIND) && !CENTRED;

// Inputs, of a byte, of a product; of the whole block, or of a half.
template <int64_t KIND>
constexpr int64_t INPUTS = TWO_DIGITS<KIND> ? 2 * BLOCK : has_halves(KIND) ? BLOCK / 2 : BLOCK;

template <int64_t KIND>
void unpack_block(const uint8_t* from, uint8_t* to) {
    const auto half = [&](auto of) {
        constexpr int HALF = decltype(of)::value;
        for (int v = 0; v < 4; ++v)
            for (int i = 0; i < REGISTERS; ++i) {
                vb codes = codes_of<KIND, HALF>(from + i * sizeof(vb), v);
                if (!TWO_DIGITS<KIND> && CENTRED) codes ^= 0x80;
                if (KIND == Q4) codes -= 8;
                uint8_t* const at = to + VECTOR * (4 * HALF + v) + i * sizeof(vb);
                std::memcpy(at, &codes, sizeof codes);
                if constexpr (TWO_DIGITS<KIND>) {
                    const vb large = (vb)((vs)codes << 4) & (uint8_t)-DIGIT;
                    std::memcpy(at + BYTES_OF_CODES, &large, sizeof large);
                }
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

template <class Tiles, bool UNSIGNED_CODES, int C, int A, int B>
void put_codes() {
    Tiles::template zero<C>();
    add_codes<Tiles, UNSIGNED_CODES, C, A, B>();
}

// Whole numbers, as tiles leave them, of some blocks: of the first and the second tile of rows, or half of a block.
constexpr int64_t TOGETHER = 4;  // blocks
struct Dots {
    alignas(64) int32_t of[TOGETHER][2][ROWS][2 * TILE];

    static constexpr int64_t STRIDE = 2 * TILE * sizeof(int32_t);
};

// The dot products of a block of up to 32 rows. What the block before has left in the second weight's tiles is stored
// meanwhile, for a product takes longer than the instruction: `before` is where, or null.
template <class Tiles, int64_t KIND>
void dots_of_block(const Prepared& x, const Area& area, int64_t block, const uint8_t* const* codes,
                   int32_t (*before)[ROWS][2 * TILE], int32_t (*to)[ROWS][2 * TILE]) {
    constexpr bool PLAIN = UNSIGNED<KIND>;
    constexpr int64_t N = INPUTS<KIND>;
    const int64_t at = block * (int64_t)sizeof(ByteBlock);
    const bool deep = area.deep(), wide = area.wide();
    load_inputs<Tiles, 4>(x, area.row, std::min(area.count, ROWS), at, N, N);
    if (deep) load_inputs<Tiles, 5>(x, area.row + ROWS, area.count - ROWS, at, N, N);
    Tiles::template load<6>(codes[0], VECTOR);
    if (before && wide) Tiles::template store<1>(before[0][0] + TILE, Dots::STRIDE);
    put_codes<Tiles, PLAIN, 0, 4, 6>();
    if (deep) {
        if (before && wide) Tiles::template store<3>(before[1][0] + TILE, Dots::STRIDE);
        put_codes<Tiles, PLAIN, 2, 5, 6>();
    }
    if (wide) Tiles::template load<7>(codes[1], VECTOR);
    Tiles::template store<0>(to[0][0], Dots::STRIDE);
    if (wide) put_codes<Tiles, PLAIN, 1, 4, 7>();
    if (deep) Tiles::template store<2>(to[1][0], Dots::STRIDE);
    if (wide && deep) put_codes<Tiles, PLAIN, 3, 5, 7>();
}

// Those of two blocks, or of one, of up to 16 rows, whose codes are `apart`. A sum is not stored before three other
// products have begun: `before` are where those of the two blocks before go, or null.
template <class Tiles, int64_t KIND>
void dots_of_two(const Prepared& x, const Area& area, int64_t block, bool both, const uint8_t* const* codes,
                 int64_t apart, int32_t (*before)[2][ROWS][2 * TILE]) {
    constexpr bool PLAIN = UNSIGNED<KIND>;
    constexpr int64_t N = INPUTS<KIND>, AT = (int64_t)sizeof(ByteBlock);
    load_inputs<Tiles, 4>(x, area.row, area.count, block * AT, N, N);
    if (both) load_inputs<Tiles, 5>(x, area.row, area.count, (block + 1) * AT, N, N);
    Tiles::template load<6>(codes[0], VECTOR);
    if (before) Tiles::template store<0>(before[0][0][0], Dots::STRIDE);
    put_codes<Tiles, PLAIN, 0, 4, 6>();
    if (area.wide()) {
        Tiles::template load<7>(codes[1], VECTOR);
        if (before) Tiles::template store<1>(before[0][0][0] + TILE, Dots::STRIDE);
        put_codes<Tiles, PLAIN, 1, 4, 7>();
    }
    if (before) Tiles::template store<2>(before[1][0][0], Dots::STRIDE);
    if (both) {
        Tiles::template load<6>(codes[0] + apart, VECTOR);
        put_codes<Tiles, PLAIN, 2, 5, 6>();
    }
    if (!area.wide()) return;
    if (before) Tiles::template store<3>(before[1][0][0] + TILE, Dots::STRIDE);
    if (both) {
        Tiles::template load<7>(codes[1] + apart, VECTOR);
        put_codes<Tiles, PLAIN, 3, 5, 7>();
    }
}

// Those of each half of a block, for up to 16 rows.
template <class Tiles, int64_t KIND>
void dots_of_halves(const Prepared& x, const Area& area, int64_t block, const uint8_t* const* codes,
                    int32_t (*to)[ROWS][2 * TILE]) {
    constexpr bool PLAIN = UNSIGNED<KIND>;
    constexpr int64_t N = INPUTS<KIND>;
    const int64_t at = block * (int64_t)sizeof(ByteBlock);
    load_inputs<Tiles, 4>(x, area.row, area.count, at, N, N);
    load_inputs<Tiles, 5>(x, area.row, area.count, at + N, N, N);
    for (int64_t t = 0; t < area.tiles; ++t) {
        Tiles::template load<6>(codes[t], VECTOR);
        Tiles::template load<7>(codes[t] + N * TILE, VECTOR);
        put_codes<Tiles, PLAIN, 0, 4, 6>();
        put_codes<Tiles, PLAIN, 2, 5, 7>();
        Tiles::template store<0>(to[0][0] + t * TILE, Dots::STRIDE);
        Tiles::template store<2>(to[1][0] + t * TILE, Dots::STRIDE);
    }
}

// The dot products of `count` blocks, whose codes lie at codes[t] + j * apart.
template <class Tiles, int64_t KIND>
void dots_of_blocks(const Prepared& x, const Area& area, int64_t block, int64_t count, const uint8_t* const* codes,
                    int64_t apart, Dots& dots) {
    if (!has_halves(KIND) && !area.deep()) {
        for (int64_t j = 0; j < count; j += 2) {
            const uint8_t* const at[2] = {codes[0] + j * apart, codes[1] + j * apart};
            dots_of_two<Tiles, KIND>(x, area, block + j, j + 1 < count, at, apart, j ? dots.of + j - 2 : nullptr);
        }
        const int64_t last = (count - 1) / 2 * 2;
        Tiles::template store<0>(dots.of[last][0][0], Dots::STRIDE);
        if (area.wide()) Tiles::template store<1>(dots.of[last][0][0] + TILE, Dots::STRIDE);
        if (last + 1 == count) return;
        Tiles::template store<2>(dots.of[last + 1][0][0], Dots::STRIDE);
        if (area.wide()) Tiles::template store<3>(dots.of[last + 1][0][0] + TILE, Dots::STRIDE);
        return;
    }
    for (int64_t j = 0; j < count; ++j) {
        const uint8_t* const at[2] = {codes[0] + j * apart, codes[1] + j * apart};
        if constexpr (has_halves(KIND))
            dots_of_halves<Tiles, KIND>(x, area, block + j, at, dots.of[j]);
        else
            dots_of_block<Tiles, KIND>(x, area, block + j, at, j ? dots.of[j - 1] : nullptr, dots.of[j]);
    }
    if (has_halves(KIND) || !area.wide()) return;
    Tiles::template store<1>(dots.of[count - 1][0][0] + TILE, Dots::STRIDE);
    if (area.deep()) Tiles::template store<3>(dots.of[count - 1][1][0] + TILE, Dots::STRIDE);
}

// The inputs that tiles take next: so many bytes of each row, from `at` on. Tiles wait for the second-level cache longer than
// they multiply, so they are fetched while vectors work, a row's with the row.
struct Next {
    int64_t at, bytes;

    void fetch(const uint8_t* row) const {
        for (int64_t i = 0; i < bytes; i += VECTOR) __builtin_prefetch(row + at + i);
    }
};

// What G blocks from number `block` on, the `j`th of those in `dots`, add to the sums of an area of T tiles; their codes
// lie at packed[t].
template <int64_t KIND, int G, int T>
void add_scaled(const Packed& w, const Prepared& x, const Area& area, int64_t block, int64_t j,
                const uint8_t* const* packed, const Dots& dots, Sums& sums, const Next& next) {
    constexpr int WIDTH = T * REGISTERS;
    vf first[G][WIDTH], second[G][WIDTH];
    const Scaling<KIND> scaling(w, area.tile);
    for (int g = 0; g < G; ++g)
        for (int t = 0; t < T; ++t)
            read_scales(scaling, t, (block + g) / w.shared, first[g] + t * REGISTERS, second[g] + t * REGISTERS);
    for (int64_t r = 0; r < area.count; ++r) {
        const uint8_t* const from = x.at(area.row + r);
        const ByteBlock* const b = (const ByteBlock*)from + block;
        next.fetch(from);
        vf sum[WIDTH];
        #pragma GCC unroll 8
        for (int i = 0; i < WIDTH; ++i) sum[i] = load(sums.of[r] + i * LANES);
        #pragma GCC unroll 8
        for (int g = 0; g < G; ++g) {
            const int32_t* const low = dots.of[j + g][has_halves(KIND) ? 0 : r / ROWS][r % ROWS];
            #pragma GCC unroll 8
            for (int i = 0; i < WIDTH; ++i) {
                const vi dot = load_as<vi>(low + i * LANES);
                if constexpr (TWO_DIGITS<KIND>) {
                    sum[i] = with_product<KIND>(sum[i], to_float(dot), b[g], first[g][i], second[g][i]);
                } else {
                    const uint8_t* const codes = packed[i / REGISTERS] + g * bytes_of_block(KIND);
                    const vf code = codes_at_peak<KIND>(codes + i % REGISTERS * sizeof(vb), b[g]);
                    vi late = {};
                    if constexpr (has_halves(KIND))
                        late = load_as<vi>(dots.of[j + g][1][r] + i * LANES) + start_of<KIND>(b[g], 1);
                    sum[i] = with_block<KIND>(sum[i], dot + start_of<KIND>(b[g], 0), late, code, b[g], first[g][i],
                                              second[g][i]);
                }
            }
            if (b[g].exceeds())
                for (int i = 0; i < WIDTH; ++i) {
                    const uint8_t* const codes = packed[i / REGISTERS] + g * bytes_of_block(KIND);
                    const vf code = codes_at_peak<KIND>(codes + i % REGISTERS * sizeof(vb), b[g]);
                    sum[i] = with_excess<KIND>(sum[i], code, b[g], first[g][i], second[g][i]);
                }
        }
        #pragma GCC unroll 8
        for (int i = 0; i < WIDTH; ++i) store(sums.of[r] + i * LANES, sum[i]);
    }
}

// Codes of some blocks of two tiles, as tiles take them. They are unpacked just before, for each area anew: so they stay in
// the first-level cache, which more blocks, met by several areas, would leave.
template <int64_t KIND>
constexpr int64_t BYTES_UNPACKED = BYTES_OF_CODES * (TWO_DIGITS<KIND> ? 2 : 1);
template <int64_t KIND>
using Unpacked = uint8_t[2][TOGETHER][BYTES_UNPACKED<KIND>];

// Up to two tiles of a weight, and where their products go.
struct Pair {
    const Packed* w;
    int64_t tile, tiles;
    const Destination* to;
};

// Pairs that meet rows together: these stay in the first-level cache from one to the next, some blocks at a time.
constexpr int64_t MOST_PAIRS = 2;

// Blocks [begin, end) of the tiles of a pair. The same blocks of the tiles that follow are fetched meanwhile.
template <int64_t KIND>
void unpack_blocks(const Pair& pair, int64_t begin, int64_t end, Unpacked<KIND>& to) {
    const int64_t bytes = tile_bytes(KIND, pair.w->inputs);
    for (int64_t t = 0; t < pair.tiles; ++t) {
        const uint8_t* const tile = pair.w->codes + (pair.tile + t) * bytes;
        for (int64_t block = begin; block < end; ++block) {
            const int64_t at = block * bytes_of_block(KIND);
            const int64_t ahead = CODES_AHEAD + (at + CODES_AHEAD < bytes ? 0 : (pair.tiles - 1) * bytes);
            for (int64_t line = 0; line < bytes_of_block(KIND); line += 64) fetch(tile + at + line, ahead);
            unpack_block<KIND>(tile + at, to[t][block - begin]);
        }
    }
}

template <class Tiles, int64_t KIND>
void code_area(const Pair* pairs, int64_t count, const Prepared& x, int64_t row, int64_t rows) {
    Sums sums[MOST_PAIRS];
    Dots dots;
    alignas(64) Unpacked<KIND> unpacked;
    const auto area_of = [&](const Pair& pair) { return Area{row, rows, pair.tile, pair.tiles}; };
    const int64_t end = ceil_div(pairs[0].w->inputs, BLOCK);
    for (int64_t p = 0; p < count; ++p) std::memset(sums[p].of, 0, rows * sizeof sums[p].of[0]);
    for (int64_t block = 0; block < end; block += TOGETHER) {
        const int64_t blocks = std::min(TOGETHER, end - block);
        for (int64_t p = 0; p < count; ++p) {
            const Packed& w = *pairs[p].w;
            const Area area = area_of(pairs[p]);
            const uint8_t *packed[2], *codes[2];
            for (int64_t t = 0; t < 2; ++t) {
                const int64_t mine = std::min(t, area.tiles - 1);
                packed[t] = w.codes + (area.tile + mine) * tile_bytes(KIND, w.inputs) + block * bytes_of_block(KIND);
                codes[t] = AS_THEY_LIE<KIND> ? packed[t] : unpacked[mine][0];
            }
            if (!AS_THEY_LIE<KIND>) unpack_blocks<KIND>(pairs[p], block, block + blocks, unpacked);
            constexpr int64_t APART = AS_THEY_LIE<KIND> ? bytes_of_block(KIND) : BYTES_UNPACKED<KIND>;
            dots_of_blocks<Tiles, KIND>(x, area, block, blocks, codes, APART, dots);
            const int64_t then = block + TOGETHER, more = p + 1 == count ? std::min(TOGETHER, end - then) : 0;
            constexpr int64_t EACH = (int64_t)sizeof(ByteBlock);
            Next next{then * EACH, std::max<int64_t>(more, 0) * EACH};
            const auto add = [&](auto of, int64_t j) {
                constexpr int G = decltype(of)::value;
                const uint8_t* const at[2] = {packed[0] + j * bytes_of_block(KIND), packed[1] + j * bytes_of_block(KIND)};
                if (area.wide())
                    add_scaled<KIND, G, 2>(w, x, area, block + j, j, at, dots, sums[p], next);
                else
                    add_scaled<KIND, G, 1>(w, x, area, block + j, j, at, dots, sums[p], next);
                next.bytes = 0;  // once
            };
            int64_t j = 0;
            for (; j + TOGETHER <= blocks; j += TOGETHER) add(std::integral_constant<int, TOGETHER>(), j);
            for (; j + 2 <= blocks; j += 2) add(std::integral_constant<int, 2>(), j);
            if (j < blocks) add(std::integral_constant<int, 1>(), j);
        }
    }
    for (int64_t p = 0; p < count; ++p) {
        const Packed& w = *pairs[p].w;
        if (KIND == NVFP4)
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t i = 0; i < pairs[p].tiles * TILE; ++i) sums[p].of[r][i] *= w.factors[pairs[p].tile * TILE + i];
        sums[p].template write<false>(*pairs[p].to, area_of(pairs[p]), w.outputs);
    }
}

// Weights of one kind and as many inputs.
template <class Tiles, int64_t KIND>
void code_tiles(Shaped<Tiles>& shaped, const Pair* pairs, int64_t count, const Prepared& x, int64_t first, int64_t end) {
    constexpr bool HALVES = has_halves(KIND);
    constexpr int64_t MOST = HALVES ? ROWS : MOST_ROWS;
    for (int64_t row = first; row < end; row += MOST) {
        const int64_t rows = std::min(MOST, end - row);
        shaped.take(rows, INPUTS<KIND>, HALVES || rows <= ROWS);
        code_area<Tiles, KIND>(pairs, count, x, row, rows);
    }
}

// What a call multiplies: ranges of tiles of weights of one kind, of as many inputs.
struct Products {
    const Product* products;
    int64_t count;
    const Prepared& x;
    int64_t row, end;
};

template <class Tiles, int64_t KIND>
void range(const Products& of) {
    Shaped<Tiles> shaped;
    Pair pairs[MOST_PAIRS];
    int64_t count = 0;
    for (int64_t p = 0; p < of.count; ++p) {
        const Product& product = of.products[p];
        for (int64_t tile = product.tile; tile < product.last; tile += 2) {
            pairs[count++] = {&product.w, tile, std::min<int64_t>(2, product.last - tile), &product.to};
            if (count < MOST_PAIRS) continue;
            code_tiles<Tiles, KIND>(shaped, pairs, count, of.x, of.row, of.end);
            count = 0;
        }
    }
    if (count) code_tiles<Tiles, KIND>(shaped, pairs, count, of.x, of.row, of.end);
}

template <class Tiles>
bool by(const Products& of) {
    const int64_t kind = of.products[0].w.kind;
    if (of.x.expands && of.end - of.row < from_rows(Weights::BRAIN)) return false;
    if (kind == BF16 || of.x.expands) {
        for (int64_t p = 0; p < of.count; ++p) {
            const Product& product = of.products[p];
            brain<Tiles>({product.w, of.x, product.to}, product.tile, product.last, of.row, of.end);
        }
        return true;
    }
    if (kind == F32 || of.end - of.row < from_rows(four_bits(kind) ? Weights::NIBBLES : Weights::BYTES)) return false;
    with_codes(of.products[0].w, [&](auto of_kind) { range<Tiles, decltype(of_kind)::value>(of); });
    return true;
}

}  // namespace

bool multiply_on_tiles(const Product* products, int64_t count, const Prepared& x, int64_t row, int64_t end) {
    const Packed& first = products[0].w;
    for (int64_t p = 1; p < count; ++p) {
        const Packed& w = products[p].w;
        if (w.kind == first.kind && w.precision == first.precision && w.inputs == first.inputs) continue;
        for (p = 0; p < count; ++p)
            if (!multiply_on_tiles(products + p, 1, x, row, end)) return false;
        return true;
    }
    return with_tiles([&](auto of) { return by<decltype(of)>({products, count, x, row, end}); }, false);
}

#else

bool multiply_on_tiles(const Product*, int64_t, const Prepared&, int64_t, int64_t) { return false; }

#endif

}  // namespace stentor
