// Operations on one row at a time.
#pragma once

#include "../norm/layer.h"
#include "../norm/rms.h"
#include "codes.h"
#include "float8.h"
#include "program.h"
#include "vec.h"

#include <cmath>
#include <type_traits>

namespace stentor {

// to = x / rms(x) * weight; `to` may be x.
static inline void norm_row(const float* x, const float* weight, float eps, int64_t width, float* to) {
    const float factor = inverse_rms(x, width, eps);
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) store(to + i, load(x + i) * set1(factor) * load(weight + i));
    for (; i < width; ++i) to[i] = x[i] * factor * weight[i];
}

static inline void add_row(float* x, const float* delta, float scale, int64_t width) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) store(x + i, load(x + i) + load(delta + i) * set1(scale));
    for (; i < width; ++i) x[i] += delta[i] * scale;
}

// Rotates each pair (2i, 2i + 1) of a head by the angle of its position.
static inline void turn_pairs(float* head, const float* cos, const float* sin, int64_t half) {
    for (int64_t i = 0; i < half; ++i) {
        const float a = head[2 * i], b = head[2 * i + 1];
        head[2 * i] = a * cos[i] - b * sin[i];
        head[2 * i + 1] = b * cos[i] + a * sin[i];
    }
}

// Rotates each pair (i, i + half) of a head by the angle of its position.
static inline void turn_head(float* head, const float* cos, const float* sin, int64_t half) {
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        const vf a = load(head + i), b = load(head + half + i), c = load(cos + i), s = load(sin + i);
        store(head + i, a * c - b * s);
        store(head + half + i, b * c + a * s);
    }
    for (; i < half; ++i) {
        const float a = head[i], b = head[half + i];
        head[i] = a * cos[i] - b * sin[i];
        head[half + i] = b * cos[i] + a * sin[i];
    }
}

// Norms (if weights are given) and rotates the heads of one token, in this order or the other. Scales those of q
// (if scales are given).
static inline void rotate_token(const Instruction& op, float* row, int64_t position) {
    const float *cos = op.cos + position * op.half, *sin = op.sin + position * op.half;
    const int64_t dim = op.dim;
    for (int64_t h = 0; h < op.heads + op.kv_heads; ++h) {
        float* const head = row + h * dim;
        const float* weight = h < op.heads ? op.norm : op.second_norm;
        if (weight && !op.rotated_first) norm_row(head, weight, (float)op.eps, dim, head);
        op.interleaved ? turn_pairs(head, cos, sin, op.half) : turn_head(head, cos, sin, op.half);
        if (weight && op.rotated_first) norm_row(head, weight, (float)op.eps, dim, head);
        if (op.query_scales && h < op.heads)
            for (int64_t d = 0; d < dim; ++d) head[d] *= op.query_scales[position];
    }
}

// Writes K and V of a rotated token to the cache.
template <class T>
static void write_token(const Instruction& op, const float* row, int64_t slot) {
    const int64_t dim = op.dim, size = op.block_size, block = slot / size, offset = slot % size;
    const float *k = row + op.heads * dim, *v = k + op.kv_heads * dim;
    for (int64_t h = 0; h < op.kv_heads; ++h) {
        const int64_t place = block * op.kv_heads + h, at = place * size + offset;
        T* keys = (T*)op.k_cache + place * dim * size + offset;
        T* values = (T*)op.v_cache + at * dim;
        if constexpr (std::is_same<T, i8>::value) {
            op.k_scales[at] = put_codes(k + h * dim, dim, keys, size);
            op.v_scales[at] = put_codes(v + h * dim, dim, values, 1);
        } else if constexpr (std::is_same<T, e4m3>::value) {
            put_codes(k + h * dim, dim, op.k_scales[h], keys, size);
            put_codes(v + h * dim, dim, op.v_scales[h], values, 1);
        } else {
            int64_t d = 0;
            for (; d + LANES <= dim; d += LANES) {
                T some[LANES];
                store(some, load(k + h * dim + d));
                for (int i = 0; i < LANES; ++i) keys[(d + i) * size] = some[i];
                store(values + d, load(v + h * dim + d));
            }
            for (; d < dim; ++d) narrow(k[h * dim + d], keys + d * size), narrow(v[h * dim + d], values + d);
        }
    }
}

}  // namespace stentor
