// Elementary functions over vectors, to about 1e-7 relative; every lane is computed the same way.
#pragma once

#include "vec.h"

namespace stentor {

// e^x. Below -87.33 it is zero, because subnormal numbers take a processor a hundred times as long. Above 88.37 it
// stays at e^88.37. NaN passes through.
static inline vf exp(vf x) {
    const vf low = set1(-87.33f), high = set1(88.37f);
#if defined(__AVX512F__)
    const vf clamped = (vf)_mm512_min_ps((__m512)high, _mm512_max_ps((__m512)low, (__m512)x));
    const vf n = (vf)_mm512_roundscale_ps((__m512)(clamped * set1(1.44269504088896341f)),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    vf clamped = select(low > x, low, x);
    clamped = select(high < clamped, high, clamped);
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
    const vf magic = set1(12582912.0f);
    const vf shifted = fma(clamped, set1(1.44269504088896341f), magic);
    const vf n = shifted - magic;
#endif
    vf r = fma(n, set1(-0.693359375f), clamped);
    r = fma(n, set1(2.12194440e-4f), r);
    vf p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = fma(p, r * r, r) + set1(1.0f);
#if defined(__AVX512F__)
    const __mmask16 some = _mm512_cmp_ps_mask((__m512)x, (__m512)low, _CMP_NLT_UQ);
    return (vf)_mm512_maskz_scalef_ps(some, (__m512)p, (__m512)n);
#else
    const vf scale = (vf)(((vi)shifted - (vi)magic + 127) << 23);
    return select(x < low, vf{}, p * scale);
#endif
}

// 2^x; zero below -150, and for -infinity. Two to an integer is exact.
static inline vf exp2(vf x) {
    const vf low = set1(-160.0f);
    x = vmax(x, low);
#if defined(__AVX512F__)
    const vf n = (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const vf magic = set1(12582912.0f);  // 1.5 * 2^23 rounds to an integer, which then stands in the low bits
    const vf shifted = x + magic, n = shifted - magic;
#endif
    const vf f = x - n;
    vf p = set1(1.5403530393e-4f);
    p = fma(p, f, set1(1.3333558146e-3f));
    p = fma(p, f, set1(9.6181291076e-3f));
    p = fma(p, f, set1(5.5504108664e-2f));
    p = fma(p, f, set1(2.4022650696e-1f));
    p = fma(p, f, set1(6.9314718056e-1f));
    p = fma(p, f, set1(1.0f));
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    // in two factors, so that a subnormal result is still rounded correctly
    const vi whole = (vi)shifted - (vi)magic, half = whole >> 1;
    return p * (vf)((half + 127) << 23) * (vf)((whole - half + 127) << 23);
#endif
}

// 2^x to 3e-6, for results that are rounded to the 8 bits of bfloat16 anyway; zero for -infinity.
static inline vf exp2_roughly(vf x) {
#if defined(__AVX512DQ__)
    const vf f = (vf)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x - floor(x)
    vf p = set1(1.353416792e-2f);
    p = fma(p, f, set1(5.201146061e-2f));
    p = fma(p, f, set1(2.414427569e-1f));
    p = fma(p, f, set1(6.930038345e-1f));
    p = fma(p, f, set1(1.000002593f));
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)x);  // takes the floor itself
#else
    return exp2(x);
#endif
}

static inline vf abs(vf x) { return (vf)((vi)x & 0x7fffffff); }

static inline vf tanh(vf x) {
    const vf z = x * x;
    vf p = set1(-5.70498872745e-3f);
    p = fma(p, z, set1(2.06390887954e-2f));
    p = fma(p, z, set1(-5.37397155531e-2f));
    p = fma(p, z, set1(1.33314422036e-1f));
    p = fma(p, z, set1(-3.33332819422e-1f));
    const vf near = fma(p * z, x, x);
    const vf far = set1(1.0f) - set1(2.0f) / (exp(vmin(set1(80.0f), x + x)) + set1(1.0f));
    return select(abs(x) < set1(0.625f), near, far);
}

// The error function, to a relative error of about 4e-7: x P(x²) / Q(x²), fitted for the least relative error up to
// 3.9; beyond that it is one.
static inline vf erf(vf x) {
    const vf z = x * x;
    vf p = set1(2.066500656e-06f);
    p = fma(p, z, set1(2.850586316e-04f));
    p = fma(p, z, set1(3.738191444e-03f));
    p = fma(p, z, set1(5.266761035e-02f));
    p = fma(p, z, set1(1.896632314e-01f));
    p = fma(p, z, set1(1.128379107f));
    vf q = set1(3.827011460e-05f);
    q = fma(q, z, set1(1.157338382e-03f));
    q = fma(q, z, set1(1.491396967e-02f));
    q = fma(q, z, set1(1.138174757e-01f));
    q = fma(q, z, set1(5.014174581e-01f));
    q = fma(q, z, set1(1.0f));
    const vf end = set1(3.9f), one = set1(1.0f);
    return select(x > end, one, select(x < -end, -one, x * p / q));
}

}  // namespace stentor
