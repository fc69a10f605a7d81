// The gated delta rule token by token; see reference.py. Columns of a head's state are independent. Each is computed by the
// same operations in the same order, in any tile and however a prompt is cut.
#include "parallel.h"
#include "simd_math.h"
#include "state_rows.h"

#include <algorithm>
#include <vector>

namespace stentor {
namespace {

constexpr int64_t MAX_K_DIM = 256;
constexpr int64_t BLOCK = 32;  // tokens whose queries and keys are widened and normed at once
constexpr int WIDE = LANES == 16 ? 8 : 4;  // vectors of columns if the state is read once, in long runs
constexpr int NARROW = 2;                  // the same if it is read for each token: the tile stays in the L1 cache
constexpr float L2_EPS = 1e-6f;

template <class T>
struct Shape {
    const T *q, *k, *v;
    const float *decay, *beta;
    T* out;
    int64_t q_stride, k_stride, v_stride, k_heads, v_heads, k_dim, v_dim;
    float scale;
    bool l2norm;
};

// Normed queries and keys, and factors, of some tokens of one head.
struct Block {
    alignas(64) float q[BLOCK][MAX_K_DIM];
    alignas(64) float k[BLOCK][MAX_K_DIM];
    alignas(64) float channels[BLOCK][MAX_K_DIM];  // BY_CHANNEL: the factor of each, and keys times these
    alignas(64) float asked[BLOCK][MAX_K_DIM];
    float decay[BLOCK], beta[BLOCK];  // BY_CHANNEL: decay is one
    int64_t tokens;
};

// BY_CHANNEL, here and below: each channel of a key has a decay.
template <bool BY_CHANNEL, class T>
void prepare(const Shape<T>& s, int64_t head, int64_t first, int64_t tokens, Block& block) {
    const int64_t k_head = head / (s.v_heads / s.k_heads);
    block.tokens = tokens;
    for (int64_t i = 0; i < tokens; ++i) {
        const int64_t token = first + i;
        const float q_squares = widen_row(s.q + token * s.q_stride + k_head * s.k_dim, block.q[i], s.k_dim);
        const float k_squares = widen_row(s.k + token * s.k_stride + k_head * s.k_dim, block.k[i], s.k_dim);
        if (s.l2norm) {
            scale_row(block.q[i], 1.0f / std::sqrt(q_squares + L2_EPS), s.k_dim);
            scale_row(block.k[i], 1.0f / std::sqrt(k_squares + L2_EPS), s.k_dim);
        }
        const int64_t factor = token * s.v_heads + head;
        block.beta[i] = s.beta[factor];
        if constexpr (BY_CHANNEL) {
            const float* own = s.decay + factor * s.k_dim;
            for (int64_t j = 0; j < s.k_dim; j += LANES) {
                const vf decay = exp(j + LANES <= s.k_dim ? load(own + j) : load_part(own + j, s.k_dim - j));
                store(block.channels[i] + j, decay);
                store(block.asked[i] + j, decay * load(block.k[i] + j));
            }
            block.decay[i] = 1.0f;
        } else {
            block.decay[i] = std::exp(s.decay[factor]);
        }
    }
}

// beta (v - decay · found): the update of the columns from `column` on.
template <int N, class T>
static inline void changes(const T* v, int64_t columns, float decay, float beta, const vf* found, vf* change) {
    for (int j = 0; j < N; ++j) {
        const int64_t left = columns - j * LANES;
        const vf value = left >= LANES ? load(v + j * LANES) : left > 0 ? load_part(v + j * LANES, left) : vf{};
        change[j] = set1(beta) * (value - set1(decay) * found[j]);
    }
}

template <int N, class T>
static inline void store_out(T* out, int64_t columns, float scale, const vf* sums) {
    for (int j = 0; j < N; ++j) {
        const int64_t left = columns - j * LANES;
        if (left >= LANES)
            store(out + j * LANES, set1(scale) * sums[j]);
        else if (left > 0)
            store_part(out + j * LANES, set1(scale) * sums[j], left);
    }
}

// Runs N vectors of columns, of which `columns` exist, through the tokens of a block, from one state to another or the same.
// S is the stored type of states. After the first token, one pass applies a token's update and reads for the next.
template <bool BY_CHANNEL, int N, class T, class S>
void walk(const Shape<T>& s, const Block& block, int64_t first, int64_t head, int64_t column, int64_t columns,
          const S* from, S* to, int64_t stride) {
    const auto* const asked = BY_CHANNEL ? block.asked : block.k;
    vf found[N] = {}, change[N];
    for (int64_t i = 0; i < s.k_dim; ++i)
        for (int j = 0; j < N; ++j) found[j] = fma(set1(asked[0][i]), load(from + i * stride + j * LANES), found[j]);
    for (int64_t t = 0; t < block.tokens; ++t) {
        const int64_t token = first + t;
        changes<N>(s.v + token * s.v_stride + head * s.v_dim + column, columns, block.decay[t], block.beta[t], found,
                   change);
        vf sums[N] = {};
        const vf alike = set1(block.decay[t]);
        const float *q = block.q[t], *k = block.k[t], *apart = block.channels[t];
        const auto pass = [&](const auto& ask) {
            for (int64_t i = 0; i < s.k_dim; ++i) {
                const vf decay = BY_CHANNEL ? set1(apart[i]) : alike;
                for (int j = 0; j < N; ++j) {
                    const int64_t at = i * stride + j * LANES;
                    const vf value = kept_as<S>(fma(set1(k[i]), change[j], decay * load(from + at)));
                    sums[j] = fma(set1(q[i]), value, sums[j]);
                    store(to + at, value);
                    ask(i, j, value);
                }
            }
        };
        if (t + 1 < block.tokens) {
            const float* next = asked[t + 1];
            for (int j = 0; j < N; ++j) found[j] = vf{};
            pass([&](int64_t i, int j, vf value) { found[j] = fma(set1(next[i]), value, found[j]); });
        } else {
            pass([](int64_t, int, vf) {});
        }
        store_out<N>(s.out + (token * s.v_heads + head) * s.v_dim + column, columns, s.scale, sums);
        from = to;
    }
}

// The same for any columns of `state`, in a contiguous copy.
template <bool BY_CHANNEL, class T, class S>
void walk_copied(const Shape<T>& s, const Block& block, int64_t first, int64_t head, int64_t column, S* state) {
    constexpr int64_t WIDTH = NARROW * LANES;
    alignas(64) S tile[MAX_K_DIM * WIDTH];
    const int64_t columns = std::min(WIDTH, s.v_dim - column);
    if (columns < WIDTH) std::fill(tile, tile + s.k_dim * WIDTH, S{});
    S* const at = state + column;
    for (int64_t i = 0; i < s.k_dim; ++i) std::copy_n(at + i * s.v_dim, columns, tile + i * WIDTH);
    walk<BY_CHANNEL, NARROW>(s, block, first, head, column, columns, tile, tile, WIDTH);
    for (int64_t i = 0; i < s.k_dim; ++i) std::copy_n(tile + i * WIDTH, columns, at + i * s.v_dim);
}

// Runs all tokens of a row, [first, end), through one head; `from` is its state before (null: zeros), `to` after.
template <bool BY_CHANNEL, class T, class S>
void run_head(const Shape<T>& s, int64_t first, int64_t end, int64_t head, const S* from, S* to) {
    const int64_t size = s.k_dim * s.v_dim;
    Block block;
    int64_t column = 0;
    if (from && end - first == 1) {  // nothing is copied
        prepare<BY_CHANNEL>(s, head, first, 1, block);
        for (; column + WIDE * LANES <= s.v_dim; column += WIDE * LANES)
            walk<BY_CHANNEL, WIDE>(s, block, first, head, column, WIDE * LANES, from + column, to + column, s.v_dim);
        if (column == s.v_dim) return;
        if (from != to)
            for (int64_t i = 0; i < s.k_dim; ++i)
                std::copy(from + i * s.v_dim + column, from + (i + 1) * s.v_dim, to + i * s.v_dim + column);
        for (; column < s.v_dim; column += NARROW * LANES) walk_copied<BY_CHANNEL>(s, block, first, head, column, to);
        return;
    }
    if (!from)
        std::fill(to, to + size, S{});
    else if (from != to)
        std::copy_n(from, size, to);
    for (; first < end; first += BLOCK) {
        prepare<BY_CHANNEL>(s, head, first, std::min(BLOCK, end - first), block);
        for (column = 0; column < s.v_dim; column += NARROW * LANES)
            walk_copied<BY_CHANNEL>(s, block, first, head, column, to);
    }
}

// Returns -1; or the first row whose tokens or slots are out of range, and writes nothing.
template <bool BY_CHANNEL, class T, class S>
int64_t gated_delta(const Shape<T>& s, S* state, const StateRows& rows, int64_t slots, int64_t tokens,
                    int64_t threads) {
    const int64_t bad = rows.misfit(slots, tokens);
    if (bad >= 0) return bad;
    const int64_t size = s.k_dim * s.v_dim;
    parallel_for(rows.count * s.v_heads, threads, [&](int64_t item) {
        const int64_t row = item / s.v_heads, head = item % s.v_heads;
        const int64_t read = rows.reads[row], write = rows.writes[row];
        const S* from = read < 0 ? nullptr : state + (read * s.v_heads + head) * size;
        thread_local std::vector<S> nowhere;
        if (write < 0 && (int64_t)nowhere.size() < size) nowhere.resize((size_t)size);
        S* to = write < 0 ? nowhere.data() : state + (write * s.v_heads + head) * size;
        run_head<BY_CHANNEL>(s, rows.starts[row], rows.starts[row + 1], head, from, to);
    });
    return -1;
}

}  // namespace
}  // namespace stentor

using namespace stentor;

#define GATED_DELTA(NAME, T)                                                                                           \
    STENTOR_EXPORT int64_t NAME(const T* q, const T* k, const T* v, const float* decay, const float* beta,             \
                                void* state, T* out, const int32_t* starts, const int64_t* reads,                      \
                                const int64_t* writes, int64_t rows, int64_t slots, int64_t tokens, int64_t q_stride,  \
                                int64_t k_stride, int64_t v_stride, int64_t k_heads, int64_t v_heads, int64_t k_dim,   \
                                int64_t v_dim, float scale, int32_t l2norm, int32_t by_channel, int32_t state_dtype,   \
                                int64_t threads) {                                                                     \
        const Shape<T> shape = {q,        k,       v,       decay, beta,  out,   q_stride,   k_stride,                 \
                                v_stride, k_heads, v_heads, k_dim, v_dim, scale, l2norm != 0};                         \
        return with_state(state, state_dtype, [&](auto* kept) {                                                        \
            const StateRows all = {starts, reads, writes, rows};                                                       \
            return by_channel ? gated_delta<true>(shape, kept, all, slots, tokens, threads)                            \
                              : gated_delta<false>(shape, kept, all, slots, tokens, threads);                          \
        });                                                                                                            \
    }

GATED_DELTA(stentor_gated_delta_f32, float)
GATED_DELTA(stentor_gated_delta_bf16, bf16)
