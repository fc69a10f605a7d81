// Codes meet inputs of eight bits: integer dot products within a block, scaled once a block, and the block's peak.
#pragma once

#include "stream.h"

namespace stentor {

// Vector v of four of a half of a block, or a register's part of it: HALF 0 has inputs 0 to 15, HALF 1 the others.
template <int64_t KIND, int HALF>
static inline vb codes_of(const uint8_t* at, int v) {
    if constexpr (four_bits(KIND)) {
        const vb both = load_as<vb>(at + VECTOR * v), codes = (HALF ? (vb)((vs)both >> 4) : both) & 15;
        if constexpr (has_table(KIND)) return look_up(codes, table_of<KIND>());
        return codes;
    } else {
        return load_as<vb>(at + VECTOR * (4 * HALF + v));
    }
}

// The codes of a register's outputs of a block that meet the peak, counted from 128 where CENTRED.
template <int64_t KIND>
static inline vf codes_at_peak(const uint8_t* at, const ByteBlock& b) {
    constexpr bool FOUR = four_bits(KIND);
    const uint32_t k = (uint32_t)b.peak_at;
    const vu all = load_as<vu>(at + (FOUR ? k % 16 / 4 : k / 4) * VECTOR);
    vu code = all >> b.shifts[FOUR ? 0 : 1] & (FOUR ? 15u : 255u);
    if constexpr (has_table(KIND)) code = (vu)look_up((vb)code, table_of<KIND>()) & 255u;
    return to_float((vi)code - ((!FOUR || has_table(KIND)) && CENTRED ? 128 : 0));
}

#if defined(STENTOR_TILES)
// The codes of four bits that meet the peak and its neighbours, 16 times as large: with the second digits they are a dot
// product like the others.
static inline vb large_codes_at_peak(const uint8_t* at, const ByteBlock& b) {
    const vu all = load_as<vu>(at + b.line);
#if defined(__AVX512F__)
    const vu lifted = (vu)_mm512_sllv_epi32((__m512i)all, _mm512_set1_epi32(b.lift));  // GCC would take two instructions
#else
    const vu lifted = all << b.lift;
#endif
    return (vb)lifted & (uint8_t)-DIGIT;
}
#endif

// The dot products of half a block: one vector of codes of each register at a time meets all rows, so that few
// registers hold codes and each broadcast of inputs serves all tiles.
template <int64_t KIND, int HALF, bool EIGHT, int R, int WIDTH>
static inline void add_half(const uint8_t* const* at, const ByteBlock* const* from, int64_t block,
                            DotSum<EIGHT> (*sums)[WIDTH]) {
    for (int v = 0; v < 4; ++v) {
        vb w[WIDTH];
        for (int j = 0; j < WIDTH; ++j) w[j] = codes_of<KIND, HALF>(at[j], v);
        for (int r = 0; r < R; ++r)
            for (int j = 0; j < WIDTH; ++j)
                sums[r][j] = add_dots<EIGHT>(sums[r][j], w[j], from[r][block].q + 16 * HALF + 4 * v);
    }
}

// Scales, and mins or zeros, of tiles that follow each other, from the first on. Their precision is a value, as is whether
// zeros take the place of mins: they are read once a block, and a kernel for each would take as long to compile.
template <int64_t KIND>
struct Scaling {
    int64_t precision, bytes;  // of a group's scales
    const uint8_t* scales;
    const void* zeros;   // or null
    const f16* factors;  // of whole numbers
    int64_t shared, groups, spans;
    bool shifts;  // zeros take the place of mins

    Scaling(const Packed& w, int64_t tile)
        : precision(w.precision), bytes(scale_parts(w.kind) * TILE * scale_bytes(w)), shared(w.shared),
          groups(groups_of(w)), spans(spans_of(w)), shifts(has_zeros(w.kind)) {
        factors = (const f16*)w.spans + (is_whole(w) ? tile * spans * span_parts(KIND) * TILE : 0);
        scales = (const uint8_t*)w.scales + tile * groups * bytes;
        zeros = w.zeros ? (const Zero<KIND>*)w.zeros + tile * groups * TILE : nullptr;
    }
    const uint8_t* of(int64_t tile, int64_t group) const { return scales + (tile * groups + group) * bytes; }
    // What multiplies a group's scales, or its mins, of a register's outputs.
    vf factor(int64_t tile, int64_t group, int64_t part, int i) const {
        return load(factors + ((tile * spans + group / SPAN) * span_parts(KIND) + part) * TILE + i * LANES);
    }
    // What a group's zeros add to a code, of a register's outputs.
    vf shift(int64_t tile, int64_t group, int i) const {
        constexpr float CENTRE = centre_of_codes(KIND);
        if (zeros == nullptr) return set1(CENTRE - zero_of_codes(KIND));
        const vf zero = load_zeros((const Zero<KIND>*)zeros + (tile * groups + group) * TILE + i * LANES);
        return CENTRE == 0.0f ? -zero : set1(CENTRE) - zero;
    }
    // Calls body with a value of the type of the scales.
    template <class Body>
    __attribute__((always_inline)) void by_type(const Body& body) const {
        if constexpr (KIND == MXFP4) return body(E8M0());
        if constexpr (KIND == NVFP4) return body(E4M3());
        if constexpr (KIND == Q8H) return body(S8());
        if constexpr (has_mins(KIND))
            if (precision == WHOLE) return body(U8());
        if constexpr (has_mins(KIND) || KIND == Q8)
            if (precision != HALF) return precision == SINGLE ? body(float()) : body(bf16());
        body(f16());
    }
};

// The scales of a group of tile number t, and their second ones, mins, or what zeros add.
template <int64_t KIND>
__attribute__((always_inline)) static inline void read_scales(const Scaling<KIND>& scaling, int64_t t, int64_t group,
                                                              vf* first, vf* second) {
    const uint8_t* const from = scaling.of(t, group);
    fetch(from);
    scaling.by_type([&](auto type) __attribute__((always_inline)) {
        using Scale = decltype(type);
        const Scale* const scale = (const Scale*)from;
        for (int i = 0; i < REGISTERS; ++i) {
            first[i] = load_scales(scale + i * LANES);
            if (has_mins(KIND) && scaling.shifts)
                second[i] = first[i] * scaling.shift(t, group, i);
            else if (scale_parts(KIND) == 2)
                second[i] = load_scales(scale + TILE + i * LANES);
            if constexpr (std::is_same_v<Scale, U8> || std::is_same_v<Scale, S8>) {
                first[i] *= scaling.factor(t, group, 0, i);
                second[i] *= scaling.factor(t, group, span_parts(KIND) - 1, i);
            }
        }
    });
}

// What the dot products of a block, or of a half of it, start from: it takes the codes' offset out.
template <int64_t KIND>
__attribute__((always_inline)) static inline int32_t start_of(const ByteBlock& b, int half) {
    if constexpr (KIND == Q4) return b.minus8;
    if constexpr (KIND == Q4M) return 0;
    return !has_halves(KIND) ? b.minus128 : half ? b.minus128 - b.half128 : b.half128;
}

// The sum of a register's outputs with the product of a block, a whole number, and what mins or zeros add.
template <int64_t KIND>
__attribute__((always_inline)) static inline vf with_product(vf sum, vf product, const ByteBlock& b, const vf& first,
                                                             const vf& second) {
    sum = fma(product * set1(b.scale), first, sum);
    if constexpr (has_mins(KIND)) sum = fma(set1(b.sum), second, sum);
    return sum;
}

// The sum of a register's outputs with what a block adds to it: the integer dot products of its codes, or of its halves
// (`late` is the second's), and the codes that meet its peak. What is summed before the scale is exact.
template <int64_t KIND>
__attribute__((always_inline)) static inline vf with_block(vf sum, vi dots, vi late, vf code, const ByteBlock& b,
                                                           const vf& first, const vf& second) {
    const vf scale = set1(b.scale);
    if constexpr (has_halves(KIND)) {
        const bool early = b.peak_at < 16;
        const vf left = fma(code, set1(early ? b.beyond : 0.0f), to_float(dots));
        const vf right = fma(code, set1(early ? 0.0f : b.beyond), to_float(late));
        return fma(right * scale, second, fma(left * scale, first, sum));
    } else {
        return with_product<KIND>(sum, fma(code, set1(b.beyond), to_float(dots)), b, first, second);
    }
}

// The sum with what the rest of a peak adds that two digits do not reach: `code` is what meets it.
template <int64_t KIND>
__attribute__((always_inline)) static inline vf with_excess(vf sum, vf code, const ByteBlock& b, const vf& first,
                                                            const vf& second) {
    constexpr float OFFSET = KIND == Q4 ? 8.0f : KIND == Q4M || CENTRED ? 0.0f : 128.0f;
    return fma((code - OFFSET) * b.excess, has_halves(KIND) && b.peak_at >= 16 ? second : first, sum);
}

// Codes of a kind as products take them: bytes, of which those of eight bits count from 128.
constexpr bool eight_bits(int64_t kind) { return !four_bits(kind) || has_table(kind); }
constexpr int64_t bytes_of_block(int64_t kind) { return four_bits(kind) ? 256 : 512; }

// R rows meet T tiles of blocks.
template <int64_t KIND, int R, int T>
static inline void blocks_tiles(const uint8_t* codes, int64_t apart, const Scaling<KIND>& scaling,
                                const Prepared& x, int64_t row, int64_t begin, int64_t end,
                                vf (*acc)[T * REGISTERS]) {
    constexpr int WIDTH = T * REGISTERS;
    constexpr bool EIGHT = eight_bits(KIND), HALVES = has_halves(KIND);
    constexpr int64_t BYTES_OF_BLOCK = bytes_of_block(KIND);
    const ByteBlock* from[R];
    for (int r = 0; r < R; ++r) from[r] = (const ByteBlock*)x.at(row + r);
    int64_t group = begin / scaling.shared, next = (group + 1) * scaling.shared;
    for (int64_t block = begin; block < end; ++block) {
        if (block == next) ++group, next += scaling.shared;
        const uint8_t* at[WIDTH];
        vf first[WIDTH], second[WIDTH];
        // behind the end of a tile lies the next: where several are read at a time, one that is being read itself
        const int64_t ahead = CODES_AHEAD + (block * BYTES_OF_BLOCK + CODES_AHEAD < apart ? 0 : (T - 1) * apart);
        for (int t = 0; t < T; ++t) {
            const uint8_t* const tile = codes + t * apart + block * BYTES_OF_BLOCK;
            for (int64_t line = 0; line < BYTES_OF_BLOCK; line += 64) fetch(tile + line, ahead);
            for (int i = 0; i < REGISTERS; ++i) at[t * REGISTERS + i] = tile + i * sizeof(vb);
            read_scales(scaling, t, group, first + t * REGISTERS, second + t * REGISTERS);
        }
        constexpr bool FROM_START = std::is_same_v<DotSum<EIGHT>, vi>;  // sums of 16 bits have no room for it
        DotSum<EIGHT> low[R][WIDTH] = {}, high[R][WIDTH] = {};
        if constexpr (FROM_START)
            for (int r = 0; r < R; ++r)
                for (int j = 0; j < WIDTH; ++j) {
                    low[r][j] += start_of<KIND>(from[r][block], 0);
                    if (HALVES) high[r][j] += start_of<KIND>(from[r][block], 1);
                }
        add_half<KIND, 0, EIGHT, R, WIDTH>(at, from, block, low);
        add_half<KIND, 1, EIGHT, R, WIDTH>(at, from, block, HALVES ? high : low);
        for (int r = 0; r < R; ++r) {
            const ByteBlock& b = from[r][block];
            for (int j = 0; j < WIDTH; ++j) {
#if defined(STENTOR_TILES)
                if constexpr (FROM_START && !EIGHT) {
                    const vi dots = dot4<false>(low[r][j], large_codes_at_peak(at[j], b), b.digits);
                    acc[r][j] = with_product<KIND>(acc[r][j], to_float(dots), b, first[j], second[j]);
                    continue;
                }
#endif
                const vf code = codes_at_peak<KIND>(at[j], b);
                vi dots = total(low[r][j]);
                if constexpr (!FROM_START && KIND == Q4) dots += start_of<KIND>(b, 0);
                acc[r][j] = with_block<KIND>(acc[r][j], dots, total(high[r][j]), code, b, first[j], second[j]);
            }
            if (b.exceeds())
                for (int j = 0; j < WIDTH; ++j)
                    acc[r][j] = with_excess<KIND>(acc[r][j], codes_at_peak<KIND>(at[j], b), b, first[j], second[j]);
        }
    }
}

// Calls body(kind) with the kind of a weight with codes, an integral constant. Kinds with zeros are those with mins: they
// differ in what they read of a group.
template <class Body>
static inline void with_codes(const Packed& w, const Body& body) {
    switch (w.kind) {
        case Q4: return body(std::integral_constant<int64_t, Q4>());
        case Q4M: case Q4Z: return body(std::integral_constant<int64_t, Q4M>());
        case Q8: return body(std::integral_constant<int64_t, Q8>());
        case Q8M: case Q8Z: return body(std::integral_constant<int64_t, Q8M>());
        case IQ4NL: return body(std::integral_constant<int64_t, IQ4NL>());
        case MXFP4: return body(std::integral_constant<int64_t, MXFP4>());
        case NVFP4: return body(std::integral_constant<int64_t, NVFP4>());
        default: return body(std::integral_constant<int64_t, Q8H>());
    }
}

}  // namespace stentor
