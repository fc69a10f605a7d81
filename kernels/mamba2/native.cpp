// The state space of Mamba-2 token by token; see reference.py. Rows of a head's state, one for each dim, are independent.
// Each is computed by the same operations in the same order, however a prompt is cut.
#include "parallel.h"
#include "state_rows.h"

#include <algorithm>
#include <vector>

namespace stentor {
namespace {

constexpr int64_t MAX_STATE_DIM = 256;
constexpr int64_t BLOCK = 16;  // tokens whose B and C are widened at once
constexpr int TOGETHER = 4;    // dims of a head that share a load of B and C

template <class T>
struct Shape {
    const T *x, *B, *C;
    const float *dt, *A, *D;
    T* out;
    int64_t x_stride, B_stride, C_stride, heads, groups, head_dim, state_dim;
};

// Inputs of some tokens of one head.
struct Block {
    alignas(64) float B[BLOCK][MAX_STATE_DIM];
    alignas(64) float C[BLOCK][MAX_STATE_DIM];
    float dt[BLOCK], decay[BLOCK];
    int64_t tokens;
};

template <class T>
void prepare(const Shape<T>& s, int64_t head, int64_t first, int64_t tokens, Block& block) {
    const int64_t group = head / (s.heads / s.groups);
    block.tokens = tokens;
    for (int64_t i = 0; i < tokens; ++i) {
        const int64_t token = first + i;
        widen_row(s.B + token * s.B_stride + group * s.state_dim, block.B[i], s.state_dim);
        widen_row(s.C + token * s.C_stride + group * s.state_dim, block.C[i], s.state_dim);
        block.dt[i] = s.dt[token * s.heads + head];
        block.decay[i] = std::exp(block.dt[i] * s.A[head]);
    }
}

// Runs N dims of a head, from `dim` on, through the tokens of a block; `from` and `to` are their states, stored as S.
template <int N, class T, class S>
void walk(const Shape<T>& s, const Block& block, int64_t first, int64_t head, int64_t dim, const S* from, S* to) {
    for (int64_t t = 0; t < block.tokens; ++t) {
        const int64_t token = first + t;
        const T* x = s.x + token * s.x_stride + head * s.head_dim + dim;
        vf added[N], sums[N] = {};
        float input[N];
        for (int j = 0; j < N; ++j) {
            input[j] = widen(x[j]);
            added[j] = set1(block.dt[t] * input[j]);
        }
        const vf decay = set1(block.decay[t]);
        int64_t i = 0;
        for (; i + LANES <= s.state_dim; i += LANES) {
            const vf B = load(block.B[t] + i), C = load(block.C[t] + i);
            for (int j = 0; j < N; ++j) {
                const vf value = kept_as<S>(fma(added[j], B, decay * load(from + j * s.state_dim + i)));
                sums[j] = fma(value, C, sums[j]);
                store(to + j * s.state_dim + i, value);
            }
        }
        if (const int64_t n = s.state_dim - i) {
            const vf B = load(block.B[t] + i), C = load(block.C[t] + i);
            for (int j = 0; j < N; ++j) {
                const vf value = kept_as<S>(fma(added[j], B, decay * load_part(from + j * s.state_dim + i, n)));
                sums[j] = fma(value, C, sums[j]);
                store_part(to + j * s.state_dim + i, value, n);
            }
        }
        T* out = s.out + (token * s.heads + head) * s.head_dim + dim;
        for (int j = 0; j < N; ++j) narrow(hsum(sums[j]) + s.D[head] * input[j], out + j);
        from = to;
    }
}

// Runs all tokens of a row, [first, end), through one head; `from` is its state before (null: zeros), `to` after.
template <class T, class S>
void run_head(const Shape<T>& s, int64_t first, int64_t end, int64_t head, const S* from, S* to) {
    const int64_t size = s.head_dim * s.state_dim;
    if (!from) std::fill(to, to + size, S{});
    if (first == end && from && from != to) std::copy_n(from, size, to);
    if (!from) from = to;
    Block block;
    for (; first < end; first += BLOCK) {
        prepare(s, head, first, std::min(BLOCK, end - first), block);
        int64_t dim = 0;  // states are read once for a single token, best in memory order
        for (; block.tokens > 1 && dim + TOGETHER <= s.head_dim; dim += TOGETHER)
            walk<TOGETHER>(s, block, first, head, dim, from + dim * s.state_dim, to + dim * s.state_dim);
        for (; dim < s.head_dim; ++dim)
            walk<1>(s, block, first, head, dim, from + dim * s.state_dim, to + dim * s.state_dim);
        from = to;
    }
}

// Returns -1; or the first row whose tokens or slots are out of range, and writes nothing.
template <class T, class S>
int64_t mamba2(const Shape<T>& s, S* state, const StateRows& rows, int64_t slots, int64_t tokens, int64_t threads) {
    const int64_t bad = rows.misfit(slots, tokens);
    if (bad >= 0) return bad;
    const int64_t size = s.head_dim * s.state_dim;
    parallel_for(rows.count * s.heads, threads, [&](int64_t item) {
        const int64_t row = item / s.heads, head = item % s.heads;
        const int64_t read = rows.reads[row], write = rows.writes[row];
        const S* from = read < 0 ? nullptr : state + (read * s.heads + head) * size;
        thread_local std::vector<S> nowhere;
        if (write < 0 && (int64_t)nowhere.size() < size) nowhere.resize((size_t)size);
        S* to = write < 0 ? nowhere.data() : state + (write * s.heads + head) * size;
        run_head(s, rows.starts[row], rows.starts[row + 1], head, from, to);
    });
    return -1;
}

}  // namespace
}  // namespace stentor

using namespace stentor;

#define MAMBA2(NAME, T)                                                                                                \
    STENTOR_EXPORT int64_t NAME(const T* x, const float* dt, const float* A, const T* B, const T* C, const float* D,   \
                                void* state, T* out, const int32_t* starts, const int64_t* reads,                      \
                                const int64_t* writes, int64_t rows, int64_t slots, int64_t tokens, int64_t x_stride,  \
                                int64_t B_stride, int64_t C_stride, int64_t heads, int64_t groups, int64_t head_dim,   \
                                int64_t state_dim, int32_t state_dtype, int64_t threads) {                             \
        const Shape<T> shape = {x,        B,        C,     dt,     A,        D,        out,                            \
                                x_stride, B_stride, C_stride, heads, groups, head_dim, state_dim};                     \
        return with_state(state, state_dtype, [&](auto* kept) {                                                        \
            return mamba2(shape, kept, {starts, reads, writes, rows}, slots, tokens, threads);                         \
        });                                                                                                            \
    }

MAMBA2(stentor_mamba2_f32, float)
MAMBA2(stentor_mamba2_bf16, bf16)
