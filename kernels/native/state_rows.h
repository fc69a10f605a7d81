// Rows of a batch and the slots of their states; see state_rows.py.
#pragma once

#include "half.h"

#include <type_traits>

namespace stentor {

struct StateRows {
    const int32_t* starts;  // [count + 1]
    const int64_t* reads;   // [count]; -1: zeros
    const int64_t* writes;  // [count]; -1: nowhere
    int64_t count;

    // Returns the first row with tokens or slots out of range; -1 if there is none.
    int64_t misfit(int64_t slots, int64_t tokens) const {
        for (int64_t row = 0; row < count; ++row) {
            const bool inside = 0 <= starts[row] && starts[row] <= starts[row + 1] && starts[row + 1] <= tokens;
            if (!inside || reads[row] < -1 || reads[row] >= slots || writes[row] < -1 || writes[row] >= slots) return row;
        }
        return -1;
    }
};

// Rounds x to the state's type S after every token, so that bits do not depend on how a prompt is chunked.
template <class S>
static inline vf kept_as(vf x) {
    if constexpr (std::is_same_v<S, float>) {
        return x;
    } else {
        S kept[LANES];
        store(kept, x);
        return load(kept);
    }
}

// Calls `run` with the state as its type: float32, bfloat16 or float16, as StateRows.state_dtype numbers them.
template <class F>
static inline int64_t with_state(void* state, int32_t dtype, const F& run) {
    if (dtype == 1) return run((bf16*)state);
    if (dtype == 2) return run((f16*)state);
    return run((float*)state);
}

// Copies x[0, n) as floats to `to`, zero-padded to a whole vector; returns the sum of their
// squares.
template <class T>
static inline float widen_row(const T* x, float* to, int64_t n) {
    vf squares = {};
    for (int64_t i = 0; i < n; i += LANES) {
        const vf v = i + LANES <= n ? load(x + i) : load_part(x + i, n - i);
        store(to + i, v);
        squares = fma(v, v, squares);
    }
    return hsum(squares);
}

static inline void scale_row(float* x, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) store(x + i, load(x + i) * set1(factor));
}

}  // namespace stentor
