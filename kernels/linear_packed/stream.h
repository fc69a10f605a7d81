// Shared by all products: where prepared rows are, and how far ahead of a stream of weights to
// prefetch.
#pragma once

#include "packed.h"

namespace stentor {

// Rows that are already in the format that the weight takes.
struct Prepared {
    const uint8_t* rows;
    int64_t stride;                  // bytes, of rows that are expanded as of those that are not
    const int32_t* index = nullptr;  // index among `rows` of each row; null: its own number
    bool expands = false;  // rows are bfloat16, and codes that they meet are expanded to it (expand.h)

    const uint8_t* at(int64_t row) const { return rows + (index ? index[row] : row) * stride; }
    // Returns the bytes of a row that are read.
    int64_t bytes(int64_t inputs) const { return expands ? prepared_stride(ActivationFormat::BF16, inputs) : stride; }
    // Returns the same rows for weights that have been expanded.
    Prepared unexpanded() const { return {rows, stride, index}; }
};

constexpr int64_t AHEAD = 2048;  // bytes prefetched ahead of a stream of weights
constexpr int64_t CODES_AHEAD = 4096;  // the same for codes, whose tiles are shorter and pass sooner

static inline void fetch(const uint8_t* p, int64_t ahead = AHEAD) { __builtin_prefetch(p + ahead, 0, 2); }

// The destination of products: float [rows, stride]; the `skip` floats before `out` do not exist.
struct Destination {
    float* out;
    int64_t stride;
    const float* bias;  // [outputs] or null
    int64_t skip = 0;

    float* at(int64_t row, int64_t column) const { return out + (row * stride + column - skip); }
    // Returns the destination of the products from `column` on.
    Destination from(int64_t column) const { return {out, stride, bias ? bias + column : nullptr, skip - column}; }
};

// Prefetches the cache lines that R rows of T tiles are written to: each write would otherwise wait for its
// line.
template <int R, int T>
static inline void expect(const Destination& to, int64_t row, int64_t column) {
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) __builtin_prefetch(to.at(row + r, column + t * TILE), 1);
}

// Loads the sums of one register's outputs, of which `outputs` exist. By itself, as is `put`: both have a case for what is
// cut off, and kernels call them for each of their sums.
__attribute__((noinline)) static inline vf sums_so_far(const Destination& to, int64_t row, int64_t column,
                                                          int64_t outputs) {
    const float* at = to.at(row, column);
    if (column + LANES <= outputs) return load(at);
    return column < outputs ? load_part(at, outputs - column) : vf{};
}

__attribute__((noinline)) static inline void put(const Destination& to, int64_t row, int64_t column, int64_t outputs,
                                                    vf sums, bool last) {
    const float* bias = last && to.bias ? to.bias + column : nullptr;
    float* at = to.at(row, column);
    if (column + LANES <= outputs) {
        store(at, bias ? sums + load(bias) : sums);
    } else if (column < outputs) {
        store_part(at, bias ? sums + load_part(bias, outputs - column) : sums, outputs - column);
    }
}

}  // namespace stentor
