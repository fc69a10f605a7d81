// Sixteen lanes at a time: one register with AVX-512, two with AVX2, four otherwise; the compiler cuts them.
// What it cannot cut well (integer dot products, half precision) is written for each instruction set.
#pragma once

#include "vec.h"

namespace stentor {

constexpr int TILE = 16;  // outputs that lie side by side in a packed weight

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x32 __attribute__((vector_size(64)));
typedef uint8_t u8x64 __attribute__((vector_size(64)));

template <class V>
static inline V load_as(const void* p) {
    V out;
    std::memcpy(&out, p, sizeof out);
    return out;
}

static inline f32x16 all16(float x) { return x - f32x16{}; }
static inline f32x16 to_float(i32x16 x) { return __builtin_convertvector(x, f32x16); }

static inline f32x16 fma16(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    union Halves {
        f32x16 whole;
        __m256 half[2];
    } x{a}, y{b}, z{c};
    for (int i = 0; i < 2; ++i) z.half[i] = _mm256_fmadd_ps(x.half[i], y.half[i], z.half[i]);
    return z.whole;
#elif defined(__ARM_NEON) && defined(__aarch64__)
    union Quarters {
        f32x16 whole;
        float32x4_t quarter[4];
    } x{a}, y{b}, z{c};
    for (int i = 0; i < 4; ++i) z.quarter[i] = vfmaq_f32(z.quarter[i], x.quarter[i], y.quarter[i]);
    return z.whole;
#else
    return a * b + c;
#endif
}

static inline float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * std::ldexp((float)fraction, -24);
    const uint32_t bits = sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | fraction << 13;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

// Sixteen scales, stored in half or in single precision.
static inline f32x16 load16(const float* p) { return load_as<f32x16>(p); }
static inline f32x16 load16(const uint16_t* p) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__) && defined(__AVX2__)
    union {
        f32x16 whole;
        __m256 half[2];
    } out;
    for (int i = 0; i < 2; ++i) out.half[i] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p + i));
    return out.whole;
#else
    f32x16 out;
    for (int i = 0; i < 16; ++i) out[i] = half_to_float(p[i]);
    return out;
#endif
}

#if defined(__AVX512VNNI__)
constexpr bool CENTRED = false;
#else
// Without an instruction that sums products of bytes in 32 bits, eight-bit codes are centred first.
constexpr bool CENTRED = true;
#endif

// Each lane gains the dot product of its four codes with the four bytes of x. Codes are unsigned; those of
// eight bits (WIDE) count from 128 where CENTRED.
template <bool WIDE>
static inline i32x16 dot4(i32x16 acc, u8x64 codes, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
#if defined(__AVX512VNNI__)
    return (i32x16)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)codes, _mm512_set1_epi32(four));
#elif defined(__AVX2__)
    union {
        i32x16 whole;
        __m256i half[2];
    } sum{acc};
    union {
        u8x64 whole;
        __m256i half[2];
    } code{codes};
    const __m256i ones = _mm256_set1_epi16(1), values = _mm256_set1_epi32(four);
    for (int i = 0; i < 2; ++i) {
        __m256i pairs;
        if (WIDE) {
            const __m256i centred = _mm256_xor_si256(code.half[i], _mm256_set1_epi8((char)0x80));
            pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(centred), _mm256_sign_epi8(values, centred));
        } else {
            pairs = _mm256_maddubs_epi16(code.half[i], values);
        }
        sum.half[i] = _mm256_add_epi32(sum.half[i], _mm256_madd_epi16(pairs, ones));
    }
    return sum.whole;
#elif defined(__ARM_FEATURE_DOTPROD)
    union {
        i32x16 whole;
        int32x4_t quarter[4];
    } sum{acc};
    union {
        u8x64 whole;
        int8x16_t quarter[4];
    } code{WIDE ? codes ^ 0x80 : codes};
    const int8x16_t values = vreinterpretq_s8_s32(vdupq_n_s32(four));
    for (int i = 0; i < 4; ++i) sum.quarter[i] = vdotq_s32(sum.quarter[i], code.quarter[i], values);
    return sum.whole;
#else
    for (int lane = 0; lane < 16; ++lane)
        for (int i = 0; i < 4; ++i) {
            const int code = (int)codes[4 * lane + i] - (WIDE ? 128 : 0);
            acc[lane] += code * (int)(int8_t)((uint32_t)four >> (8 * i));
        }
    return acc;
#endif
}

// Each lane gains the two products of its bfloat16 pair with the pair at x.
static inline f32x16 dot2(f32x16 acc, u32x16 pairs, const bf16* x) {
#if defined(__AVX512BF16__)
    int32_t two;
    std::memcpy(&two, x, 4);
    return (f32x16)_mm512_dpbf16_ps((__m512)acc, (__m512bh)pairs, (__m512bh)_mm512_set1_epi32(two));
#else
    acc = fma16((f32x16)(pairs << 16), all16(widen(x[0])), acc);
    return fma16((f32x16)(pairs & 0xffff0000u), all16(widen(x[1])), acc);
#endif
}

}  // namespace stentor
