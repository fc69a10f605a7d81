// The hash, the Gumbel noise and the integer masses of reference.py, bit for bit. Every product and sum
// here is rounded on its own (the library is built with -ffp-contract=off), in the reference's order.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "vec.h"

namespace stentor::sampling {

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;
constexpr float NOISE_MAX = 22.88f;
constexpr int MASS_BITS = 40;

inline uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

inline uint64_t row_key(uint64_t seed, uint64_t index) { return mix64(mix64(seed + GOLDEN) + index * GOLDEN); }

// Word is uint32_t or a vector of them.
template <class Word>
inline Word mix32(Word x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

template <class Word>
inline Word noise_word(uint64_t key, Word token) {
    return mix32(mix32(token ^ (uint32_t)(key >> 32)) + (uint32_t)key);
}

inline double ln(double x) {
    int64_t bits;
    std::memcpy(&bits, &x, 8);
    const int64_t exponent = (bits - 0x3FE6A09E667F3BCD) >> 52;
    bits -= exponent * (INT64_C(1) << 52);
    double m;
    std::memcpy(&m, &bits, 8);
    const double s = (m - 1.0) / (m + 1.0);
    const double s2 = s * s;
    double series = 1.0 / 17.0;
    series = series * s2 + 1.0 / 15.0;
    series = series * s2 + 1.0 / 13.0;
    series = series * s2 + 1.0 / 11.0;
    series = series * s2 + 1.0 / 9.0;
    series = series * s2 + 1.0 / 7.0;
    series = series * s2 + 1.0 / 5.0;
    series = series * s2 + 1.0 / 3.0;
    return (double)exponent * 0.6931471805599453 + (s + s) * (series * s2 + 1.0);
}

inline double gumbel(uint32_t word) {
    const double u = 1.0 - ((double)word + 0.5) * 0x1p-32;
    return -ln(-ln(u));
}

// An upper bound of gumbel(word), from the exponent and mantissa of the word as a float.
// With w = 1 - u: g = -ln(-ln(1 - w)) <= -ln w, and log2(2**e * (1 + f)) >= e + f.
inline vf gumbel_bound(vu word) {
    const vf w = __builtin_convertvector((vi)(word >> 1), vf);  // times 2**-31
    constexpr float ln2 = 0.69314718f, slack = 1e-3f;
    return (slack + (127 + 31) * ln2) - __builtin_convertvector((vi)w, vf) * (ln2 * 0x1p-23f);
}

// 2**40 * exp(z) for z <= 0, as floats: the integer part is the token's mass.
inline vf scaled_exp(vf z) {
    const vf floor = set1(-40.0f);
    const vf x = z > floor ? z : floor;
    const vf magic = set1(0x1.8p23f);
    const vf rounded = x * 1.4426950408889634f + magic;
    const vf n = rounded - magic;
    const vi scale = ((vi)rounded - (vi)magic + MASS_BITS) << 23;
    vf r = x - n * 0.693145751953125f;
    r = r - n * 1.42860682030941723e-6f;
    vf series = set1(1.0f / 720.0f);
    series = series * r + 1.0f / 120.0f;
    series = series * r + 1.0f / 24.0f;
    series = series * r + 1.0f / 6.0f;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    return (vf)((vi)series + scale);
}

}  // namespace stentor::sampling
