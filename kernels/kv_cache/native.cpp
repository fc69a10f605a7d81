// Copies rows to their slots: keys transposed within the block, values as they are. Only the width of
// an element matters, so bfloat16 and float16 share one version. Caches of int8 hold codes and a scale a token and head, those
// of float8 codes in parts of a scale a head.
#include "codes.h"
#include "float8.h"
#include "parallel.h"

#include <cstring>

namespace stentor {
namespace {

constexpr int64_t GRAIN = 32768;  // elements below which a second thread does not pay

struct Shape {
    int64_t tokens, heads, dim, size, blocks, k_stride, v_stride;
};

// Calls put(token, head, place, offset): where the head lies in the token's block, counted over all blocks, and the
// token in that.
template <class Put>
int64_t write_kv(const Shape& s, const int64_t* slots, int64_t threads, const Put& put) {
    for (int64_t t = 0; t < s.tokens; ++t)
        if (slots[t] < 0 || slots[t] >= s.blocks * s.size) return t;
    if (s.tokens * s.heads * s.dim < GRAIN) threads = 1;
    // By head: the lines of one transposed block stay near while the tokens that share them pass.
    parallel_for(s.heads, threads, [&](int64_t h) {
        for (int64_t t = 0; t < s.tokens; ++t) put(t, h, slots[t] / s.size * s.heads + h, slots[t] % s.size);
    });
    return -1;
}

template <class T>
int64_t copy_kv(const T* k, const T* v, T* k_cache, T* v_cache, const int64_t* slots, const Shape& s, int64_t threads) {
    return write_kv(s, slots, threads, [&](int64_t t, int64_t h, int64_t place, int64_t offset) {
        const T* key = k + t * s.k_stride + h * s.dim;
        T* column = k_cache + place * s.dim * s.size + offset;
        for (int64_t d = 0; d < s.dim; ++d) column[d * s.size] = key[d];
        std::memcpy(v_cache + (place * s.size + offset) * s.dim, v + t * s.v_stride + h * s.dim,
                    (size_t)s.dim * sizeof(T));
    });
}

template <class T>
int64_t encode_kv(const T* k, const T* v, e4m3* k_cache, e4m3* v_cache, const float* k_scales, const float* v_scales,
                  const int64_t* slots, const Shape& s, int64_t threads) {
    return write_kv(s, slots, threads, [&](int64_t t, int64_t h, int64_t place, int64_t offset) {
        put_codes(k + t * s.k_stride + h * s.dim, s.dim, k_scales[h], k_cache + place * s.dim * s.size + offset, s.size);
        put_codes(v + t * s.v_stride + h * s.dim, s.dim, v_scales[h], v_cache + (place * s.size + offset) * s.dim, 1);
    });
}

template <class T>
int64_t encode_kv(const T* k, const T* v, i8* k_cache, i8* v_cache, float* k_scales, float* v_scales,
                  const int64_t* slots, const Shape& s, int64_t threads) {
    return write_kv(s, slots, threads, [&](int64_t t, int64_t h, int64_t place, int64_t offset) {
        const int64_t at = place * s.size + offset;
        k_scales[at] = put_codes(k + t * s.k_stride + h * s.dim, s.dim, k_cache + place * s.dim * s.size + offset, s.size);
        v_scales[at] = put_codes(v + t * s.v_stride + h * s.dim, s.dim, v_cache + at * s.dim, 1);
    });
}

}  // namespace
}  // namespace stentor

// Return -1, or the first token whose slot lies outside the cache; nothing is written then.
#define STENTOR_COPY_KV(NAME, T)                                                                                      \
    STENTOR_EXPORT int64_t NAME(const T* k, const T* v, T* k_cache, T* v_cache, const int64_t* slots, int64_t tokens, \
                                int64_t heads, int64_t dim, int64_t size, int64_t blocks, int64_t k_stride,           \
                                int64_t v_stride, int64_t threads) {                                                  \
        return stentor::copy_kv(k, v, k_cache, v_cache, slots, {tokens, heads, dim, size, blocks, k_stride, v_stride}, \
                                threads);                                                                             \
    }
#define STENTOR_ENCODE_KV(NAME, T, C)                                                                                 \
    STENTOR_EXPORT int64_t NAME(const T* k, const T* v, stentor::C* k_cache, stentor::C* v_cache, float* k_scales,    \
                                float* v_scales, const int64_t* slots, int64_t tokens, int64_t heads, int64_t dim,    \
                                int64_t size, int64_t blocks, int64_t k_stride, int64_t v_stride, int64_t threads) {  \
        return stentor::encode_kv(k, v, k_cache, v_cache, k_scales, v_scales, slots,                                  \
                                  {tokens, heads, dim, size, blocks, k_stride, v_stride}, threads);                   \
    }

STENTOR_COPY_KV(stentor_write_kv_32, uint32_t)
STENTOR_COPY_KV(stentor_write_kv_16, uint16_t)
STENTOR_ENCODE_KV(stentor_write_kv_int8_f32, float, i8)
STENTOR_ENCODE_KV(stentor_write_kv_int8_bf16, stentor::bf16, i8)
STENTOR_ENCODE_KV(stentor_write_kv_float8_f32, float, e4m3)
STENTOR_ENCODE_KV(stentor_write_kv_float8_bf16, stentor::bf16, e4m3)
