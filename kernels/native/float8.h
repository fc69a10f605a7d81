// float8 storage (e4m3fn: a sign, four bits of exponent, three of fraction, no infinity). Arithmetic is in float, on
// FLOAT8_UNIT-ths of the numbers: as float16 their bits then only move, those of numbers too small to be normal too.
#pragma once

#include "half.h"

namespace stentor {

typedef uint8_t vc __attribute__((vector_size(LANES)));

struct e4m3 {
    uint8_t bits;
};

constexpr float FLOAT8_UNIT = 256.0f;
constexpr float FLOAT8_MOST = 448.0f;
constexpr int SIXTEEN = 16 / LANES;  // vectors per sixteen numbers

static inline float widen(e4m3 x) {
    const uint16_t magnitude = x.bits & 0x7f;
    return half_to_float((uint16_t)((x.bits & 0x80) << 8 | (magnitude == 0x7f ? 0x7e00 : magnitude << 7)));
}

// As float16, of codes that were widened with their sign; a NaN gets all bits.
#if defined(__F16C__) && defined(__AVX2__)
static inline __m256i as_half(__m256i codes) {
    const __m256i most = _mm256_set1_epi16(0x3f80);
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16((short)0xbfff));
    return _mm256_or_si256(half, _mm256_cmpeq_epi16(_mm256_and_si256(half, most), most));
}
#elif defined(__aarch64__)
static inline float16x8_t as_half(int8x8_t codes) {
    const uint16x8_t moved = vreinterpretq_u16_s16(vshlq_n_s16(vmovl_s8(codes), 7)), most = vdupq_n_u16(0x3f80);
    const uint16x8_t half = vandq_u16(moved, vdupq_n_u16(0xbfff));
    return vreinterpretq_f16_u16(vorrq_u16(half, vceqq_u16(vandq_u16(half, most), most)));
}
#endif

#if defined(__AVX512VBMI__)
// The two bytes of the bfloat16 that a code without its sign stands for, in FLOAT8_UNIT-ths.
struct BrainBytes {
    alignas(64) uint8_t low[128] = {}, high[128] = {};

    constexpr BrainBytes() {
        for (int code = 0; code < 128; ++code) {
            int exponent = code / 8, fraction = code % 8;
            if (exponent > 0) fraction += 8, --exponent;
            for (; fraction > 0 && fraction < 8; fraction *= 2) --exponent;
            const int bits = code == 0 ? 0 : code == 127 ? 0x7fc0 : (exponent + 113) << 7 | (fraction - 8) << 4;
            low[code] = (uint8_t)bits, high[code] = (uint8_t)(bits >> 8);
        }
    }
};

// Sixty-four codes as bfloat16: of the sixteen in each quarter of a register the first eight are in out[0], in order.
static inline void as_brain(__m512i codes, __m512i* out) {
    static constexpr BrainBytes BYTES;
    const auto find = [&](const uint8_t* bytes) {
        return _mm512_permutex2var_epi8(_mm512_load_si512(bytes), codes, _mm512_load_si512(bytes + 64));
    };
    const __m512i low = find(BYTES.low), high = find(BYTES.high) | (codes & _mm512_set1_epi8((char)0x80));
    out[0] = _mm512_unpacklo_epi8(low, high);
    out[1] = _mm512_unpackhi_epi8(low, high);
}
#endif

// Loads sixteen adjacent codes.
static inline void load_sixteen(const e4m3* p, vf* out) {
#if defined(__F16C__) && defined(__AVX2__)
    const __m256i all = as_half(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)));
#if defined(__AVX512F__)
    out[0] = (vf)_mm512_cvtph_ps(all);
#else
    out[0] = (vf)_mm256_cvtph_ps(_mm256_castsi256_si128(all));
    out[1] = (vf)_mm256_cvtph_ps(_mm256_extracti128_si256(all, 1));
#endif
#elif defined(__aarch64__)
    const int8x16_t codes = vld1q_s8((const int8_t*)p);
    const float16x8_t low = as_half(vget_low_s8(codes)), high = as_half(vget_high_s8(codes));
    out[0] = (vf)vcvt_f32_f16(vget_low_f16(low));
    out[1] = (vf)vcvt_high_f32_f16(low);
    out[2] = (vf)vcvt_f32_f16(vget_low_f16(high));
    out[3] = (vf)vcvt_high_f32_f16(high);
#else
    for (int v = 0; v < SIXTEEN; ++v) {
        vc codes;
        std::memcpy(&codes, p + v * LANES, sizeof codes);
        const vu wide = __builtin_convertvector(codes, vu), size = wide & 0x7f;
        const vu number = (vu)((vf)(size << 20) * set1(0x1p112f));
        out[v] = (vf)(number | (wide & 0x80) << 24 | ((vu)(size == 0x7f) & 0x7fc00000));
    }
#endif
}

static inline vf load(const e4m3* p) {
    e4m3 sixteen[16] = {};
    vf out[SIXTEEN];
    std::memcpy(sixteen, p, LANES);
    load_sixteen(sixteen, out);
    return out[0];
}

// Loads N adjacent vectors from any storage.
template <int N, class T>
static inline void load_next(const T* p, vf* out) {
    #pragma GCC unroll 8
    for (int v = 0; v < N; ++v) out[v] = load(p + v * LANES);
}
template <int N>
static inline void load_next(const e4m3* p, vf* out) {
    int v = 0;
    #pragma GCC unroll 8
    for (; v + SIXTEEN <= N; v += SIXTEEN) load_sixteen(p + v * LANES, out + v);
    #pragma GCC unroll 8
    for (; v < N; ++v) out[v] = load(p + v * LANES);
}

// Rounds each number to the nearest code, half to even; numbers out of range become ±FLOAT8_MOST.
static inline vc float8_of(vf x) {
    const vu sign = (vu)x & 0x80000000, nan = (vu)(x != x);
    const vf size = vmin((vf)((vu)x ^ sign), set1(FLOAT8_MOST));
    const vu bits = (vu)size;
    const vu normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3);
    const vu small = (vu)(size + set1(0x1p14f)) & 15;  // counts 2^-9, in the last place of 2^14
    const vu is_small = (vu)(size < set1(0x1p-6f));
    const vu code = (small & is_small) | (normal & ~is_small);
    return __builtin_convertvector((code & ~nan) | (nan & 0x7f) | sign >> 24, vc);
}

// Stores n numbers divided by `scale`, `apart` from each other.
template <class T>
static inline void put_codes(const T* x, int64_t n, float scale, e4m3* to, int64_t apart) {
    for (int64_t i = 0; i < n; i += LANES) {
        const vc bytes = float8_of((i + LANES <= n ? load(x + i) : load_part(x + i, n - i)) / set1(scale));
        const int64_t here = i + LANES <= n ? LANES : n - i;
        if (apart == 1)
            std::memcpy(to + i, &bytes, (size_t)here);
        else
            for (int64_t j = 0; j < here; ++j) to[(i + j) * apart].bits = bytes[j];
    }
}

}  // namespace stentor
