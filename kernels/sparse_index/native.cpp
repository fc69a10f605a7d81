// Chooses the tokens that each new token attends to, or the entries of several tokens, by the largest sums over heads of
// weight · relu(q · k).
//
// The heads of a token are the rows of one product with runs of keys in the cache; keys of entries are copied side by side
// first. A score adds the heads of one query and
// one key in order, so it does not depend on other rows. Scores are compared as integers that have the order of the floats,
// so that NaN has a place in the order too.
#include "../latent_attention/paged.h"
#include "../linear/tiles.h"
#include "parallel.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <type_traits>
#include <vector>

namespace stentor {
namespace {

using paged::RUN;

constexpr int64_t PART = 512;       // keys of one item, if several threads score for a token
constexpr int64_t SMALL = 1 << 17;  // multiply-adds below which a second thread does not pay
static_assert(RUN % products::GROUP == 0 && RUN % LANES == 0 && PART % RUN == 0, "parts are whole runs, runs vectors");

template <class T>
struct Call {
    const T* q;            // [tokens, heads, dim]
    const float* weights;  // [tokens, heads]
    const T* cache;        // [blocks, places, dim]
    int32_t* out;          // [tokens, top_k]
    paged::Sequences batch;
    int64_t heads, dim, top_k;
    int64_t ratio, places;  // tokens of an entry, which lies in the block of its last token; entries of a block

    // The place of an entry in the cache.
    int64_t place(int64_t sequence, int64_t entry) const {
        const int64_t last = (entry + 1) * ratio - 1;
        return batch.tables[sequence * batch.table_width + last / batch.size] * places + last % batch.size / ratio;
    }
};

// A token that sees more than it may choose.
struct Item {
    int64_t sequence, token, seen;
};

template <class T>
using Kind = std::conditional_t<std::is_same_v<T, float>, products::Single, products::Brain>;

// An integer with the order of the float.
inline int32_t ordered(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits ^ (bits >> 31 & 0x7fffffff);
}

// The keys [key, key + count) of up to RUN: in the cache, or copied to `room`.
template <class T>
const T* find_run(const Call<T>& c, int64_t sequence, int64_t key, int64_t count, std::vector<T>& room) {
    if (c.ratio == 1) return c.cache + c.batch.slot(sequence, key) * c.dim;
    if ((int64_t)room.size() < RUN * c.dim) room.resize(RUN * c.dim);
    for (int64_t at = 0; at < count; ++at)
        std::copy_n(c.cache + c.place(sequence, key + at) * c.dim, c.dim, room.data() + at * c.dim);
    return room.data();
}

// Writes the scores of keys [begin, end), `begin` a multiple of RUN, to the same indices of `scores`.
template <class T>
void score(const Call<T>& c, const Item& item, int64_t begin, int64_t end, int32_t* scores) {
    static thread_local std::vector<float> room;
    static thread_local std::vector<T> copies;
    if ((int64_t)room.size() < c.heads * RUN) room.resize(c.heads * RUN);
    const float* const weights = c.weights + item.token * c.heads;
    for (int64_t key = begin; key < end; key += RUN) {
        const products::Problem<T, float> p{c.q + item.token * c.heads * c.dim,
                                            find_run(c, item.sequence, key, std::min(RUN, end - key), copies),
                                            nullptr,
                                            room.data(),
                                            c.heads,
                                            RUN,
                                            c.dim,
                                            c.dim,
                                            c.dim,
                                            RUN};
        for (int64_t column = 0; column < RUN; column += products::GROUP)
            products::groups<Kind<T>>(p, 0, c.heads, column);
        float sums[RUN];
        for (int64_t at = 0; at < RUN; at += LANES) {
            vf sum = set1(0.0f);
            for (int64_t head = 0; head < c.heads; ++head)
                sum = fma(set1(weights[head]), vmax(load(room.data() + head * RUN + at), set1(0.0f)), sum);
            store(sums + at, sum);
        }
        for (int64_t at = 0; at < std::min(RUN, end - key); ++at) scores[key + at] = ordered(sums[at]);
    }
}

// The positions, ascending, of the `top_k` largest scores; the first of equal ones.
void select(const int32_t* scores, int64_t seen, int64_t top_k, int32_t* out) {
    static thread_local std::vector<int32_t> room;
    room.assign(scores, scores + seen);
    std::nth_element(room.begin(), room.end() - top_k, room.end());
    const int32_t least = room[seen - top_k];
    int64_t equal = top_k - std::count_if(room.end() - top_k, room.end(), [&](int32_t x) { return x > least; });
    for (int64_t key = 0; key < seen; ++key)
        if (scores[key] > least || (scores[key] == least && equal-- > 0)) *out++ = (int32_t)key;
}

template <class T>
int64_t top_tokens(const Call<T>& c, int64_t threads) {
    const int64_t fault = c.batch.find_fault();
    if (fault >= 0) return fault;
    std::vector<Item> items;
    int64_t work = 0, longest = 0;
    c.batch.each_token([&](int64_t sequence, int64_t token, int64_t position) {
        const int64_t seen = (position + 1) / c.ratio;
        if (seen > c.top_k) {
            items.push_back({sequence, token, seen});
            work += seen * c.heads * c.dim;
            longest = std::max(longest, seen);
            return;
        }
        int32_t* const out = c.out + token * c.top_k;
        std::iota(out, out + seen, 0);
        std::fill(out + seen, out + c.top_k, -1);
    });
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.seen > b.seen; });
    if (work < SMALL) threads = 1;
    if (threads > 1 && (int64_t)items.size() < 2 * threads) {  // several threads score for one token
        const int64_t parts = (longest + PART - 1) / PART;
        std::vector<int32_t> room((int64_t)items.size() * longest);
        parallel_for((int64_t)items.size() * parts, threads, [&](int64_t number) {
            const Item& item = items[number / parts];
            const int64_t begin = number % parts * PART;
            score(c, item, begin, std::min(begin + PART, item.seen), room.data() + number / parts * longest);
        });
        parallel_for((int64_t)items.size(), threads, [&](int64_t at) {
            select(room.data() + at * longest, items[at].seen, c.top_k, c.out + items[at].token * c.top_k);
        });
        return -1;
    }
    parallel_for((int64_t)items.size(), threads, [&](int64_t at) {
        static thread_local std::vector<int32_t> room;
        const Item& item = items[at];
        if ((int64_t)room.size() < item.seen) room.resize(item.seen);
        score(c, item, 0, item.seen, room.data());
        select(room.data(), item.seen, c.top_k, c.out + item.token * c.top_k);
    });
    return -1;
}

}  // namespace
}  // namespace stentor

using namespace stentor;

// Returns -1; or the first sequence whose lengths or blocks are outside the tensors, or -2 if there is no memory to plan the
// batch.
#define STENTOR_TOP_TOKENS(NAME, T)                                                                                   \
    STENTOR_EXPORT int64_t NAME(const T* q, const float* weights, const T* cache, int32_t* out,                       \
                                const int32_t* query_start, const int32_t* seq_lens, const int32_t* tables,           \
                                int64_t sequences, int64_t tokens, int64_t heads, int64_t dim, int64_t size,          \
                                int64_t blocks, int64_t table_width, int64_t top_k, int64_t ratio, int64_t places,    \
                                int64_t threads) try {                                                                \
        return top_tokens<T>({q, weights, cache, out,                                                                 \
                              {query_start, seq_lens, tables, sequences, tokens, size, blocks, table_width},          \
                              heads, dim, top_k, ratio, places},                                                      \
                             threads);                                                                                \
    } catch (const std::bad_alloc&) {                                                                                 \
        return -2;                                                                                                    \
    }

STENTOR_TOP_TOKENS(stentor_top_tokens_f32, float)
STENTOR_TOP_TOKENS(stentor_top_tokens_bf16, bf16)
