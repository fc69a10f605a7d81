// Converts keys and values to the layout of products of pairs: in bfloat16, two dimensions of a key side by side, or two
// keys at one dimension. bfloat16 represents float8 codes exactly.
#pragma once

#include "products.h"

namespace stentor {
namespace attention {

// Interleaves `count` numbers, a multiple of LANES, of `first` and `second`; a null pointer stands for zeros.
template <class T>
static inline void put_beside(const T* first, const T* second, int64_t count, bf16* to) {
    for (int64_t i = 0; i < count; i += LANES) {
        const vu low = first ? (vu)load(first + i) >> 16 : vu{}, high = second ? (vu)load(second + i) : vu{};
        const vu both = low | high;
        std::memcpy(to + 2 * i, &both, sizeof both);
    }
}

// The keys of a run, [dim, RUN] with rows `size` apart, become [dim / 2, RUN, 2] with rows of a tile's KEYS.
template <class T>
static inline void pair_keys(const T* from, int64_t size, int64_t dim, bf16* to) {
    for (int64_t d = 0; d < dim; d += 2) put_beside(from + d * size, from + (d + 1) * size, RUN, to + d * KEYS);
}

// The values of a key and the next one, [dim], become [dim, 2].
template <class T>
static inline void pair_values(const T* first, const T* second, int64_t dim, bf16* to) {
    put_beside(first, second, dim, to);
}

#if defined(__AVX512BW__)

// Interleaves the two halves of a register.
static inline __m512i turned(__m512i halves) {
    alignas(64) static constexpr uint16_t TURNS[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_load_si512(TURNS), halves);
}

// Interleaves the two halves of a cache line: two neighbouring dimensions in a block of one run.
static inline __m512i turned(const bf16* line) { return turned(_mm512_loadu_si512(line)); }

// Interleaves sixteen numbers of `first` and `second`.
static inline __m512i beside(const bf16* first, const bf16* second) {
    const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)first));
    return turned(_mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i*)second), 1));
}

// Interleaves thirty-two numbers of `first` and `second`; a null pointer stands for zeros.
static inline void two_beside(const bf16* first, const bf16* second, __m512i* out) {
    alignas(64) static constexpr uint16_t TURNS[2][32] = {
        {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
         24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
    const __m512i a = first ? _mm512_loadu_si512(first) : __m512i{}, b = second ? _mm512_loadu_si512(second) : __m512i{};
    for (int i = 0; i < 2; ++i) out[i] = _mm512_permutex2var_epi16(a, _mm512_load_si512(TURNS[i]), b);
}

static inline void pair_keys(const bf16* from, int64_t size, int64_t dim, bf16* to) {
    if (size == RUN)
        for (int64_t d = 0; d < dim; d += 2) _mm512_storeu_si512(to + d * KEYS, turned(from + d * RUN));
    else
        for (int64_t d = 0; d < dim; d += 2)
            _mm512_storeu_si512(to + d * KEYS, beside(from + d * size, from + (d + 1) * size));
}

// dim: a multiple of 32
static inline void pair_values(const bf16* first, const bf16* second, int64_t dim, bf16* to) {
    for (int64_t d = 0; d < dim; d += 32) {
        __m512i two[2];
        two_beside(first ? first + d : nullptr, second ? second + d : nullptr, two);
        for (int i = 0; i < 2; ++i) _mm512_storeu_si512(to + 2 * d + 32 * i, two[i]);
    }
}

#endif

#if defined(__AVX512VBMI__)

// Where each of 64 codes comes from, so that as_brain() then has all pairs in order: of a quarter of a register the first
// half goes to the first result. The second code of a pair lies `apart` behind the first, and the second result's pairs
// begin at `next`.
struct Turns {
    alignas(64) uint8_t from[64] = {};
    constexpr Turns(int apart, int next) {
        for (int i = 0; i < 64; ++i) from[i] = (uint8_t)((i / 16 * 8 + i % 8) / 2 + i % 2 * apart + (i / 8 % 2) * next);
    }
};

static inline void put_turned(const Turns& turns, __m512i codes, bf16* first, bf16* second) {
    __m512i out[2];
    as_brain(_mm512_permutexvar_epi8(_mm512_load_si512(turns.from), codes), out);
    _mm512_storeu_si512(first, out[0]);
    _mm512_storeu_si512(second, out[1]);
}

// dim: a multiple of 4
static inline void pair_keys(const e4m3* from, int64_t size, int64_t dim, bf16* to) {
    static constexpr Turns TURNS(RUN, 2 * RUN);
    for (int64_t d = 0; d < dim; d += 4) {
        const e4m3* const four = from + d * size;
        __m512i codes;
        if (size == RUN) {
            codes = _mm512_loadu_si512(four);
        } else {
            codes = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i*)four));
            codes = _mm512_inserti32x4(codes, _mm_loadu_si128((const __m128i*)(four + size)), 1);
            codes = _mm512_inserti32x4(codes, _mm_loadu_si128((const __m128i*)(four + 2 * size)), 2);
            codes = _mm512_inserti32x4(codes, _mm_loadu_si128((const __m128i*)(four + 3 * size)), 3);
        }
        put_turned(TURNS, codes, to + d * KEYS, to + (d + 2) * KEYS);
    }
}

// dim: a multiple of 32
static inline void pair_values(const e4m3* first, const e4m3* second, int64_t dim, bf16* to) {
    static constexpr Turns TURNS(32, 16);
    const auto half = [](const e4m3* from) { return from ? _mm256_loadu_si256((const __m256i*)from) : __m256i{}; };
    for (int64_t d = 0; d < dim; d += 32) {
        const __m256i low = half(first ? first + d : nullptr), high = half(second ? second + d : nullptr);
        put_turned(TURNS, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), to + 2 * d, to + 2 * d + 32);
    }
}

#endif

}  // namespace attention
}  // namespace stentor
