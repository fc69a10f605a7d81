// Weights laid out for the order in which they are multiplied, and activations as the weights want them.
//
// A packed weight [N, K] is cut into tiles of 16 outputs. A tile runs along K, and what one step of K needs of
// its 16 outputs lies in whole vectors of 64 bytes, lane by lane:
//
//     F32          [tile][k][16]                    one value a lane
//     BF16         [tile][k/2][16][2]               a pair a lane
//     Q4, Q4M      [tile][block][4][64 bytes]       blocks of 32 k: vector v holds in its low nibbles k = 4v..4v+3,
//                                                   in its high nibbles k = 16+4v..16+4v+3
//     Q8, Q8H      [tile][block][512 bytes]
//
//     value = scale * code + min      Q4M (with a min), codes 0..15
//     value = scale * (code - 8)      Q4
//     value = scale * (code - 128)    Q8, and Q8H: a scale for each half of a block
//
// How the bytes of a block lie depends on what multiplies them. Where the machine has products of bfloat16, codes are
// turned into bfloat16, which holds them exactly, and meet inputs of bfloat16 (brain_blocks.h): four inputs of 16
// outputs lie as [4 outputs][2 inputs], [the same 4][2 more], and so on; bytes of Q8 as [k][16], with the code's sign.
// Elsewhere they meet inputs of eight bits (byte_blocks.h) and lie as [16 outputs][4 inputs].
//
// Scales stand beside: [tile][block][parts][16], parts = 2 for Q4M (scale, min) and Q8H, else 1; half precision, or
// single where WIDE. K is padded with zeros to whole blocks (BF16: to a pair), N to whole tiles.
//
// Every output is summed along K in one order, whatever the number of rows: a row's result does not depend on the
// rows beside it, nor on the thread.
#pragma once

#include "lanes.h"

#include <algorithm>
#include <limits>

namespace stentor {

enum PackedKind : int64_t { F32 = 0, BF16 = 1, Q4 = 2, Q4M = 3, Q8 = 4, Q8H = 5 };

constexpr int64_t BLOCK = 32;

struct Packed {
    int64_t kind;
    int64_t wide;  // scales in single precision
    int64_t outputs, inputs;
    const uint8_t* codes;
    const void* scales;
};

constexpr int64_t scale_parts(int64_t kind) { return kind == Q4M || kind == Q8H ? 2 : kind == Q4 || kind == Q8 ? 1 : 0; }

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Bytes of the codes of one tile.
static inline int64_t tile_bytes(int64_t kind, int64_t inputs) {
    switch (kind) {
        case F32: return inputs * TILE * 4;
        case BF16: return ceil_div(inputs, 2) * TILE * 4;
        case Q4:
        case Q4M: return ceil_div(inputs, BLOCK) * BLOCK * TILE / 2;
        default: return ceil_div(inputs, BLOCK) * BLOCK * TILE;
    }
}

#if defined(__AVX512BF16__)
constexpr bool BRAIN_BLOCKS = true;
#else
constexpr bool BRAIN_BLOCKS = false;
#endif

// Where code k (0..31) of an output (0..15) lies in its block: the byte, and for four bits whether it is the upper half.
struct Place {
    int64_t byte;
    bool upper;
};
static inline Place place_of(int64_t kind, int64_t lane, int64_t k) {
    const bool four = kind == Q4 || kind == Q4M;
    if (BRAIN_BLOCKS && !four) return {k * TILE + lane, false};
    const int64_t group = four ? k % 16 / 4 : k / 4, i = k % 4;
    const int64_t within = BRAIN_BLOCKS ? lane / 4 * 16 + i / 2 * 8 + lane % 4 * 2 + i % 2 : lane * 4 + i;
    return {group * 64 + within, four && k >= 16};
}

// What is added to a code of eight bits before it is stored.
constexpr uint8_t FLIP = BRAIN_BLOCKS ? 0x80 : 0;

// How the input of a weight is kept: as floats, as bfloat16 and perhaps the sums of each 32, or in blocks of 32 bytes
// with a common scale.
enum Form : int64_t { PLAIN = 0, BRAIN = 1, BYTES = 2 };

static inline Form form_of(int64_t kind) {
    return kind == F32 ? PLAIN : kind == BF16 || BRAIN_BLOCKS ? BRAIN : BYTES;
}

// Where the sums of a row of bfloat16 begin, in bytes.
static inline int64_t sums_at(int64_t inputs) { return ceil_div(inputs, BLOCK) * BLOCK * 2; }

// 32 activations, one cache line: x = scale * q, and sums that take the codes' offsets out again.
struct alignas(64) ByteBlock {
    int8_t q[32];
    float scale;
    float sum;       // scale * Σq
    float minus8;    // -8 * sum
    float minus128;  // -128 * sum, and of each half
    float half128[2];
    float unused[2];
};
static_assert(sizeof(ByteBlock) == 64, "a block is a line");

// Bytes of one prepared row; rows begin on lines.
static inline int64_t prepared_stride(Form form, int64_t inputs) {
    switch (form) {
        case PLAIN: return ceil_div(inputs * 4, 64) * 64;
        case BRAIN: return ceil_div(sums_at(inputs) + ceil_div(inputs, BLOCK) * 4, 64) * 64;
        default: return ceil_div(inputs, BLOCK) * (int64_t)sizeof(ByteBlock);
    }
}

// The activations are rounded to the nearest of 255 steps that span the largest of the block, even on a tie.
static inline void quantize_block(const float* x, int64_t n, ByteBlock* out) {
    float padded[BLOCK] = {};
    if (n < BLOCK) {
        std::memcpy(padded, x, (size_t)n * 4);
        x = padded;
    }
    const f32x16 a = load_as<f32x16>(x), b = load_as<f32x16>(x + 16);
    const i32x16 sign = i32x16{} + 0x7fffffff;
    const f32x16 aa = (f32x16)((i32x16)a & sign), bb = (f32x16)((i32x16)b & sign);
    const f32x16 larger = aa > bb ? aa : bb;
    float most = 0;
#if defined(__AVX512F__)
    most = _mm512_reduce_max_ps((__m512)larger);
#else
    for (int i = 0; i < 16; ++i) most = std::max(most, larger[i]);
#endif
    // of a scale below the smallest normal number there may be no inverse: such inputs count as zeros
    const float scale = most / 127.0f, inverse = scale >= std::numeric_limits<float>::min() ? 1.0f / scale : 0.0f;
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
    const f32x16 magic = all16(12582912.0f);
    const i32x16 qa = (i32x16)(a * inverse + magic) - (i32x16)magic, qb = (i32x16)(b * inverse + magic) - (i32x16)magic;
    int64_t low = 0, high = 0;
#if defined(__AVX512F__)
    low = _mm512_reduce_add_epi32((__m512i)qa);
    high = _mm512_reduce_add_epi32((__m512i)qb);
    _mm_store_si128((__m128i*)out->q, _mm512_cvtepi32_epi8((__m512i)qa));
    _mm_store_si128((__m128i*)(out->q + 16), _mm512_cvtepi32_epi8((__m512i)qb));
#else
    for (int i = 0; i < 16; ++i) {
        low += qa[i], high += qb[i];
        out->q[i] = (int8_t)qa[i], out->q[16 + i] = (int8_t)qb[i];
    }
#endif
    out->scale = scale;
    out->sum = scale * (float)(low + high);
    out->minus8 = -8.0f * out->sum;
    out->minus128 = CENTRED ? 0.0f : -128.0f * out->sum;
    out->half128[0] = CENTRED ? 0.0f : -128.0f * (scale * (float)low);
    out->half128[1] = CENTRED ? 0.0f : -128.0f * (scale * (float)high);
}

// The sums of each 32 inputs go with a row of bfloat16 only where a weight asks for them.
static inline bool takes_sums(int64_t kind) { return kind == Q4M; }

static inline void round_block(const float* x, int64_t n, bf16* to) {
#if defined(__AVX512BF16__)
    if (n == BLOCK) {
        // what is too small for a normal number becomes zero, as products of bfloat16 would take it to be
        const __m512bh both = _mm512_cvtne2ps_pbh((__m512)load(x + LANES), (__m512)load(x));
        std::memcpy(to, &both, sizeof both);
        return;
    }
#endif
    for (int64_t i = 0; i < BLOCK; i += LANES) {
        if (i + LANES <= n)
            store(to + i, load(x + i));
        else
            store(to + i, i < n ? load_part(x + i, n - i) : vf{});
    }
}

// A block of 32 of a row from x, of which the first n are there, in the form that a weight of `inputs` takes; `row` has
// prepared_stride bytes.
static inline void prepare_block(const float* x, int64_t n, Form form, bool sums, int64_t inputs, int64_t block,
                                 void* row) {
    if (form == PLAIN) {
        std::memcpy((float*)row + block * BLOCK, x, (size_t)n * 4);
    } else if (form == BRAIN) {
        bf16* const to = (bf16*)row + block * BLOCK;
        round_block(x, n, to);
        if (!sums) return;
        vf sum = {};
        for (int64_t i = 0; i < BLOCK; i += LANES) sum += load(to + i);
        ((float*)((uint8_t*)row + sums_at(inputs)))[block] = hsum(sum);
    } else {
        quantize_block(x, n, (ByteBlock*)row + block);
    }
}

// Brings a row of floats into the form that a weight takes; `out` has prepared_stride bytes.
static inline void prepare_row(const float* x, int64_t inputs, Form form, bool sums, void* out) {
    if (form == PLAIN) {
        std::memcpy(out, x, (size_t)inputs * 4);
        return;
    }
    for (int64_t k = 0; k < inputs; k += BLOCK)
        prepare_block(x + k, std::min(BLOCK, inputs - k), form, sums, inputs, k / BLOCK, out);
}

// The values of one output of a weight, float [inputs]. native.cpp
void unpack_row(const Packed& w, int64_t row, float* out);

}  // namespace stentor
