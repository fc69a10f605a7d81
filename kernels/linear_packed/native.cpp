// Packing and unpacking weights.
#include "packed.h"
#include "parallel.h"

namespace stentor {
namespace {

float half_at(const uint8_t* p) {
    uint16_t bits;
    std::memcpy(&bits, p, 2);
    return half_to_float(bits);
}

uint16_t to_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const float magnitude = std::fabs(x);
    if (!(magnitude < 65520.0f)) return sign | (x != x ? 0x7e00 : 0x7c00);
    if (magnitude < 6.103515625e-05f) return sign | (uint16_t)std::nearbyint(std::ldexp(magnitude, 24));
    bits &= 0x7fffffff;
    bits += 0xfff + (bits >> 13 & 1);
    return sign | (uint16_t)((bits - (112u << 23)) >> 13);
}

// One block of one output: codes one to a byte, and up to two scales.
struct Block {
    uint8_t codes[BLOCK];
    float scales[2];
};

void put_block(const Packed& w, int64_t row, int64_t block, const Block& from) {
    const int64_t blocks = ceil_div(w.inputs, BLOCK), tile = row / TILE, lane = row % TILE, at = tile * blocks + block;
    const bool four = w.kind == Q4 || w.kind == Q4M;
    uint8_t* to = const_cast<uint8_t*>(w.codes) + at * (four ? 256 : 512);
    for (int64_t k = 0; k < BLOCK; ++k) {
        const Place place = place_of(w.kind, lane, k);
        if (!four)
            to[place.byte] = from.codes[k];
        else if (place.upper)
            to[place.byte] = (uint8_t)((to[place.byte] & 15) | from.codes[k] << 4);
        else
            to[place.byte] = (uint8_t)((to[place.byte] & 0xf0) | from.codes[k]);
    }
    const int64_t parts = scale_parts(w.kind);
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t index = (at * parts + part) * TILE + lane;
        if (w.wide)
            ((float*)const_cast<void*>(w.scales))[index] = from.scales[part];
        else
            ((uint16_t*)const_cast<void*>(w.scales))[index] = to_half(from.scales[part]);
    }
}

Block get_block(const Packed& w, int64_t row, int64_t block) {
    const int64_t blocks = ceil_div(w.inputs, BLOCK), tile = row / TILE, lane = row % TILE, at = tile * blocks + block;
    Block out = {};
    const bool four = w.kind == Q4 || w.kind == Q4M;
    const uint8_t* from = w.codes + at * (four ? 256 : 512);
    for (int64_t k = 0; k < BLOCK; ++k) {
        const Place place = place_of(w.kind, lane, k);
        const uint8_t byte = from[place.byte];
        out.codes[k] = !four ? byte : place.upper ? byte >> 4 : byte & 15;
    }
    const int64_t parts = scale_parts(w.kind);
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t index = (at * parts + part) * TILE + lane;
        out.scales[part] = w.wide ? ((const float*)w.scales)[index] : half_to_float(((const uint16_t*)w.scales)[index]);
    }
    return out;
}

// ggml's formats, https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
enum Stored : int64_t { GGUF_Q4_0 = 0, GGUF_Q4_1 = 1, GGUF_Q8_0 = 2, GGUF_Q4_K = 3, GGUF_Q6_K = 4 };

void read_q4_k(const uint8_t* from, Block* out) {
    const float d = half_at(from), dmin = half_at(from + 2);
    const uint8_t *packed = from + 4, *codes = from + 16;
    for (int j = 0; j < 8; ++j) {
        const int scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        const int low = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
        out[j].scales[0] = d * (float)scale;
        out[j].scales[1] = -dmin * (float)low;
        for (int i = 0; i < 32; ++i) out[j].codes[i] = codes[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
    }
}

void read_q6_k(const uint8_t* from, Block* out) {
    const uint8_t *low = from, *high = from + 128;
    const int8_t* scales = (const int8_t*)(from + 192);
    const float d = half_at(from + 208);
    for (int j = 0; j < 8; ++j) {
        const int half = j / 4, quarter = j % 4;
        for (int i = 0; i < 32; ++i) {
            const int four = low[half * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15;
            const int two = high[half * 32 + i] >> (quarter * 2) & 3;
            out[j].codes[i] = (uint8_t)((four | two << 4) + 96);  // counted from 32, here from 128
        }
        for (int i = 0; i < 2; ++i) out[j].scales[i] = d * (float)scales[2 * j + i];
    }
}

void pack_gguf_row(const Packed& w, Stored stored, const uint8_t* from, int64_t row) {
    Block blocks[8];
    if (stored == GGUF_Q4_K || stored == GGUF_Q6_K) {
        const int64_t size = stored == GGUF_Q4_K ? 144 : 210;
        for (int64_t k = 0; k < w.inputs / 256; ++k) {
            if (stored == GGUF_Q4_K)
                read_q4_k(from + k * size, blocks);
            else
                read_q6_k(from + k * size, blocks);
            for (int64_t j = 0; j < 8; ++j) put_block(w, row, k * 8 + j, blocks[j]);
        }
        return;
    }
    const int64_t size = stored == GGUF_Q4_0 ? 18 : stored == GGUF_Q4_1 ? 20 : 34;
    for (int64_t k = 0; k < w.inputs / BLOCK; ++k, from += size) {
        Block& b = blocks[0];
        b.scales[0] = half_at(from);
        b.scales[1] = stored == GGUF_Q4_1 ? half_at(from + 2) : 0.0f;
        if (stored == GGUF_Q8_0)
            for (int i = 0; i < 32; ++i) b.codes[i] = from[2 + i] ^ 0x80;
        else
            for (int i = 0; i < 16; ++i) {
                const uint8_t both = from[size - 16 + i];
                b.codes[i] = both & 15;
                b.codes[16 + i] = both >> 4;
            }
        put_block(w, row, k, b);
    }
}

void pack_plain_row(const Packed& w, const void* from, int64_t row) {
    uint8_t* tile = const_cast<uint8_t*>(w.codes) + row / TILE * tile_bytes(w.kind, w.inputs);
    const int64_t lane = row % TILE;
    if (w.kind == F32)
        for (int64_t k = 0; k < w.inputs; ++k) ((float*)tile)[k * TILE + lane] = ((const float*)from)[k];
    else
        for (int64_t k = 0; k < w.inputs; ++k)
            ((uint16_t*)tile)[(k / 2 * TILE + lane) * 2 + k % 2] = ((const uint16_t*)from)[k];
}

// Rows that share a tile share lines: one thread writes them all.
template <class Body>
void by_tile(int64_t first, int64_t count, int64_t threads, const Body& body) {
    const int64_t tile = first / TILE, tiles = ceil_div(first + count, TILE) - tile;
    parallel_for(tiles, threads, [&](int64_t i) {
        const int64_t begin = std::max(first, (tile + i) * TILE), end = std::min(first + count, (tile + i + 1) * TILE);
        for (int64_t row = begin; row < end; ++row) body(row);
    });
}

}  // namespace

void unpack_row(const Packed& w, int64_t row, float* out) {
    if (w.kind == F32 || w.kind == BF16) {
        const uint8_t* tile = w.codes + row / TILE * tile_bytes(w.kind, w.inputs);
        const int64_t lane = row % TILE;
        for (int64_t k = 0; k < w.inputs; ++k)
            out[k] = w.kind == F32 ? ((const float*)tile)[k * TILE + lane]
                                   : widen(((const bf16*)tile)[(k / 2 * TILE + lane) * 2 + k % 2]);
        return;
    }
    for (int64_t k = 0; k < w.inputs; k += BLOCK) {
        const Block b = get_block(w, row, k / BLOCK);
        const int64_t n = std::min(BLOCK, w.inputs - k);
        // half by half: GCC 12 reads wrong scales for AVX2 where one is looked up for each value
        for (int64_t half = 0; half < n; half += 16) {
            const float scale = b.scales[w.kind == Q8H ? half / 16 : 0];
            const float offset = w.kind == Q4M ? 0.0f : w.kind == Q4 ? 8.0f : 128.0f;
            const float low = w.kind == Q4M ? b.scales[1] : 0.0f;
            for (int64_t i = half; i < std::min(n, half + 16); ++i) out[k + i] = scale * ((float)b.codes[i] - offset) + low;
        }
    }
}

}  // namespace stentor

using namespace stentor;

// How the input of a weight of this kind is kept on this machine: an ActivationFormat.
STENTOR_EXPORT int64_t stentor_packed_activation_format(int64_t kind) {
    return (int64_t)activation_format_of(kind);
}

// Rows [first, first + count) from plain ones of the weight's own element, `stride` elements apart.
STENTOR_EXPORT void stentor_pack_plain(const Packed* w, const uint8_t* from, int64_t stride, int64_t first,
                                       int64_t count, int64_t threads) {
    const int64_t bytes = stride * (w->kind == F32 ? 4 : 2);
    by_tile(first, count, threads, [&](int64_t row) { pack_plain_row(*w, from + (row - first) * bytes, row); });
}

// Rows from ggml's blocks, `stride` bytes apart.
STENTOR_EXPORT void stentor_pack_gguf(const Packed* w, int64_t stored, const uint8_t* from, int64_t stride,
                                      int64_t first, int64_t count, int64_t threads) {
    by_tile(first, count, threads,
            [&](int64_t row) { pack_gguf_row(*w, (Stored)stored, from + (row - first) * stride, row); });
}

// Rows from codes, one to a byte [count, inputs], and scales [count, blocks, parts] in single precision.
STENTOR_EXPORT void stentor_pack_codes(const Packed* w, const uint8_t* codes, const float* scales, int64_t first,
                                       int64_t count, int64_t threads) {
    const int64_t blocks = ceil_div(w->inputs, BLOCK), parts = scale_parts(w->kind);
    by_tile(first, count, threads, [&](int64_t row) {
        for (int64_t block = 0; block < blocks; ++block) {
            Block b = {};
            const int64_t k = block * BLOCK, n = std::min(BLOCK, w->inputs - k);
            std::memcpy(b.codes, codes + (row - first) * w->inputs + k, (size_t)n);
            for (int64_t part = 0; part < parts; ++part)
                b.scales[part] = scales[((row - first) * blocks + block) * parts + part];
            put_block(*w, row, block, b);
        }
    });
}

// The values of some rows, float [count, inputs].
STENTOR_EXPORT void stentor_unpack_rows(const Packed* w, const int64_t* rows, int64_t count, float* out,
                                        int64_t threads) {
    parallel_rows(count, 64, threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) unpack_row(*w, rows[i], out + i * w->inputs);
    });
}
