// int8 storage: codes with a scale. Arithmetic is in float, or in products of codes.
#pragma once

#include "vec.h"

namespace stentor {

typedef int8_t vq __attribute__((vector_size(LANES)));

struct i8 {
    int8_t code;
};

static inline float widen(i8 x) { return (float)x.code; }

static inline vf load(const i8* p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
    vq codes;
    std::memcpy(&codes, p, sizeof codes);
    return __builtin_convertvector(codes, vf);
#endif
}

// Rounds numbers within ±2^22 to codes, half to even.
static inline vi codes_of(vf x) {
    const vf magic = set1(12582912.0f);  // 1.5 * 2^23 rounds to an integer, which then stands in the low bits
    return (vi)(x + magic) - (vi)magic;
}

// Returns the largest magnitude of n numbers; NaN if there is one.
template <class T>
static inline float greatest(const T* x, int64_t n) {
    vi most = {};
    for (int64_t i = 0; i < n; i += LANES) {
        const vi bits = (vi)(i + LANES <= n ? load(x + i) : load_part(x + i, n - i)) & 0x7fffffff;
        most = (bits & (bits > most)) | (most & ~(bits > most));  // compared as integers, so that NaN is largest
    }
    int32_t found = 0;
    for (int i = 0; i < LANES; ++i) found = most[i] > found ? most[i] : found;
    float out;
    std::memcpy(&out, &found, 4);
    return out;
}

// Stores n numbers as codes, `apart` from each other, and returns their scale: 1/127 of the largest magnitude.
template <class T>
static inline float put_codes(const T* x, int64_t n, i8* to, int64_t apart) {
    const float scale = greatest(x, n) / 127.0f, divisor = scale == 0 ? 1.0f : scale;
    for (int64_t i = 0; i < n; i += LANES) {
        const vf number = (i + LANES <= n ? load(x + i) : load_part(x + i, n - i)) / set1(divisor);
        const vi codes = codes_of(vmin(vmax(number, set1(-127.0f)), set1(127.0f)));
        const vq bytes = __builtin_convertvector(codes, vq);
        const int64_t here = i + LANES <= n ? LANES : n - i;
        if (apart == 1)
            std::memcpy(to + i, &bytes, (size_t)here);
        else
            for (int64_t j = 0; j < here; ++j) to[(i + j) * apart].code = bytes[j];
    }
    return scale;
}

}  // namespace stentor
