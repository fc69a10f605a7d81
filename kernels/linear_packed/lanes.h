// What products of packed weights need of a register: widened scales, integer dot products, pairs of bfloat16; a
// compiler finds none of them by itself.
#pragma once

#include "codes.h"
#include "half.h"

#include <type_traits>

namespace stentor {

constexpr int TILE = 16;                 // outputs that lie side by side in a packed weight
constexpr int REGISTERS = TILE / LANES;  // that they take: one with AVX-512, two with AVX2, else four
constexpr int VECTOR = 64;               // bytes of what a tile holds for one step of K

typedef uint8_t vb __attribute__((vector_size(LANES * 4)));
typedef uint16_t vs __attribute__((vector_size(LANES * 4)));
typedef uint8_t vy __attribute__((vector_size(LANES)));
typedef int16_t vw __attribute__((vector_size(LANES * 2)));

template <class V>
static inline V load_as(const void* p) {
    V out;
    std::memcpy(&out, p, sizeof out);
    return out;
}

static inline vf to_float(vi x) { return __builtin_convertvector(x, vf); }

// Scales of as many outputs as a register has lanes, stored in half precision, in bfloat16 or in single precision.
static inline vf load_scales(const float* p) { return load(p); }
static inline vf load_scales(const f16* p) { return load(p); }
static inline vf load_scales(const bf16* p) { return load(p); }

// Zero points, as numbers.
static inline vf load_zeros(const uint8_t* p) { return to_float(__builtin_convertvector(load_as<vy>(p), vi)); }
static inline vf load_zeros(const int16_t* p) { return to_float(__builtin_convertvector(load_as<vw>(p), vi)); }

// Scales of eight bits: an exponent of two with a bias of 127 and nothing else, and four bits of exponent, three of
// fraction and a sign that is never set (E8M0, E4M3). Both are read as a sixteenth, as their tables hold 16 times the value.
struct E8M0 {
    uint8_t bits;
};
struct E4M3 {
    uint8_t bits;
};
// Scales that are whole numbers.
struct U8 {
    uint8_t bits;
};
struct S8 {
    int8_t bits;
};
template <class Scale>
static inline vi widen_bytes(const Scale* p) {
    return __builtin_convertvector(load_as<vy>(p), vi);
}
static inline vf load_scales(const E8M0* p) {
    const vi bits = widen_bytes(p) << 23, least = vi{} + 0x400000;  // 0 is 2^-127, below the normal numbers
    return select(bits == 0, (vf)least, (vf)bits) * 0.0625f;
}
static inline vf load_scales(const U8* p) { return to_float(widen_bytes(p)); }
static inline vf load_scales(const S8* p) { return to_float(__builtin_convertvector(load_as<vq>(p), vi)); }
static inline vf load_scales(const E4M3* p) {
    const vi bits = widen_bytes(p);
    return select(bits < 8, to_float(bits) * 0x1p-13f, (vf)((bits << 20) + (116 << 23)));
}

// Each byte of `codes`, 0 to 15, is replaced by what a table of 16 bytes has there.
static inline vb look_up(vb codes, const uint8_t* table) {
#if defined(__AVX512BW__)
    return (vb)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), (__m512i)codes);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (vb)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)), (__m256i)codes);
#elif defined(__SSSE3__) && !defined(__AVX512F__)
    return (vb)_mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)table), (__m128i)codes);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return (vb)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)codes);
#else
    for (int i = 0; i < LANES * 4; ++i) codes[i] = table[codes[i]];
    return codes;
#endif
}

#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
constexpr bool CENTRED = false;
#else
// Without an instruction that sums products of bytes in 32 bits, eight-bit codes are centred first.
constexpr bool CENTRED = true;
#endif

// Each lane gains the dot product of its four codes with the four bytes of x. Codes are unsigned; those of
// eight bits (WIDE) count from 128 where CENTRED.
template <bool WIDE>
static inline vi dot4(vi acc, vb codes, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)codes, _mm512_set1_epi32(four));
#elif defined(__AVX512BW__)
    const __m512i ones = _mm512_set1_epi16(1), values = _mm512_set1_epi32(four);
    __m512i pairs;
    if (WIDE) {
        const __m512i centred = _mm512_xor_si512((__m512i)codes, _mm512_set1_epi8((char)0x80));
        const __m512i signs = _mm512_mask_sub_epi8(values, _mm512_movepi8_mask(centred), __m512i{}, values);
        pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(centred), signs);
    } else {
        pairs = _mm512_maddubs_epi16((__m512i)codes, values);
    }
    return (vi)_mm512_add_epi32((__m512i)acc, _mm512_madd_epi16(pairs, ones));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)codes, _mm256_set1_epi32(four));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i ones = _mm256_set1_epi16(1), values = _mm256_set1_epi32(four);
    __m256i pairs;
    if (WIDE) {
        const __m256i centred = _mm256_xor_si256((__m256i)codes, _mm256_set1_epi8((char)0x80));
        pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(centred), _mm256_sign_epi8(values, centred));
    } else {
        pairs = _mm256_maddubs_epi16((__m256i)codes, values);
    }
    acc += (vi)_mm256_madd_epi16(pairs, ones);
    asm("" : "+x"(acc));
    return acc;
#elif defined(__ARM_FEATURE_DOTPROD)
    const int8x16_t values = vreinterpretq_s8_s32(vdupq_n_s32(four));
    return (vi)vdotq_s32((int32x4_t)acc, (int8x16_t)(WIDE ? codes ^ 0x80 : codes), values);
#elif defined(__aarch64__)
    const int8x16_t values = vreinterpretq_s8_s32(vdupq_n_s32(four)), factors = (int8x16_t)(WIDE ? codes ^ 0x80 : codes);
    const int16x8_t early = vmull_s8(vget_low_s8(factors), vget_low_s8(values)), late = vmull_high_s8(factors, values);
    return acc + (vi)vpaddq_s32(vpaddlq_s16(early), vpaddlq_s16(late));
#else
    for (int lane = 0; lane < LANES; ++lane)
        for (int i = 0; i < 4; ++i) {
            const int code = (int)codes[4 * lane + i] - (WIDE ? 128 : 0);
            acc[lane] += code * (int)(int8_t)((uint32_t)four >> (8 * i));
        }
    return acc;
#endif
}

// Sums of products of up to 32 codes a lane, in 32 bits, or where products come in pairs of 16 bits and codes have four:
// 8 pairs of at most 2 * 15 * 127 each are below 2^15.
#if (defined(__AVX512BW__) && !defined(__AVX512VNNI__)) || \
    (defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__))
template <bool WIDE>
using DotSum = std::conditional_t<WIDE, vi, vs>;

static inline vs add_pairs(vs sum, vb codes, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
#if defined(__AVX512BW__)
    sum += (vs)_mm512_maddubs_epi16((__m512i)codes, _mm512_set1_epi32(four));
#else
    sum += (vs)_mm256_maddubs_epi16((__m256i)codes, _mm256_set1_epi32(four));
#endif
    asm("" : "+x"(sum));  // GCC would add all products up at the end, and run out of registers
    return sum;
}
static inline vi total(vs pairs) {
#if defined(__AVX512BW__)
    return (vi)_mm512_madd_epi16((__m512i)pairs, _mm512_set1_epi16(1));
#else
    return (vi)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16(1));
#endif
}
#else
template <bool WIDE>
using DotSum = vi;
#endif

static inline vi total(vi sum) { return sum; }

template <bool WIDE>
static inline DotSum<WIDE> add_dots(DotSum<WIDE> sum, vb codes, const int8_t* x) {
    if constexpr (std::is_same_v<DotSum<WIDE>, vi>)
        return dot4<WIDE>(sum, codes, x);
    else
        return add_pairs(sum, codes, x);
}

// Each lane of acc[r][j] gains the two products of its bfloat16 pair of w[j] with the pair at x[r] + k.
template <int R, int N>
static inline void dots2(vf (*acc)[N], const vu* w, const bf16* const* x, int64_t k) {
#if defined(__AVX512BF16__)
    for (int r = 0; r < R; ++r) {
        int32_t two;
        std::memcpy(&two, x[r] + k, 4);
        const __m512bh values = (__m512bh)_mm512_set1_epi32(two);
        for (int j = 0; j < N; ++j) acc[r][j] = (vf)_mm512_dpbf16_ps((__m512)acc[r][j], (__m512bh)w[j], values);
    }
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    for (int r = 0; r < R; ++r) {
        uint32_t two;
        std::memcpy(&two, x[r] + k, 4);
        const bfloat16x8_t values = vreinterpretq_bf16_u32(vdupq_n_u32(two));
        for (int j = 0; j < N; ++j) acc[r][j] = (vf)vbfdotq_f32((float32x4_t)acc[r][j], (bfloat16x8_t)w[j], values);
    }
#else
    // All first halves, then all second ones: both at a time would need more registers than there are.
    for (int half = 0; half < 2; ++half) {
        const auto widened = [half](vu pairs) { return (vf)(half ? pairs & 0xffff0000u : pairs << 16); };
        vf wide[N];
        for (int j = 0; j < N; ++j) wide[j] = widened(w[j]);
        for (int r = 0; r < R; ++r) {
            const bf16* at = x[r];
            uint32_t two;
#if defined(__AVX2__)
            asm volatile("" : "+r"(at));  // GCC would keep for the second half what it has loaded for the first
#endif
            std::memcpy(&two, at + k, 4);
            vu both = vu{} + two;
#if defined(__AVX2__)
            asm volatile("" : "+x"(both));  // and shift one value, and bring it to the vectors by way of two more moves
#endif
            const vf value = widened(both);
            for (int j = 0; j < N; ++j) acc[r][j] = fma(wide[j], value, acc[r][j]);
        }
    }
#endif
}

}  // namespace stentor
