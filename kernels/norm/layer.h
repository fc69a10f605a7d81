// The layer norm of a row.
#pragma once

#include "vec.h"

#include <cmath>

namespace stentor {

// f(begin, vector of x[begin:]) for each vector of a row; the last may be part of one, with zeros after.
template <class T, class F>
static inline void each_vector(const T* x, int64_t width, F f) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) f(i, load(x + i), LANES);
    if (i < width) f(i, load_part(x + i, width - i), width - i);
}

// out = (x - mean(x)) / deviation(x) * weight + bias; the bias may be null; `out` may be x. A program and the operation
// share it, so that a value has the same bits for an instruction and for a call between stretches of a program.
template <class T>
static inline void layer_norm_row(const T* x, const T* weight, const T* bias, T* out, int64_t width, float eps) {
    vf sum = {};
    each_vector(x, width, [&](int64_t, vf v, int64_t) { sum += v; });
    const vf mean = set1(hsum(sum) / (float)width);
    vf squares = {};
    each_vector(x, width, [&](int64_t, vf v, int64_t n) {
        vf apart = v - mean;
        if (n < LANES) {
            float rest[LANES] = {};
            store_part(rest, apart, n);
            apart = load(rest);
        }
        squares = fma(apart, apart, squares);
    });
    const vf factor = set1(1.0f / std::sqrt(hsum(squares) / (float)width + eps));
    each_vector(x, width, [&](int64_t i, vf v, int64_t n) {
        const vf normed = (v - mean) * factor, w = n < LANES ? load_part(weight + i, n) : load(weight + i);
        const vf added = !bias ? vf{} : n < LANES ? load_part(bias + i, n) : load(bias + i);
        const vf y = fma(normed, w, added);
        if (n < LANES)
            store_part(out + i, y, n);
        else
            store(out + i, y);
    });
}

}  // namespace stentor
