// Elementary functions over vectors, to about 1e-7 relative; every lane is computed alike.
#pragma once

#include "vec.h"

namespace stentor {

// e^x. Below -87.33 it is zero, above 88.37 it stays at e^88.37; NaN passes through.
static inline vf exp(vf x) {
    const vf low = set1(-87.33f), high = set1(88.37f);
    vf clamped = select(low > x, low, x);
    clamped = select(high < clamped, high, clamped);
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
    const vf magic = set1(12582912.0f);
    const vf shifted = fma(clamped, set1(1.44269504088896341f), magic);
    const vf n = shifted - magic;
    vf r = fma(n, set1(-0.693359375f), clamped);
    r = fma(n, set1(2.12194440e-4f), r);
    vf p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = fma(p, r * r, r) + set1(1.0f);
    const vf scale = (vf)(((vi)shifted - (vi)magic + 127) << 23);
    return select(x < low, vf{}, p * scale);
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
    const vf far = set1(1.0f) - set1(2.0f) / (exp(x + x) + set1(1.0f));
    return select(abs(x) < set1(0.625f), near, far);
}

// The error function as x·P(x²)/Q(x²) on [-4, 4], beyond which it is one in float.
static inline vf erf(vf x) {
    const vf limit = set1(4.0f);
    vf c = select(x < -limit, -limit, x);
    c = select(c > limit, limit, c);
    const vf z = c * c;
    vf p = set1(-2.72614225801306e-10f);
    p = fma(p, z, set1(2.77068142495902e-08f));
    p = fma(p, z, set1(-2.10102402082508e-06f));
    p = fma(p, z, set1(-5.69250639462346e-05f));
    p = fma(p, z, set1(-7.34990630326855e-04f));
    p = fma(p, z, set1(-2.95459980854025e-03f));
    p = fma(p, z, set1(-1.60960333262415e-02f));
    vf q = set1(-1.45660718464996e-05f);
    q = fma(q, z, set1(-2.13374055278905e-04f));
    q = fma(q, z, set1(-1.68282697438203e-03f));
    q = fma(q, z, set1(-7.37332916720468e-03f));
    q = fma(q, z, set1(-1.42647390514189e-02f));
    return c * p / q;
}

}  // namespace stentor
