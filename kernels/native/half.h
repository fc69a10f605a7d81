// float16 storage; arithmetic is in float.
#pragma once

#include "vec.h"

namespace stentor {

static inline float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * std::ldexp((float)fraction, -24);
    const uint32_t bits = sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | fraction << 13;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

// Rounds to nearest even; too large a number becomes infinite.
static inline uint16_t float_to_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const float magnitude = std::fabs(x);
    if (!(magnitude < 65520.0f)) return sign | (x != x ? 0x7e00 : 0x7c00);
    if (magnitude < 6.103515625e-05f) return sign | (uint16_t)std::nearbyint(std::ldexp(magnitude, 24));
    bits &= 0x7fffffff;
    bits += 0xfff + (bits >> 13 & 1);
    return sign | (uint16_t)((bits - (112u << 23)) >> 13);
}

struct f16 {
    uint16_t bits;
};

static inline float widen(f16 x) { return half_to_float(x.bits); }
static inline void narrow(float x, f16* out) { out->bits = float_to_half(x); }

static inline vf load(const f16* p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__) && defined(__AVX2__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#elif defined(__aarch64__)
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)));
#else
    vf out;
    for (int i = 0; i < LANES; ++i) out[i] = widen(p[i]);
    return out;
#endif
}

static inline void store(f16* p, vf x) {
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__) && defined(__AVX2__)
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__aarch64__)
    vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x)));
#else
    for (int i = 0; i < LANES; ++i) narrow(x[i], p + i);
#endif
}

}  // namespace stentor
