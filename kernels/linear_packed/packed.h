// Weights laid out for the order in which they are multiplied, and activations as the weights want them.
//
// A packed weight [N, K] is cut into tiles of 16 outputs. A tile runs along K, and what one step of K needs of
// its 16 outputs lies in whole vectors of 64 bytes, lane by lane:
//
//     F32          [tile][k][16]                    one value a lane
//     BF16         [tile][k/2][16][2]               a pair a lane
//     Q4, Q4M      [tile][block][4][64 bytes]       blocks of 32 k: vector v holds in its low nibbles k = 4v..4v+3,
//                                                   in its high nibbles k = 16+4v..16+4v+3
//     Q4Z, IQ4NL, MXFP4, NVFP4        as Q4
//     Q8, Q8H, Q8M, Q8Z [tile][block][512 bytes]
//
//     value = scale * code + min              Q4M (with a min), codes 0..15
//     value = scale * (code - 8)              Q4
//     value = scale * (code - 128)            Q8, and Q8H: a scale for each half of a block
//     value = scale * (code - 128) + min      Q8M
//     value = scale * code - scale * zero     Q4Z, and Q8Z, of which 128 is taken from both
//     value = scale * (table[code] - 128)     IQ4NL, MXFP4, and NVFP4: as Q8H, and a factor for each output
//
// The bytes of a block lie as [16 outputs][4 inputs], for the dot products of four bytes with inputs of eight bits.
//
// Scales stand beside: [tile][group][parts][16], a group being one block, and of Q8, Q4Z and Q8Z as many as share them;
// parts = 2 for Q4M and Q8M (scale, min), Q8H and NVFP4, else 1. They are in half precision, those of groups as
// `precision` says; of MXFP4 a byte, the exponent of a power of two, and of NVFP4 a byte, a float8_e4m3. Tables of these
// two hold 16 times the value, so that codes are as large as those of eight bits; their scales are a sixteenth. Zeros,
// where a group has one, are [tile][group][16]: bytes of Q4Z, 16 bits of Q8Z, whose largest is 256. K is padded with
// zeros to whole blocks (BF16: to a pair), N to whole tiles.
//
// Scales may be whole numbers (WHOLE, or SIGNED ones), as those of ggml's k-quants are: every SPAN blocks have a factor for
// them in half precision, and one for mins beside it, [tile][span][1 or 2][16].
//
// Every output is summed along K in one order, whatever the number of rows: a row's result does not depend on the
// rows beside it, nor on the thread.
#pragma once

#include "amx.h"
#include "lanes.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace stentor {

enum PackedKind : int64_t {
    F32 = 0, BF16 = 1, Q4 = 2, Q4M = 3, Q8 = 4, Q8H = 5, Q8M = 6, IQ4NL = 7, MXFP4 = 8, NVFP4 = 9, Q4Z = 10, Q8Z = 11
};
enum Precision : int64_t { HALF = 0, SINGLE = 1, BRAIN = 2, WHOLE = 3, SIGNED = 4 };

constexpr int64_t BLOCK = 32;
constexpr int64_t SPAN = 8;  // blocks that share a factor

struct Packed {
    int64_t kind;
    int64_t precision;  // of the scales
    int64_t outputs, inputs;
    int64_t shared;  // blocks that share a scale
    const uint8_t* codes;
    const void* scales;
    const void* zeros;  // null: 8 for Q4Z, 128 for Q8Z
    const float* factors;  // [outputs, in whole tiles], of all scales of an output; null: 1
    const void* spans;  // factors of integer scales
};

constexpr bool has_halves(int64_t kind) { return kind == Q8H || kind == NVFP4; }  // a scale for 16 k
constexpr bool has_zeros(int64_t kind) { return kind == Q4Z || kind == Q8Z; }
constexpr bool has_mins(int64_t kind) { return kind == Q4M || kind == Q8M; }
constexpr bool has_table(int64_t kind) { return kind == IQ4NL || kind == MXFP4 || kind == NVFP4; }
constexpr bool four_bits(int64_t kind) { return kind == Q4 || kind == Q4M || kind == Q4Z || has_table(kind); }

constexpr int64_t scale_parts(int64_t kind) {
    return kind == F32 || kind == BF16 ? 0 : has_halves(kind) || has_mins(kind) ? 2 : 1;
}

// The values of the codes of a kind, counted from 128. Those of IQ4NL are ggml's; those of MXFP4 and NVFP4 are E2M1.
template <int64_t KIND>
static inline const uint8_t* table_of() {
    if constexpr (KIND == IQ4NL) {
        static constexpr uint8_t values[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
        return values;
    } else {
        static constexpr uint8_t values[16] = {128, 136, 144, 152, 160, 176, 192, 224, 128, 120, 112, 104, 96, 80, 64, 32};
        return values;
    }
}

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t span_parts(int64_t kind) { return has_mins(kind) ? 2 : 1; }
static inline bool is_whole(const Packed& w) { return w.precision == WHOLE || w.precision == SIGNED; }
static inline int64_t scale_bytes(const Packed& w) {
    if (w.kind == MXFP4 || w.kind == NVFP4 || is_whole(w)) return 1;
    return w.precision == SINGLE ? 4 : 2;
}
static inline int64_t spans_of(const Packed& w) { return ceil_div(ceil_div(w.inputs, BLOCK), SPAN); }
static inline int64_t groups_of(const Packed& w) { return ceil_div(ceil_div(w.inputs, BLOCK), w.shared); }

template <int64_t KIND>
using Zero = std::conditional_t<four_bits(KIND), uint8_t, int16_t>;
constexpr float zero_of_codes(int64_t kind) { return four_bits(kind) ? 8.0f : 128.0f; }  // without zeros
constexpr float centre_of_codes(int64_t kind) { return four_bits(kind) ? 0.0f : 128.0f; }  // the zero of the codes

// Returns the bytes of the codes of one tile.
static inline int64_t tile_bytes(int64_t kind, int64_t inputs) {
    switch (kind) {
        case F32: return inputs * TILE * 4;
        case BF16: return ceil_div(inputs, 2) * TILE * 4;
        default: return ceil_div(inputs, BLOCK) * BLOCK * TILE / (four_bits(kind) ? 2 : 1);
    }
}

// The place of code k (0..31) of an output (0..15) in its block: the byte, and for four bits whether it is the upper
// half.
struct Place {
    int64_t byte;
    bool upper;
};
static inline Place place_of(int64_t kind, int64_t lane, int64_t k) {
    const bool four = four_bits(kind);
    return {(four ? k % 16 / 4 : k / 4) * 64 + lane * 4 + k % 4, four && k >= 16};
}

// The format of a weight's input: floats, bfloat16, or blocks of 32 bytes with a common scale.
enum class ActivationFormat : int64_t { F32 = 0, BF16 = 1, INT8 = 2 };

static inline ActivationFormat activation_format_of(int64_t kind) {
    return kind == F32    ? ActivationFormat::F32
           : kind == BF16 ? ActivationFormat::BF16
                          : ActivationFormat::INT8;
}

// 32 activations: x = scale * (q + beyond), and `excess` at the peak, the one of largest magnitude. All others have eight
// bits. A single large one would otherwise take the steps from all that share its block: what is lost with eight bits falls
// to a fifth or less. The peak has a second digit, 16 times `high`; where it is further out, the rest is a float. So the
// products of a block without the rest are whole numbers in any order of sums, and below 2^24.
struct alignas(64) ByteBlock {
    int8_t q[32];
#if defined(STENTOR_TILES)
    int8_t high[32];  // 0 except at the peak: tiles sum these with codes 16 times as large
#endif
    float scale;
    float sum;         // of what x is; it takes zeros out, and adds mins
    float beyond;      // 16 * high of the peak
    float excess;      // 0 in most blocks
    int32_t minus8;    // -8 * (Σq + beyond): it takes the codes' offsets out again;
    int32_t minus128;  // -128 times that
    int32_t half128;   // and of the first half
    int16_t peak_at;
    uint8_t shifts[2];  // to the code that meets it, in the four bytes of its output: of four bits, and of eight
#if defined(STENTOR_TILES)
    // Of four inputs with the peak among them, whose codes have four bits: the bytes at which their codes' line begins, the
    // bits by which these go up to be 16 times as large, and their second digits.
    int32_t line, lift;
    int8_t digits[4];
#endif

    bool exceeds() const {
        int32_t bits;
        std::memcpy(&bits, &excess, 4);
        return __builtin_expect(bits != 0, 0);
    }
};
static_assert(offsetof(ByteBlock, scale) % 32 == 0 && sizeof(ByteBlock) % 64 == 0, "a block is a line, or two");

constexpr int32_t DIGIT = 16;  // the unit of `high`
constexpr float FURTHEST = 127 * DIGIT;  // the most steps of the scale that two digits reach

// Returns the bytes of one prepared row; rows begin at cache lines.
static inline int64_t prepared_stride(ActivationFormat format, int64_t inputs) {
    switch (format) {
        case ActivationFormat::F32: return ceil_div(inputs * 4, 64) * 64;
        // An odd number of cache lines: with an even one, rows that meet tiles together would share few sets
        // of the L1 cache.
        case ActivationFormat::BF16: return (ceil_div(inputs, BLOCK) | 1) * BLOCK * 2;
        default: return ceil_div(inputs, BLOCK) * (int64_t)sizeof(ByteBlock) + (int64_t)sizeof(ByteBlock) - 64;
    }
}

constexpr int BLOCK_REGISTERS = BLOCK / LANES;

// Returns the largest magnitude of a block.
static inline float largest(const vf* x) {
    const vi sign = vi{} + 0x7fffffff;
    vf most = (vf)((vi)x[0] & sign);
    for (int i = 1; i < BLOCK_REGISTERS; ++i) most = vmax(most, (vf)((vi)x[i] & sign));
    return hmax(most);
}

// Returns which of 32 numbers has the magnitude `most`, the first of several; a NaN comes before all.
static inline int32_t peak_of(const float* x, float most) {
#if defined(__AVX512F__)
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16), to = _mm512_set1_ps(most);
    const auto both = [](__mmask16 low, __mmask16 high) { return (uint32_t)low | (uint32_t)high << 16; };
    const uint32_t none = both(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q));
    const uint32_t equal = both(_mm512_cmp_ps_mask(_mm512_abs_ps(a), to, _CMP_EQ_OQ),
                                _mm512_cmp_ps_mask(_mm512_abs_ps(b), to, _CMP_EQ_OQ));
    const uint32_t found = none ? none : equal;
    return found ? __builtin_ctz(found) : 0;
#elif defined(__AVX2__)
    const __m256 sign = _mm256_set1_ps(-0.0f), to = _mm256_set1_ps(most);
    uint32_t none = 0, equal = 0;
    for (int i = 0; i < 32; i += 8) {
        const __m256 part = _mm256_loadu_ps(x + i), magnitude = _mm256_andnot_ps(sign, part);
        none |= (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(part, part, _CMP_UNORD_Q)) << i;
        equal |= (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(magnitude, to, _CMP_EQ_OQ)) << i;
    }
    const uint32_t found = none ? none : equal;
    return found ? __builtin_ctz(found) : 0;
#elif defined(__aarch64__)
    // The least number among those that are it; with no number they come first.
    const float32x4_t to = vdupq_n_f32(most);
    int32x4_t at = {0, 1, 2, 3}, first_equal = vdupq_n_s32(32), first_none = vdupq_n_s32(32);
    for (int i = 0; i < 32; i += 4, at = vaddq_s32(at, vdupq_n_s32(4))) {
        const float32x4_t part = vld1q_f32(x + i);
        const int32x4_t far = vdupq_n_s32(32);
        first_none = vminq_s32(first_none, vbslq_s32(vceqq_f32(part, part), far, at));
        first_equal = vminq_s32(first_equal, vbslq_s32(vceqq_f32(vabsq_f32(part), to), at, far));
    }
    const int32_t none = vminvq_s32(first_none), equal = vminvq_s32(first_equal);
    return none < 32 ? none : equal < 32 ? equal : 0;
#else
    int32_t found = -1;
    for (int32_t i = 0; i < 32; ++i) {
        if (x[i] != x[i]) return i;
        if (found < 0 && std::fabs(x[i]) == most) found = i;
    }
    return std::max(found, 0);
#endif
}

// With zero in a lane, if it has that lane.
static inline vf without_lane(vf x, int32_t lane) {
    vi lanes;
    for (int i = 0; i < LANES; ++i) lanes[i] = i;
    return select(lanes == lane, vf{}, x);
}

#if defined(__AVX512F__)
// As _mm512_reduce_add_epi32, whose additions may not overflow.
static inline int32_t wrapping_sum(__m512i x) {
    const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}
#endif

// Rounds all inputs to the nearest step, half to even. 255 steps span the largest of all inputs but the peak. A peak
// that is not finite is stored in `excess`.
static inline void quantize_block(const float* x, int64_t n, ByteBlock* out) {
    float padded[BLOCK] = {};
    if (n < BLOCK) {
        std::memcpy(padded, x, (size_t)n * 4);
        x = padded;
    }
    vf part[BLOCK_REGISTERS];
    for (int i = 0; i < BLOCK_REGISTERS; ++i) part[i] = load(x + i * LANES);
    const int32_t at = peak_of(x, largest(part));
    const float peak = x[at];
    for (int i = 0; i < BLOCK_REGISTERS; ++i) part[i] = without_lane(part[i], at - i * LANES);
    // a subnormal scale may have no inverse: such inputs count as zeros
    const float scale = largest(part) / 127.0f;
    const float inverse = scale >= std::numeric_limits<float>::min() ? 1.0f / scale : 0.0f;
    const float place = peak * inverse;
    const bool reached = inverse > 0.0f && std::fabs(place) <= FURTHEST;
    const int32_t steps = reached ? (int32_t)std::nearbyint(place) : inverse > 0.0f ? (int32_t)std::copysign(FURTHEST, peak) : 0;
    const int32_t digit = ((steps + DIGIT / 2) & -DIGIT) / DIGIT, rest = steps - digit * DIGIT;
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
    const vf magic = set1(12582912.0f);
    vi q[BLOCK_REGISTERS];
    for (int i = 0; i < BLOCK_REGISTERS; ++i) q[i] = (vi)(part[i] * inverse + magic) - (vi)magic;
    int64_t low = 0, high = 0;
#if defined(__AVX512F__)
    low = wrapping_sum((__m512i)q[0]);
    high = wrapping_sum((__m512i)q[1]);
    _mm_store_si128((__m128i*)out->q, _mm512_cvtepi32_epi8((__m512i)q[0]));
    _mm_store_si128((__m128i*)(out->q + 16), _mm512_cvtepi32_epi8((__m512i)q[1]));
#elif defined(__AVX2__)
    const __m256i early = _mm256_packs_epi32((__m256i)q[0], (__m256i)q[1]);
    const __m256i late = _mm256_packs_epi32((__m256i)q[2], (__m256i)q[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing goes by halves of a register
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(early, late), order);
    _mm256_store_si256((__m256i*)out->q, bytes);
    __m256i both = _mm256_hadd_epi32(_mm256_add_epi32((__m256i)q[0], (__m256i)q[1]),
                                     _mm256_add_epi32((__m256i)q[2], (__m256i)q[3]));
    both = _mm256_hadd_epi32(both, both);
    const __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    low = _mm_extract_epi32(sums, 0);
    high = _mm_extract_epi32(sums, 1);
#elif defined(__aarch64__)
    for (int i = 0; i < 8; i += 4) {
        const int16x8_t early = vcombine_s16(vmovn_s32((int32x4_t)q[i]), vmovn_s32((int32x4_t)q[i + 1]));
        const int16x8_t late = vcombine_s16(vmovn_s32((int32x4_t)q[i + 2]), vmovn_s32((int32x4_t)q[i + 3]));
        vst1q_s8(out->q + 4 * i, vcombine_s8(vmovn_s16(early), vmovn_s16(late)));
        (i ? high : low) = vaddvq_s16(vaddq_s16(early, late));
    }
#else
    vi of_half[2] = {};
    for (int i = 0; i < BLOCK_REGISTERS; ++i) {
        of_half[2 * i / BLOCK_REGISTERS] += q[i];
        const vq bytes = __builtin_convertvector(q[i], vq);
        std::memcpy(out->q + i * LANES, &bytes, sizeof bytes);
    }
    for (int lane = 0; lane < LANES; ++lane) low += of_half[0][lane], high += of_half[1][lane];
#endif
    out->q[at] = (int8_t)rest;
#if defined(STENTOR_TILES)
    std::memset(out->high, 0, sizeof out->high);
    out->high[at] = (int8_t)digit;
    out->line = at % 16 / 4 * 64;
    out->lift = at < 16 ? 4 : 0;
    std::memcpy(out->digits, out->high + at / 4 * 4, sizeof out->digits);
#endif
    (at < 16 ? low : high) += steps;
    // Numbers that are not finite leave codes of any size, which wrap; results of such a row are not finite either.
    const int32_t all = (int32_t)(low + high);
    const auto times = [](int32_t codes, int32_t factor) { return (int32_t)((uint32_t)codes * (uint32_t)factor); };
    out->scale = scale;
    out->excess = reached ? 0.0f : peak - scale * (float)steps;
    out->sum = scale * (float)all + out->excess;
    out->beyond = (float)(digit * DIGIT);
    out->minus8 = times(all, -8);
    out->minus128 = CENTRED ? 0 : times(all, -128);
    out->half128 = CENTRED ? 0 : times((int32_t)low, -128);
    out->peak_at = (int16_t)at;
    out->shifts[0] = (uint8_t)(at % 4 * 8 + at / 16 * 4);
    out->shifts[1] = (uint8_t)(at % 4 * 8);
}

static inline void round_block(const float* x, int64_t n, bf16* to) {
#if defined(__AVX512BF16__)
    if (n == BLOCK) {
        // subnormal numbers become zero, as bfloat16 products would treat them
        const __m512bh both = _mm512_cvtne2ps_pbh((__m512)load(x + LANES), (__m512)load(x));
        std::memcpy(to, &both, sizeof both);
        return;
    }
#endif
    for (int64_t i = 0; i < BLOCK; i += LANES) {
        if (i + LANES <= n)
            store(to + i, load(x + i));
        else
            store(to + i, i < n ? load_part(x + i, n - i) : vf{});
    }
}

// Converts a block of 32 inputs of a row from x, of which the first n exist, to the format that a weight
// takes; `row` has prepared_stride bytes.
static inline void prepare_block(const float* x, int64_t n, ActivationFormat format, int64_t block, void* row) {
    switch (format) {
        case ActivationFormat::F32: std::memcpy((float*)row + block * BLOCK, x, (size_t)n * 4); break;
        case ActivationFormat::BF16: round_block(x, n, (bf16*)row + block * BLOCK); break;
        case ActivationFormat::INT8: quantize_block(x, n, (ByteBlock*)row + block); break;
    }
}

// Converts a row of floats to the format that a weight takes; `out` has prepared_stride bytes.
static inline void prepare_row(const float* x, int64_t inputs, ActivationFormat format, void* out) {
    if (format == ActivationFormat::F32) {
        std::memcpy(out, x, (size_t)inputs * 4);
        return;
    }
    for (int64_t k = 0; k < inputs; k += BLOCK)
        prepare_block(x + k, std::min(BLOCK, inputs - k), format, k / BLOCK, out);
}

// Writes the values of one output of a weight, float [inputs]. Defined in native.cpp.
void unpack_row(const Packed& w, int64_t row, float* out);

}  // namespace stentor
