// Packing and unpacking weights.
#include "packed.h"
#include "parallel.h"

namespace stentor {
namespace {

// Scales as they are kept: the weights' own, so that those of eight bits are what was given, if it was one.
void put_scale(const Packed& w, int64_t index, float scale) {
    void* const to = const_cast<void*>(w.scales);
    if (w.kind == MXFP4) {
        uint32_t bits;
        std::memcpy(&bits, &scale, 4);
        ((uint8_t*)to)[index] = (uint8_t)(bits >> 23);
    } else if (w.kind == NVFP4) {
        ((uint8_t*)to)[index] = (uint8_t)(float_to_half(scale / 256.0f) >> 7);
    } else if (is_whole(w)) {
        ((uint8_t*)to)[index] = (uint8_t)(int)scale;
    } else if (w.precision == SINGLE) {
        ((float*)to)[index] = scale;
    } else if (w.precision == BRAIN) {
        narrow(scale, (bf16*)to + index);
    } else {
        ((uint16_t*)to)[index] = float_to_half(scale);
    }
}

template <class Scale>
float widened(const void* scales, int64_t index) {
    Scale some[LANES] = {};
    some[0] = ((const Scale*)scales)[index];
    return load_scales(some)[0];
}

float get_scale(const Packed& w, int64_t row, int64_t index) {
    if (w.kind == MXFP4) return widened<E8M0>(w.scales, index);
    if (w.kind == NVFP4) return widened<E4M3>(w.scales, index) * w.factors[row];
    switch (w.precision) {
        case WHOLE: return ((const uint8_t*)w.scales)[index];
        case SIGNED: return ((const int8_t*)w.scales)[index];
        case SINGLE: return ((const float*)w.scales)[index];
        case BRAIN: return widen(((const bf16*)w.scales)[index]);
        default: return widen(((const f16*)w.scales)[index]);
    }
}

float get_zero(const Packed& w, int64_t index) {
    if (w.zeros == nullptr) return zero_of_codes(w.kind);
    return w.kind == Q4Z ? (float)((const uint8_t*)w.zeros)[index] : (float)((const int16_t*)w.zeros)[index];
}

// Of whole scales: where a factor of an output lies.
int64_t factor_at(const Packed& w, int64_t row, int64_t span, int64_t part) {
    return ((row / TILE * spans_of(w) + span) * span_parts(w.kind) + part) * TILE + row % TILE;
}

// One block of one output: codes one to a byte, and up to two scales.
struct Block {
    uint8_t codes[BLOCK];
    float scales[2];
};

// Four codes of an output lie side by side, as place_of has it: a word for each four, or for two fours of four bits.
void put_codes(const Packed& w, int64_t row, int64_t block, const Block& from) {
    const int64_t blocks = ceil_div(w.inputs, BLOCK), at = row / TILE * blocks + block, lane = row % TILE;
    uint32_t words[8];
    std::memcpy(words, from.codes, BLOCK);
    if (four_bits(w.kind)) {
        uint32_t* const to = (uint32_t*)const_cast<uint8_t*>(w.codes + at * 256) + lane;
        for (int64_t j = 0; j < 4; ++j) to[j * TILE] = words[j] | words[j + 4] << 4;
    } else {
        uint32_t* const to = (uint32_t*)const_cast<uint8_t*>(w.codes + at * 512) + lane;
        for (int64_t j = 0; j < 8; ++j) to[j * TILE] = words[j];
    }
}

// Scales [parts] of a group of one output.
void put_scales(const Packed& w, int64_t row, int64_t group, const float* scales) {
    const int64_t parts = scale_parts(w.kind), at = row / TILE * groups_of(w) + group;
    for (int64_t part = 0; part < parts; ++part) put_scale(w, (at * parts + part) * TILE + row % TILE, scales[part]);
}

void put_zero(const Packed& w, int64_t row, int64_t group, int16_t zero) {
    const int64_t index = (row / TILE * groups_of(w) + group) * TILE + row % TILE;
    void* const to = const_cast<void*>(w.zeros);
    if (w.kind == Q4Z)
        ((uint8_t*)to)[index] = (uint8_t)zero;
    else
        ((int16_t*)to)[index] = zero;
}

// Factors [1 or 2] of a span of whole scales of one output.
void put_factors(const Packed& w, int64_t row, int64_t span, const float* factors) {
    for (int64_t part = 0; part < span_parts(w.kind); ++part)
        ((uint16_t*)const_cast<void*>(w.spans))[factor_at(w, row, span, part)] = float_to_half(factors[part]);
}

Block get_block(const Packed& w, int64_t row, int64_t block) {
    const int64_t blocks = ceil_div(w.inputs, BLOCK), tile = row / TILE, lane = row % TILE, at = tile * blocks + block;
    Block out = {};
    const bool four = four_bits(w.kind);
    const uint8_t* from = w.codes + at * (four ? 256 : 512);
    for (int64_t k = 0; k < BLOCK; ++k) {
        const Place place = place_of(w.kind, lane, k);
        const uint8_t byte = from[place.byte];
        out.codes[k] = !four ? byte : place.upper ? byte >> 4 : byte & 15;
        if (w.kind == IQ4NL) out.codes[k] = table_of<IQ4NL>()[out.codes[k]];
        if (w.kind == MXFP4 || w.kind == NVFP4) out.codes[k] = table_of<MXFP4>()[out.codes[k]];
    }
    const int64_t parts = scale_parts(w.kind), group = tile * groups_of(w) + block / w.shared;
    for (int64_t part = 0; part < parts; ++part)
        out.scales[part] = get_scale(w, row, (group * parts + part) * TILE + lane);
    if (is_whole(w))
        for (int64_t part = 0; part < parts; ++part)
            out.scales[part] *= widen(((const f16*)w.spans)[factor_at(w, row, block / SPAN, has_mins(w.kind) ? part : 0)]);
    if (has_zeros(w.kind))
        out.scales[1] = out.scales[0] * (centre_of_codes(w.kind) - get_zero(w, group * TILE + lane));
    return out;
}

// ggml's formats, https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
enum Stored : int64_t {
    GGUF_Q4_0 = 0, GGUF_Q4_1 = 1, GGUF_Q8_0 = 2, GGUF_Q4_K = 3, GGUF_Q6_K = 4,
    GGUF_Q5_0 = 5, GGUF_Q5_1 = 6, GGUF_Q5_K = 7, GGUF_IQ4_NL = 8, GGUF_MXFP4 = 9
};

constexpr int64_t size_of(Stored stored) {
    switch (stored) {
        case GGUF_Q4_0: case GGUF_IQ4_NL: return 18;
        case GGUF_Q4_1: return 20;
        case GGUF_Q5_0: return 22;
        case GGUF_Q5_1: return 24;
        case GGUF_Q8_0: return 34;
        case GGUF_MXFP4: return 17;
        case GGUF_Q4_K: return 144;
        case GGUF_Q5_K: return 176;
        default: return 210;
    }
}

constexpr bool has_spans(Stored stored) { return stored == GGUF_Q4_K || stored == GGUF_Q5_K || stored == GGUF_Q6_K; }

// Where the two whole scales of block j of 8 are, of Q4_K and Q5_K: of the scale and of the min.
struct Whole {
    uint8_t scale, min;
};

Whole whole_at(const uint8_t* packed, int j) {
    if (j < 4) return {(uint8_t)(packed[j] & 63), (uint8_t)(packed[j + 4] & 63)};
    return {(uint8_t)((packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4),
            (uint8_t)(packed[j + 4] >> 4 | (packed[j] >> 6) << 4)};
}

// Halves and bytes as they are stored: scales of a block, and factors of a span, of one output.
void put_halves(const Packed& w, int64_t row, int64_t block, const uint8_t* from, int64_t parts) {
    const int64_t at = row / TILE * groups_of(w) + block;
    for (int64_t part = 0; part < parts; ++part)
        std::memcpy((uint16_t*)const_cast<void*>(w.scales) + (at * parts + part) * TILE + row % TILE, from + 2 * part, 2);
}

void put_bytes(const Packed& w, int64_t row, int64_t block, uint8_t first, uint8_t second) {
    uint8_t* const to = (uint8_t*)const_cast<void*>(w.scales) + (row / TILE * groups_of(w) + block) * 2 * TILE + row % TILE;
    to[0] = first;
    to[TILE] = second;
}

void put_factor(const Packed& w, int64_t row, int64_t span, int64_t part, const uint8_t* from, uint16_t flipped) {
    uint16_t bits;
    std::memcpy(&bits, from, 2);
    ((uint16_t*)const_cast<void*>(w.spans))[factor_at(w, row, span, part)] = bits ^ flipped;
}

// The words of a block of one output, 4 or 8: a line of a tile has one of each output.
template <int64_t COUNT>
void put_words(const Packed& w, int64_t row, int64_t block, const uint32_t* words) {
    const int64_t at = row / TILE * ceil_div(w.inputs, BLOCK) + block;
    uint32_t* const to = (uint32_t*)const_cast<uint8_t*>(w.codes + at * COUNT * TILE * 4) + row % TILE;
    for (int64_t j = 0; j < COUNT; ++j) to[j * TILE] = words[j];
}

constexpr uint32_t LOW_NIBBLES = 0x0f0f0f0f;

// 16 bytes of nibbles, of which codes i and i + 16 of a block share one, and a bit for each code in `high`; a code counts
// from `zero`.
void put_five(const Packed& w, int64_t row, int64_t block, const uint8_t* nibbles, uint32_t high, uint32_t zero) {
    uint32_t some[4], words[8];
    std::memcpy(some, nibbles, 16);
    for (int j = 0; j < 8; ++j) {
        const uint32_t fifth = (high >> 4 * j & 15) * 0x00204081 & 0x01010101;  // a bit to each byte
        words[j] = ((some[j % 4] >> j / 4 * 4 & LOW_NIBBLES) | fifth << 4) + zero * 0x01010101;
    }
    put_words<8>(w, row, block, words);
}

// A block of 32: a scale, in some a min, in some the fifth bits, and codes.
template <Stored STORED>
void pack_block(const Packed& w, int64_t row, int64_t block, const uint8_t* from) {
    constexpr int64_t SIZE = size_of(STORED);
    if constexpr (STORED == GGUF_MXFP4)
        ((uint8_t*)const_cast<void*>(w.scales))[(row / TILE * groups_of(w) + block) * TILE + row % TILE] = from[0];
    else
        put_halves(w, row, block, from, STORED == GGUF_Q4_1 || STORED == GGUF_Q5_1 ? 2 : 1);
    if constexpr (STORED == GGUF_Q8_0) {
        uint32_t words[8];
        std::memcpy(words, from + 2, BLOCK);
        for (uint32_t& word : words) word ^= 0x80808080;
        put_words<8>(w, row, block, words);
    } else if constexpr (STORED == GGUF_Q5_0 || STORED == GGUF_Q5_1) {
        uint32_t high;
        std::memcpy(&high, from + SIZE - 20, 4);
        // a code counts from 16, or from nothing; here from 128
        put_five(w, row, block, from + SIZE - 16, high, STORED == GGUF_Q5_0 ? 112 : 128);
    } else {
        uint32_t words[4];  // nibbles lie as a tile has them
        std::memcpy(words, from + SIZE - 16, 16);
        put_words<4>(w, row, block, words);
    }
}

// A block of 256, which is a span: eight of 32 with whole scales, and factors of these.
template <Stored STORED>
void pack_span(const Packed& w, int64_t row, int64_t span, const uint8_t* from) {
    if constexpr (STORED == GGUF_Q6_K) {
        put_factor(w, row, span, 0, from + 208, 0);
        for (int j = 0; j < 8; ++j) {
            const uint8_t *low = from + j / 4 * 64 + j % 2 * 32, *high = from + 128 + j / 4 * 32;
            uint8_t codes[BLOCK];
            for (int i = 0; i < 32; ++i) {
                const int four = low[i] >> (j % 4 / 2 * 4) & 15, two = high[i] >> (j % 4 * 2) & 3;
                codes[i] = (uint8_t)((four | two << 4) + 96);  // counted from 32, here from 128
            }
            uint32_t words[8];
            std::memcpy(words, codes, BLOCK);
            put_words<8>(w, row, span * SPAN + j, words);
            put_bytes(w, row, span * SPAN + j, from[192 + 2 * j], from[193 + 2 * j]);
        }
        return;
    }
    constexpr bool FIVE = STORED == GGUF_Q5_K;
    put_factor(w, row, span, 0, from, 0);
    put_factor(w, row, span, 1, from + 2, 0x8000);  // mins are subtracted there
    const uint8_t *high = from + 16, *codes = from + (FIVE ? 48 : 16);
    for (int j = 0; j < 8; ++j) {
        const Whole whole = whole_at(from + 4, j);
        put_bytes(w, row, span * SPAN + j, whole.scale, whole.min);
        uint32_t words[8];
        std::memcpy(words, codes + j / 2 * 32, BLOCK);
        for (uint32_t& word : words) word = word >> (j % 2 * 4) & LOW_NIBBLES;
        if constexpr (FIVE) {
            uint32_t bits[8];
            std::memcpy(bits, high, BLOCK);
            for (int i = 0; i < 8; ++i) words[i] = (words[i] | (bits[i] >> j & 0x01010101) << 4) + 0x80808080;
            put_words<8>(w, row, span * SPAN + j, words);
        } else {
            for (int i = 0; i < 4; ++i) words[i] |= words[i + 4] << 4;
            put_words<4>(w, row, span * SPAN + j, words);
        }
    }
}

// Rows of one tile, the first of them at `from`, each `stride` bytes behind the last. All rows write their part of a block's
// lines before any goes on.
template <Stored STORED>
void pack_gguf_rows(const Packed& w, const uint8_t* from, int64_t stride, int64_t begin, int64_t end) {
    constexpr int64_t SIZE = size_of(STORED);
    const int64_t blocks = w.inputs / (has_spans(STORED) ? SPAN * BLOCK : BLOCK);
    for (int64_t k = 0; k < blocks; ++k)
        for (int64_t row = begin; row < end; ++row) {
            const uint8_t* const at = from + (row - begin) * stride + k * SIZE;
            if constexpr (has_spans(STORED))
                pack_span<STORED>(w, row, k, at);
            else
                pack_block<STORED>(w, row, k, at);
        }
}

void pack_gguf_tile(const Packed& w, Stored stored, const uint8_t* from, int64_t stride, int64_t begin, int64_t end) {
    switch (stored) {
        case GGUF_Q4_0: return pack_gguf_rows<GGUF_Q4_0>(w, from, stride, begin, end);
        case GGUF_Q4_1: return pack_gguf_rows<GGUF_Q4_1>(w, from, stride, begin, end);
        case GGUF_Q8_0: return pack_gguf_rows<GGUF_Q8_0>(w, from, stride, begin, end);
        case GGUF_Q4_K: return pack_gguf_rows<GGUF_Q4_K>(w, from, stride, begin, end);
        case GGUF_Q6_K: return pack_gguf_rows<GGUF_Q6_K>(w, from, stride, begin, end);
        case GGUF_Q5_0: return pack_gguf_rows<GGUF_Q5_0>(w, from, stride, begin, end);
        case GGUF_Q5_1: return pack_gguf_rows<GGUF_Q5_1>(w, from, stride, begin, end);
        case GGUF_Q5_K: return pack_gguf_rows<GGUF_Q5_K>(w, from, stride, begin, end);
        case GGUF_IQ4_NL: return pack_gguf_rows<GGUF_IQ4_NL>(w, from, stride, begin, end);
        default: return pack_gguf_rows<GGUF_MXFP4>(w, from, stride, begin, end);
    }
}

// Rows that share a tile share lines: one thread writes them all. `body` takes the first of them and the one behind them.
template <class Body>
void by_tile(int64_t first, int64_t count, int64_t threads, const Body& body) {
    const int64_t tile = first / TILE, tiles = ceil_div(first + count, TILE) - tile;
    parallel_for(tiles, threads, [&](int64_t i) {
        body(std::max(first, (tile + i) * TILE), std::min(first + count, (tile + i + 1) * TILE));
    });
}

template <class Body>
void by_row(int64_t first, int64_t count, int64_t threads, const Body& body) {
    by_tile(first, count, threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) body(row);
    });
}

// Rows of one tile, the first of them at `from`, each `stride` bytes behind the last: a word of each output lies in a
// line, one float or two of bfloat16. All rows write their part of 64 lines before any goes on: those stay in the cache.
void pack_plain_rows(const Packed& w, const uint8_t* from, int64_t stride, int64_t begin, int64_t end) {
    uint32_t* const tile = (uint32_t*)const_cast<uint8_t*>(w.codes + begin / TILE * tile_bytes(w.kind, w.inputs));
    const int64_t bytes = w.inputs * (w.kind == F32 ? 4 : 2), words = bytes / 4;
    for (int64_t word = 0; word < words; word += 64)
        for (int64_t row = begin; row < end; ++row) {
            uint32_t some[64];
            const int64_t n = std::min<int64_t>(64, words - word);
            std::memcpy(some, from + (row - begin) * stride + word * 4, (size_t)n * 4);
            for (int64_t j = 0; j < n; ++j) tile[(word + j) * TILE + row % TILE] = some[j];
        }
    for (int64_t row = begin; bytes % 4 && row < end; ++row)
        std::memcpy(tile + words * TILE + row % TILE, from + (row - begin) * stride + words * 4, 2);
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
            const float scale = b.scales[has_halves(w.kind) ? half / 16 : 0];
            const float offset = w.kind == Q4M || w.kind == Q4Z ? 0.0f : w.kind == Q4 ? 8.0f : 128.0f;
            const float low = has_mins(w.kind) || has_zeros(w.kind) ? b.scales[1] : 0.0f;
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

// Bytes of one prepared row of `inputs` in an ActivationFormat.
STENTOR_EXPORT int64_t stentor_prepared_stride(int64_t format, int64_t inputs) {
    return prepared_stride((ActivationFormat)format, inputs);
}

// Rows [first, first + count) from plain ones of the weight's own element, `stride` elements apart.
STENTOR_EXPORT void stentor_pack_plain(const Packed* w, const uint8_t* from, int64_t stride, int64_t first,
                                       int64_t count, int64_t threads) {
    const int64_t bytes = stride * (w->kind == F32 ? 4 : 2);
    by_tile(first, count, threads, [&](int64_t begin, int64_t end) {
        pack_plain_rows(*w, from + (begin - first) * bytes, bytes, begin, end);
    });
}

// Rows from ggml's blocks, `stride` bytes apart.
STENTOR_EXPORT void stentor_pack_gguf(const Packed* w, int64_t stored, const uint8_t* from, int64_t stride,
                                      int64_t first, int64_t count, int64_t threads) {
    by_tile(first, count, threads, [&](int64_t begin, int64_t end) {
        pack_gguf_tile(*w, (Stored)stored, from + (begin - first) * stride, stride, begin, end);
    });
}

// Rows from codes, one to a byte [count, inputs], scales [count, groups, parts] in single precision, and as the weight has
// them zeros [count, groups] and factors of whole scales [count, spans, 1 or 2], or null.
STENTOR_EXPORT void stentor_pack_codes(const Packed* w, const uint8_t* codes, const float* scales, const int16_t* zeros,
                                       const float* factors, int64_t first, int64_t count, int64_t threads) {
    const int64_t blocks = ceil_div(w->inputs, BLOCK), groups = groups_of(*w), parts = scale_parts(w->kind);
    by_row(first, count, threads, [&](int64_t row) {
        for (int64_t block = 0; block < blocks; ++block) {
            Block b = {};
            const int64_t k = block * BLOCK, n = std::min(BLOCK, w->inputs - k);
            std::memcpy(b.codes, codes + (row - first) * w->inputs + k, (size_t)n);
            put_codes(*w, row, block, b);
        }
        for (int64_t group = 0; group < groups; ++group) {
            const int64_t at = (row - first) * groups + group;
            put_scales(*w, row, group, scales + at * parts);
            if (zeros) put_zero(*w, row, group, zeros[at]);
        }
        for (int64_t span = 0; factors && span < spans_of(*w); ++span)
            put_factors(*w, row, span, factors + ((row - first) * spans_of(*w) + span) * span_parts(w->kind));
    });
}

// The values of some rows, float [count, inputs].
STENTOR_EXPORT void stentor_unpack_rows(const Packed* w, const int64_t* rows, int64_t count, float* out,
                                        int64_t threads) {
    parallel_rows(count, 64, threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) unpack_row(*w, rows[i], out + i * w->inputs);
    });
}
