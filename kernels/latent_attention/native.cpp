// Causal attention over a paged cache of latents, with an online softmax.
//
// All heads of a token see the same latents: they are the rows of one product with a tile, whose latents are used as keys
// and then, still in the cache, as values. Tiles of 64 latents, and parts of 512, begin at absolute positions. A row
// processes its parts, and the tiles of a part, in order: its result depends on its own position, query and latents, not on
// other rows or on which thread computed which part. On the processor's tiles several tokens share an item, because each
// item converts its values.
// If a token sees chosen latents only, chosen latent number i is at position i of its tiles.
#include "../attention/products.h"
#include "../attention/softmax.h"
#include "../linear/tiles.h"
#include "paged.h"
#include "parallel.h"
#include "tiled.h"

#include <new>
#include <type_traits>
#include <vector>

namespace stentor {
namespace {

using namespace attention;

constexpr int64_t PART = 512;       // latents of a partial sum
constexpr int64_t HEADS = 32;       // most heads of an item
constexpr int64_t TILED_ROWS = 64;  // most rows of an item of several tokens
constexpr int64_t SMALL = 1 << 17;  // multiply-adds below which a second thread does not pay
static_assert(RUN % products::GROUP == 0 && RUN == paged::RUN, "runs are whole groups of columns");

template <class T>
struct Call {
    const T* q;      // [tokens, heads, dim]
    const T* cache;  // [blocks, size, dim]
    T* out;          // [tokens, heads, rank]
    const float* sinks;     // [heads], scores without a value that take part in the softmax; null: none
    const int32_t* chosen;  // [tokens, most] positions, of which a token has `attended`; null: it sees all
    paged::Sequences batch;
    int64_t heads, dim, rank, most;
    int64_t pool;  // latents that are chosen together; those of a last incomplete pool are always chosen
    float scale;

    // How many of the latents that it sees a token attends to.
    int64_t attended(int64_t seen) const { return chosen ? std::min(seen, most - (pool - 1) + seen % pool) : seen; }
};

// Some heads of one token or several; `seen` is that of the last token.
struct Item {
    int64_t sequence, token, count, seen, first, last;

    int64_t heads() const { return last - first; }
    int64_t rows() const { return count * heads(); }
    int64_t parts() const { return (seen - 1) / PART + 1; }
    int64_t token_of(int64_t row) const { return row / heads(); }
    int64_t seen_by(int64_t row) const { return seen - (count - 1 - token_of(row)); }
    // Its row in queries and outputs.
    int64_t place(int64_t row, int64_t all_heads) const {
        return (token + token_of(row)) * all_heads + first + row % heads();
    }
};

template <class T>
bool on_tiles([[maybe_unused]] const Call<T>& c) {
#if defined(STENTOR_TILES)
    if constexpr (std::is_same_v<T, bf16>)
        return tiles::form() != tiles::Form::NONE && c.dim % latent::SUMMED == 0 && c.rank % latent::SUMMED == 0;
#endif
    return false;
}

// Rows with a state; on tiles, rounded up to whole tiles.
template <class T>
int64_t kept_rows(const Call<T>& c, int64_t rows) {
    return on_tiles(c) ? (rows + tiles::ROWS - 1) / tiles::ROWS * tiles::ROWS : rows;
}

template <class T>
using Kind = std::conditional_t<std::is_same_v<T, float>, products::Single, products::Brain>;

template <class T>
void accumulate(const Call<T>& c, int64_t rows, const float* weights, const T* const* runs, int64_t count,
                const Running& state) {
    by_rows<DEEP>(rows, [&](int64_t row, auto deep) {
        constexpr int R = decltype(deep)::value;
        const float* mine = weights + row * KEYS;
        float* to = state.sums + row * state.width;
        int64_t d = 0;
        for (; d + WIDE * LANES <= c.rank; d += WIDE * LANES)
            add_columns<R, WIDE>(mine, runs, c.dim, 0, count, d, LANES, to + d, state.width);
        for (; d < c.rank; d += LANES)
            add_columns<R, 1>(mine, runs, c.dim, 0, count, d, std::min<int64_t>(LANES, c.rank - d), to + d,
                              state.width);
    });
}

// Turns the products of one row with N latents, `count` of which it sees, into weights, in place.
template <int N>
void weigh_row(float* scores, int64_t count, float factor, const Running& state, int64_t row) {
    const vf by = set1(factor), start = set1(state.starts[row]);
    for (int64_t i = 0; i < N; i += LANES) store(scores + i, fma(load(scores + i), by, start));
    if (count < N) hide(scores, N, 0, count);
    weigh<N>(scores, scores, N, state, row, 1);
}

// Where the latents [key, key + count) of an item lie, in runs: in the cache, or copied to `room`.
template <class T>
void find_runs(const Call<T>& c, const Item& item, int64_t key, int64_t count, std::vector<T>& room, const T** runs) {
    if (!c.chosen) {
        for (int64_t at = 0; at < count; at += RUN)
            runs[at / RUN] = c.cache + c.batch.slot(item.sequence, key + at) * c.dim;
        return;
    }
    if ((int64_t)room.size() < KEYS * c.dim) room.resize(KEYS * c.dim);
    const int32_t* const chosen = c.chosen + item.token * c.most + key;
    for (int64_t at = 0; at < count; ++at)
        std::copy_n(c.cache + c.batch.slot(item.sequence, chosen[at]) * c.dim, c.dim, room.data() + at * c.dim);
    for (int64_t run = 0; run < RUNS; ++run) runs[run] = room.data() + run * RUN * c.dim;
}

#if defined(STENTOR_TILES)

template <class Tiles>
void attend_part_on_tiles(const Call<bf16>& c, const Item& item, int64_t part, const Running& state) {
    static thread_local std::vector<bf16> copies;
    const auto row_at = [&](int64_t row) {
        return row < item.rows() ? c.q + item.place(row, c.heads) * c.dim : nullptr;
    };
    latent::TiledRows<Tiles> rows(kept_rows(c, item.rows()), c.dim, c.rank, c.scale * LOG2E, state, row_at);
    const int64_t stop = std::min(item.seen, (part + 1) * PART);
    for (int64_t key = part * PART; key < stop; key += KEYS) {
        const int64_t count = std::min(KEYS, stop - key);
        const bf16* runs[RUNS];
        find_runs(c, item, key, count, copies, runs);
        for (int64_t run = (count + RUN - 1) / RUN; run < RUNS; ++run) runs[run] = runs[0];  // masked
        rows.meet(runs, count, [&](int64_t row) {
            return row < item.rows() ? std::min(count, item.seen_by(row) - key) : 0;
        });
    }
}

#endif

// Computes the softmax state of an item over the latents [part * PART, (part + 1) * PART).
template <class T>
void attend_part(const Call<T>& c, const Item& item, int64_t part, const Running& state) {
#if defined(STENTOR_TILES)
    if constexpr (std::is_same_v<T, bf16>)
        if (on_tiles(c) && tiles::with_tiles(
                               [&](auto of) { return attend_part_on_tiles<decltype(of)>(c, item, part, state), true; },
                               false))
            return;
#endif
    static thread_local std::vector<float> room;
    static thread_local std::vector<T> copies;
    const int64_t rows = item.rows();
    if ((int64_t)room.size() < rows * KEYS) room.resize(rows * KEYS);
    float* const scores = room.data();
    state.clear(rows);
    const T* const queries = c.q + (item.token * c.heads + item.first) * c.dim;
    const int64_t stop = std::min(item.seen, (part + 1) * PART);
    const float factor = c.scale * LOG2E;
    for (int64_t key = part * PART; key < stop; key += KEYS) {
        const int64_t count = std::min(KEYS, stop - key), used = (count + RUN - 1) / RUN;
        const T* runs[RUNS];
        find_runs(c, item, key, count, copies, runs);
        for (int64_t run = 0; run < used; ++run) {
            const products::Problem<T, float> p{queries, runs[run], nullptr, scores + run * RUN, rows, RUN,
                                                c.dim,   c.dim,     c.dim,   KEYS};
            for (int64_t column = 0; column < RUN; column += products::GROUP)
                products::groups<Kind<T>>(p, 0, rows, column);
        }
        for (int64_t row = 0; row < rows; ++row) {
            float* const mine = scores + row * KEYS;
            switch (used) {
                case 1: weigh_row<RUN>(mine, count, factor, state, row); break;
                case 2: weigh_row<2 * RUN>(mine, count, factor, state, row); break;
                case 3: weigh_row<3 * RUN>(mine, count, factor, state, row); break;
                default: weigh_row<4 * RUN>(mine, count, factor, state, row); break;
            }
        }
        accumulate(c, rows, scores, runs, count, state);
    }
}

// Divides by the sums of weights and writes the rows of the output.
template <class T>
void finish(const Call<T>& c, const Item& item, const Running& state) {
    for (int64_t row = 0; row < item.rows(); ++row) {
        T* const to = c.out + item.place(row, c.heads) * c.rank;
        float sum = hsum(load(state.totals + row * LANES));
        if (c.sinks)  // capped as in attend.h, to stay finite
            sum += exp2(set1(std::min(c.sinks[item.first + row % item.heads()] * LOG2E + state.starts[row], 126.0f)))[0];
        const vf total = set1(sum);
        for (int64_t d = 0; d < c.rank; d += LANES) {
            const vf mean = load(state.sums + row * state.width + d) / total;
            if (d + LANES <= c.rank)
                store(to + d, mean);
            else
                store_part(to + d, mean, c.rank - d);
        }
    }
}

// Joins the parts [0, parts) of an item; part(number) returns the state of one.
template <class T, class Part>
void join(const Call<T>& c, const Item& item, const Running& state, const Part& part) {
    const int64_t parts = item.parts();
    if (parts == 1) return finish(c, item, part(0));
    state.clear(item.rows());
    for (int64_t number = 0; number < parts; ++number) {
        const Running piece = part(number);
        for (int64_t row = 0; row < item.rows(); ++row) state.join(row, piece, row);
    }
    finish(c, item, state);
}

// The first sequence with a token that chose a latent which it does not see, or -1.
template <class T>
int64_t find_wrong_choice(const Call<T>& c) {
    int64_t fault = -1;
    if (c.chosen) c.batch.each_token([&](int64_t sequence, int64_t token, int64_t position) {
        const int32_t* const chosen = c.chosen + token * c.most;
        for (int64_t i = 0; fault < 0 && i < c.attended(position + 1); ++i)
            if (chosen[i] < 0 || chosen[i] > position) fault = sequence;
    });
    return fault;
}

// The items of all tokens, longest first, so that threads finish together.
template <class T>
std::vector<Item> items_of(const Call<T>& c, int64_t threads) {
    const int64_t pieces = (c.heads + HEADS - 1) / HEADS, each = (c.heads + pieces - 1) / pieces;
    const bool few = c.batch.tokens * pieces < 8 * threads;  // some threads would get none
    const int64_t together = on_tiles(c) && !c.chosen && !few ? std::max<int64_t>(1, TILED_ROWS / each) : 1;
    std::vector<Item> items;
    c.batch.each_span(together, [&](int64_t sequence, int64_t token, int64_t count, int64_t position) {
        const int64_t seen = c.attended(position + count);  // one token, if there are choices
        for (int64_t first = 0; first < c.heads; first += each)
            items.push_back({sequence, token, count, seen, first, std::min(first + each, c.heads)});
    });
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.seen > b.seen; });
    return items;
}

template <class T>
int64_t latent_attention(const Call<T>& c, int64_t threads) {
    int64_t fault = c.batch.find_fault();
    if (fault < 0) fault = find_wrong_choice(c);
    if (fault >= 0) return fault;
    const std::vector<Item> items = items_of(c, threads);
    const int64_t width = padded(c.rank);
    int64_t work = 0, most = 0;
    std::vector<int64_t> starts{0};  // index of each item's first part among all
    for (const Item& item : items) {
        work += item.seen * item.rows() * (c.dim + c.rank);
        most = std::max(most, kept_rows(c, item.rows()));
        starts.push_back(starts.back() + item.parts());
    }
    if (work < SMALL) threads = 1;
    const int64_t floats = Running::floats(most, width);
    if (threads > 1 && (int64_t)items.size() < 2 * threads && starts.back() > (int64_t)items.size()) {
        // parts of an item are computed by several threads
        Room room;
        float* const at = room.of<float>((starts.back() + (int64_t)items.size()) * floats);
        const auto state = [&](int64_t number) { return Running::at(at + number * floats, most, width); };
        parallel_for(starts.back(), threads, [&](int64_t number) {
            const int64_t at = std::upper_bound(starts.begin(), starts.end(), number) - starts.begin() - 1;
            attend_part(c, items[at], number - starts[at], state(number));
        });
        parallel_for((int64_t)items.size(), threads, [&](int64_t at) {
            join(c, items[at], state(starts.back() + at), [&](int64_t part) { return state(starts[at] + part); });
        });
        return -1;
    }
    parallel_for((int64_t)items.size(), threads, [&](int64_t at) {
        static thread_local Room room;
        float* const both = room.of<float>(2 * floats);
        const Running piece = Running::at(both + floats, most, width);
        join(c, items[at], Running::at(both, most, width), [&](int64_t part) {
            attend_part(c, items[at], part, piece);
            return piece;
        });
    });
    return -1;
}

}  // namespace
}  // namespace stentor

using namespace stentor;

// Returns -1; or the first sequence whose lengths, blocks or choices are outside the tensors, or -2 if there is no memory to
// plan the batch, and writes nothing.
#define STENTOR_LATENT_ATTENTION(NAME, T)                                                                           \
    STENTOR_EXPORT int64_t NAME(const T* q, const T* cache, T* out, const int32_t* query_start,                     \
                                const int32_t* seq_lens, const int32_t* tables, int64_t sequences, int64_t tokens,  \
                                int64_t heads, int64_t dim, int64_t rank, int64_t size, int64_t blocks,             \
                                int64_t table_width, const int32_t* chosen, int64_t most, int64_t pool,             \
                                const float* sinks, float scale, int64_t threads) try {                             \
        return latent_attention<T>(                                                                                 \
            {q, cache, out, sinks, chosen,                                                                          \
             {query_start, seq_lens, tables, sequences, tokens, size, blocks, table_width}, heads, dim, rank, most, \
             pool, scale},                                                                                          \
            threads);                                                                                               \
    } catch (const std::bad_alloc&) {                                                                               \
        return -2;                                                                                                  \
    }

STENTOR_LATENT_ATTENTION(stentor_latent_attention_f32, float)
STENTOR_LATENT_ATTENTION(stentor_latent_attention_bf16, bf16)
