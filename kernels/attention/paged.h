// Paged attention outside a program: one call for one layer. Each dtype of caches has a translation unit (native*.cpp).
#pragma once

#include "attend.h"

#include <new>

namespace stentor {
namespace attention {

template <class T>
int64_t paged_attention(const Call<T>& c, int64_t threads) {
    const int64_t fault = find_fault(c);
    if (fault >= 0) return fault;
    int64_t work;
    const std::vector<Item> items = items_of(c, threads, &work);
    const int64_t group = c.heads / c.kv_heads;
    parallel_for((int64_t)items.size() * c.kv_heads, work < SMALL ? 1 : threads, [&](int64_t index) noexcept {
        attend(c, items[index / c.kv_heads], index % c.kv_heads, 0, group);
    });
    return -1;
}

}  // namespace attention
}  // namespace stentor

// Returns -1; or the first sequence whose lengths or blocks are outside the tensors, or -2 if there is no memory to plan the
// batch, and writes nothing.
#define STENTOR_PAGED_ATTENTION(NAME, Q, T)                                                                           \
    STENTOR_EXPORT int64_t NAME(const Q* q, const T* k_cache, const T* v_cache, Q* out, const int32_t* query_start,   \
                                const int32_t* seq_lens, const int32_t* tables, int64_t sequences, int64_t tokens,    \
                                int64_t heads, int64_t kv_heads, int64_t dim, int64_t size, int64_t blocks,           \
                                int64_t table_width, int64_t q_stride, float scale, int64_t window, float softcap,    \
                                const float* sinks, const float* slopes, const float* k_scales,                       \
                                const float* v_scales, const float* distances, float* logsums, int64_t extent,        \
                                int64_t by_token, int64_t after, bool fewer, int64_t threads) try {                   \
        return attention::paged_attention<T>(                                                                         \
            {q, k_cache, v_cache, out, std::is_same<Q, bf16>::value, query_start, seq_lens, tables, sequences,       \
             tokens, heads, kv_heads, dim, size, blocks, table_width, q_stride, scale, window, softcap, sinks, after, \
             fewer, k_scales, v_scales, slopes, distances, extent, by_token, logsums},                                \
            threads);                                                                                                 \
    } catch (const std::bad_alloc&) {                                                                                 \
        return -2;                                                                                                    \
    }
