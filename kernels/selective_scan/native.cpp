// The selective scan of Mamba token by token; see reference.py. Channels are independent: each is a lane of vectors, computed
// by the same operations in the same order, in any lane and however a prompt is cut.
#include "../activation/gates.h"
#include "parallel.h"
#include "state_rows.h"

#include <algorithm>

namespace stentor {
namespace {

constexpr int64_t MAX_STATE_DIM = 256;
constexpr int64_t CHANNELS = 64;  // channels of one pass, a multiple of LANES

template <class T>
struct Shape {
    const T *x, *gate, *dt, *B, *C;
    const float *bias, *A, *D;
    T* out;
    int64_t x_stride, gate_stride, dt_stride, B_stride, C_stride, channels, state_dim;
};

// Rates and states of some channels, padded with zeros.
struct Block {
    alignas(64) float A[MAX_STATE_DIM][CHANNELS];
    alignas(64) float state[MAX_STATE_DIM][CHANNELS];
};

// How many of n channels the next vector holds.
template <class T>
vf load_some(const T* x, int64_t n) {
    return n >= LANES ? load(x) : load_part(x, n);
}

template <class T>
void store_some(T* x, vf value, int64_t n) {
    if (n >= LANES)
        store(x, value);
    else
        store_part(x, value, n);
}

// log(1 + e^x). With t = e^-|x|, log(1 + t) is twice the inverse hyperbolic tangent of t / (2 + t), at most a third.
vf softplus(vf x) {
    const vf t = exp(-abs(x)), s = t / (t + set1(2.0f)), z = s * s;
    vf p = set1(2.0f / 15);
    for (int odd = 13; odd > 0; odd -= 2) p = fma(p, z, set1(2.0f / odd));
    return fma(p, s, vmax(x, vf{}));
}

// Runs a token through channels [channel, channel + n), at most a vector, at the block's columns from `column` on.
template <class S, class T>
void walk(const Shape<T>& s, Block& block, int64_t token, int64_t channel, int64_t column, int64_t n) {
    const vf x = load_some(s.x + token * s.x_stride + channel, n);
    const vf step = softplus(load_some(s.dt + token * s.dt_stride + channel, n) + load_some(s.bias + channel, n));
    const T *B = s.B + token * s.B_stride, *C = s.C + token * s.C_stride;
    const vf added = step * x;
    vf sum = {};
    for (int64_t i = 0; i < s.state_dim; ++i) {
        float* place = block.state[i] + column;
        const vf decay = exp(step * load(block.A[i] + column));
        const vf value = kept_as<S>(fma(added, set1(widen(B[i])), decay * load(place)));
        sum = fma(value, set1(widen(C[i])), sum);
        store(place, value);
    }
    sum = fma(load_some(s.D + channel, n), x, sum) * Silu::apply(load_some(s.gate + token * s.gate_stride + channel, n));
    store_some(s.out + token * s.channels + channel, sum, n);
}

// Runs all tokens of a row, [first, end), through channels [channel, channel + count); `from` is their state before (null:
// zeros), `to` after (null: not stored).
template <class S, class T>
void run_block(const Shape<T>& s, int64_t first, int64_t end, int64_t channel, int64_t count, const S* from, S* to) {
    Block block;
    for (int64_t i = 0; i < s.state_dim; ++i)
        for (int64_t column = 0; column < count; column += LANES) {
            const int64_t at = i * s.channels + channel + column;
            store(block.A[i] + column, load_some(s.A + at, count - column));
            store(block.state[i] + column, from ? load_some(from + at, count - column) : vf{});
        }
    for (int64_t token = first; token < end; ++token)
        for (int64_t column = 0; column < count; column += LANES)
            walk<S>(s, block, token, channel + column, column, count - column);
    if (!to) return;
    for (int64_t i = 0; i < s.state_dim; ++i)
        for (int64_t column = 0; column < count; column += LANES)
            store_some(to + i * s.channels + channel + column, load(block.state[i] + column), count - column);
}

// Returns -1; or the first row whose tokens or slots are out of range, and writes nothing.
template <class T, class S>
int64_t selective_scan(
    const Shape<T>& s, S* state, const StateRows& rows, int64_t slots, int64_t tokens, int64_t threads) {
    const int64_t bad = rows.misfit(slots, tokens);
    if (bad >= 0) return bad;
    const int64_t size = s.channels * s.state_dim, blocks = (s.channels + CHANNELS - 1) / CHANNELS;
    parallel_for(rows.count * blocks, threads, [&](int64_t item) {
        const int64_t row = item / blocks, channel = item % blocks * CHANNELS;
        const int64_t read = rows.reads[row], write = rows.writes[row];
        const S* from = read < 0 ? nullptr : state + read * size;
        S* to = write < 0 ? nullptr : state + write * size;
        run_block(
            s, rows.starts[row], rows.starts[row + 1], channel, std::min(CHANNELS, s.channels - channel), from, to);
    });
    return -1;
}

}  // namespace
}  // namespace stentor

using namespace stentor;

#define SELECTIVE_SCAN(NAME, T)                                                                                        \
    STENTOR_EXPORT int64_t NAME(                                                                                       \
        const T* x, const T* gate, const T* dt, const float* bias, const float* A, const T* B, const T* C,             \
        const float* D, void* state, T* out, const int32_t* starts, const int64_t* reads, const int64_t* writes,       \
        int64_t rows, int64_t slots, int64_t tokens, int64_t x_stride, int64_t gate_stride, int64_t dt_stride,         \
        int64_t B_stride, int64_t C_stride, int64_t channels, int64_t state_dim, int32_t state_dtype,                  \
        int64_t threads) {                                                                                             \
        const Shape<T> shape = {x,        gate,        dt,        B,        C,        bias,     A,        D, out,      \
                                x_stride, gate_stride, dt_stride, B_stride, C_stride, channels, state_dim};            \
        return with_state(state, state_dtype, [&](auto* kept) {                                                        \
            return selective_scan(shape, kept, {starts, reads, writes, rows}, slots, tokens, threads);                 \
        });                                                                                                            \
    }

SELECTIVE_SCAN(stentor_selective_scan_f32, float)
SELECTIVE_SCAN(stentor_selective_scan_bf16, bf16)
