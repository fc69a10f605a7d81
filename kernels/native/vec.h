// Vectors of floats through the compiler's vector extensions: one source for AVX-512, AVX2, NEON and
// plain SSE. Fused multiply-add is explicit; without hardware support it is a rounded product and a
// rounded sum, in the same order.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace stentor {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));

// bfloat16 storage; arithmetic is in float.
struct bf16 {
    uint16_t bits;
};

// x - 0 is x whatever its sign, so that the compiler drops the subtraction.
static inline vf set1(float x) { return x - vf{}; }

static inline vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

static inline vf select(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }
// If either is NaN, returns b.
static inline vf vmax(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return select(a > b, a, b);
#endif
}
static inline vf vmin(vf a, vf b) { return select(a < b, a, b); }

static inline float widen(float x) { return x; }
static inline float widen(bf16 x) {
    const uint32_t bits = (uint32_t)x.bits << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

// Round to nearest even, as torch does; every NaN becomes the quiet one.
static inline void narrow(float x, float* out) { *out = x; }
static inline void narrow(float x, bf16* out) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    out->bits = x != x ? 0x7fc0 : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline vf load(const float* p) {
    vf out;
    std::memcpy(&out, p, sizeof out);
    return out;
}
static inline vf load(const bf16* p) {
#if defined(__AVX512F__)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#elif defined(__AVX2__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#elif defined(__aarch64__)
    return (vf)vshll_n_u16(vld1_u16(&p->bits), 16);
#else
    vh half;
    std::memcpy(&half, p, sizeof half);
    return (vf)(__builtin_convertvector(half, vu) << 16);
#endif
}

static inline void store(float* p, vf x) { std::memcpy(p, &x, sizeof x); }
static inline void store(bf16* p, vf x) {
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
    // the instruction flushes subnormal numbers to zero, and keeps the bits of a NaN
    constexpr int SMALL_OR_NAN = 0x20 | 0x01 | 0x80;
    if (__builtin_expect(_mm512_fpclass_ps_mask((__m512)x, SMALL_OR_NAN) == 0, 1)) {
        _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh((__m512)x));
        return;
    }
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    // the instruction keeps the bits of a NaN
    if (__builtin_expect(vminvq_u32(vceqq_f32((float32x4_t)x, (float32x4_t)x)) != 0, 1)) {
        const bfloat16x4_t half = vcvt_bf16_f32((float32x4_t)x);
        std::memcpy(p, &half, sizeof half);
        return;
    }
#endif
    const vu bits = (vu)x;
    const vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const vu nan = (vu)(x != x);
    const vh half = __builtin_convertvector((rounded & ~nan) | (nan & 0x7fc0), vh);
    std::memcpy(p, &half, sizeof half);
}

// The first n < LANES elements; the rest of the vector is zero, and memory past them is not read.
template <class T>
static inline vf load_part(const T* p, int64_t n) {
    T part[LANES] = {};
    std::memcpy(part, p, (size_t)n * sizeof(T));
    return load(part);
}
template <class T>
static inline void store_part(T* p, vf x, int64_t n) {
    T part[LANES];
    store(part, x);
    std::memcpy(p, part, (size_t)n * sizeof(T));
}

// Sum and maximum over the lanes by halving: always the same tree.
static inline float hsum(vf x) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256((__m512)x),
                                       _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd((__m512)x), 1)));
#else
    const __m256 eight = (__m256)x;
#endif
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
#elif defined(__aarch64__)
    return vaddv_f32(vadd_f32(vget_low_f32((float32x4_t)x), vget_high_f32((float32x4_t)x)));
#else
    float part[LANES];
    std::memcpy(part, &x, sizeof x);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) part[lane] += part[lane + width];
    return part[0];
#endif
}
static inline float hmax(vf x) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256((__m512)x),
                                       _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd((__m512)x), 1)));
#else
    const __m256 eight = (__m256)x;
#endif
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
#elif defined(__aarch64__)
    return vmaxnmvq_f32((float32x4_t)x);
#else
    float part[LANES];
    std::memcpy(part, &x, sizeof x);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane)
            part[lane] = part[lane] > part[lane + width] ? part[lane] : part[lane + width];
    return part[0];
#endif
}

}  // namespace stentor
