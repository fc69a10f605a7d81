// A depthwise causal convolution, vectors of channels at a time; see reference.py.
#include "../activation/gates.h"
#include "parallel.h"
#include "state_rows.h"

#include <algorithm>

namespace stentor {
namespace {

constexpr int64_t BLOCK = 512;  // channels of an item: a multiple of the lanes

template <class T>
struct Shape {
    const T *x, *weight, *bias;
    T* out;
    int64_t x_stride, channels;
    bool silu;
};

// Transposes n adjacent groups of W elements to `columns` [W, n].
template <int W, class T>
void split_groups(const T* from, int64_t n, vf* columns) {
    float together[W * LANES] = {}, apart[W][LANES];
    if (n == LANES)
        for (int i = 0; i < W; ++i) store(together + i * LANES, load(from + i * LANES));
    else
        for (int64_t i = 0; i < n * W; ++i) together[i] = widen(from[i]);
    for (int lane = 0; lane < LANES; ++lane)
        for (int i = 0; i < W; ++i) apart[i][lane] = together[lane * W + i];
    for (int i = 0; i < W; ++i) columns[i] = load(apart[i]);
}

// The inverse.
template <int W, class T>
void join_groups(const vf* columns, int64_t n, T* to) {
    float together[W * LANES], apart[W][LANES];
    for (int i = 0; i < W; ++i) store(apart[i], columns[i]);
    for (int lane = 0; lane < LANES; ++lane)
        for (int i = 0; i < W; ++i) together[lane * W + i] = apart[i][lane];
    if (n == LANES)
        for (int i = 0; i < W; ++i) store(to + i * LANES, load(together + i * LANES));
    else
        for (int64_t i = 0; i < n * W; ++i) narrow(together[i], to + i);
}

// Runs `n` channels, from `channel` on, through the tokens [first, end); `from` (null: zeros) and `to` (null: not stored) are
// their last W - 1 inputs before and after, stored as S.
template <int W, class T, class S>
void run_channels(const Shape<T>& s, int64_t first, int64_t end, int64_t channel, int64_t n, const S* from, S* to) {
    vf weight[W], last[W] = {}, bias = {};
    split_groups<W>(s.weight + channel * W, n, weight);
    if (from) split_groups<W - 1>(from, n, last);
    const bool whole = n == LANES;
    if (s.bias) bias = whole ? load(s.bias + channel) : load_part(s.bias + channel, n);
    for (int64_t token = first; token < end; ++token) {
        const T* x = s.x + token * s.x_stride + channel;
        last[W - 1] = whole ? load(x) : load_part(x, n);
        vf sum = bias;
        for (int j = 0; j < W; ++j) sum = fma(last[j], weight[j], sum);
        for (int j = 0; j < W - 1; ++j) last[j] = last[j + 1];
        if constexpr (!std::is_same_v<S, T>) last[W - 2] = kept_as<S>(last[W - 2]);
        if (s.silu) sum = Silu::apply(sum);
        T* out = s.out + token * s.channels + channel;
        if (whole)
            store(out, sum);
        else
            store_part(out, sum, n);
    }
    if (to) join_groups<W - 1>(last, n, to);
}

template <int W, class T, class S>
void convolve(const Shape<T>& s, S* state, const StateRows& rows, int64_t threads) {
    const int64_t blocks = (s.channels + BLOCK - 1) / BLOCK, size = s.channels * (W - 1);
    parallel_for(rows.count * blocks, threads, [&](int64_t item) {
        const int64_t row = item / blocks, begin = item % blocks * BLOCK, end = std::min(begin + BLOCK, s.channels);
        const int64_t read = rows.reads[row], write = rows.writes[row];
        for (int64_t channel = begin; channel < end; channel += LANES)
            run_channels<W>(s, rows.starts[row], rows.starts[row + 1], channel, std::min<int64_t>(LANES, end - channel),
                            read < 0 ? nullptr : state + read * size + channel * (W - 1),
                            write < 0 ? nullptr : state + write * size + channel * (W - 1));
    });
}

// Returns -1; or the first row whose tokens or slots are out of range, and writes nothing.
template <class T, class S>
int64_t causal_conv(const Shape<T>& s, S* state, const StateRows& rows, int64_t slots, int64_t tokens, int64_t width,
                    int64_t threads) {
    const int64_t bad = rows.misfit(slots, tokens);
    if (bad >= 0) return bad;
    if (width == 2) convolve<2>(s, state, rows, threads);
    if (width == 3) convolve<3>(s, state, rows, threads);
    if (width == 4) convolve<4>(s, state, rows, threads);
    return -1;
}

}  // namespace
}  // namespace stentor

using namespace stentor;

// `width`: 2 to 4.
#define CAUSAL_CONV(NAME, T)                                                                                           \
    STENTOR_EXPORT int64_t NAME(const T* x, const T* weight, const T* bias, void* state, T* out,                       \
                                const int32_t* starts,                                                                 \
                                const int64_t* reads, const int64_t* writes, int64_t rows, int64_t slots,              \
                                int64_t tokens, int64_t x_stride, int64_t channels, int64_t width, int32_t silu,       \
                                int32_t state_dtype, int64_t threads) {                                                \
        const Shape<T> shape = {x, weight, bias, out, x_stride, channels, silu != 0};                                  \
        return with_state(state, state_dtype, [&](auto* kept) {                                                        \
            return causal_conv(shape, kept, {starts, reads, writes, rows}, slots, tokens, width, threads);             \
        });                                                                                                            \
    }

CAUSAL_CONV(stentor_causal_conv_f32, float)
CAUSAL_CONV(stentor_causal_conv_bf16, bf16)
