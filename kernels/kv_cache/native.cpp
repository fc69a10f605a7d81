// Copies rows to their slots: keys transposed within the block, values as they are. Only the width of
// an element matters, so bfloat16 and float16 share one version.
#include "parallel.h"

#include <cstring>

namespace stentor {
namespace {

constexpr int64_t GRAIN = 32768;  // elements below which a second thread does not pay

template <class T>
int64_t write_kv(const T* k, const T* v, T* k_cache, T* v_cache, const int64_t* slots, int64_t tokens, int64_t heads,
                 int64_t dim, int64_t size, int64_t blocks, int64_t k_stride, int64_t v_stride, int64_t threads) {
    for (int64_t t = 0; t < tokens; ++t)
        if (slots[t] < 0 || slots[t] >= blocks * size) return t;
    if (tokens * heads * dim < GRAIN) threads = 1;
    // By head: the lines of one transposed block stay near while the tokens that share them pass.
    parallel_for(heads, threads, [=](int64_t h) {
        for (int64_t t = 0; t < tokens; ++t) {
            const int64_t block = slots[t] / size, offset = slots[t] % size;
            const T* key = k + t * k_stride + h * dim;
            T* column = k_cache + (block * heads + h) * dim * size + offset;
            for (int64_t d = 0; d < dim; ++d) column[d * size] = key[d];
            std::memcpy(v_cache + ((block * heads + h) * size + offset) * dim, v + t * v_stride + h * dim,
                        (size_t)dim * sizeof(T));
        }
    });
    return -1;
}

}  // namespace
}  // namespace stentor

// Returns -1, or the first token whose slot lies outside the cache; nothing is written then.
STENTOR_EXPORT int64_t stentor_write_kv_32(const uint32_t* k, const uint32_t* v, uint32_t* k_cache, uint32_t* v_cache,
                                           const int64_t* slots, int64_t tokens, int64_t heads, int64_t dim,
                                           int64_t size, int64_t blocks, int64_t k_stride, int64_t v_stride,
                                           int64_t threads) {
    return stentor::write_kv(k, v, k_cache, v_cache, slots, tokens, heads, dim, size, blocks, k_stride, v_stride,
                             threads);
}

STENTOR_EXPORT int64_t stentor_write_kv_16(const uint16_t* k, const uint16_t* v, uint16_t* k_cache, uint16_t* v_cache,
                                           const int64_t* slots, int64_t tokens, int64_t heads, int64_t dim,
                                           int64_t size, int64_t blocks, int64_t k_stride, int64_t v_stride,
                                           int64_t threads) {
    return stentor::write_kv(k, v, k_cache, v_cache, slots, tokens, heads, dim, size, blocks, k_stride, v_stride,
                             threads);
}
