// Codes written out as the weights of bfloat16 that they stand for, for products of many rows.
#include "byte_blocks.h"
#include "expand.h"

namespace stentor {
namespace {

// Pairs of bfloat16, rounded to the nearest, a pair a lane.
inline vu pairs_of(vf first, vf second) {
#if defined(__AVX512BF16__)
    alignas(64) static constexpr uint16_t TURN[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    return (vu)_mm512_permutexvar_epi16(_mm512_load_si512(TURN), both);
#else
    alignas(64) bf16 low[LANES], high[LANES];
    store(low, first);
    store(high, second);
    vu out;
    for (int i = 0; i < LANES; ++i) out[i] = low[i].bits | (uint32_t)high[i].bits << 16;
    return out;
#endif
}

// What codes of a kind are counted from.
constexpr int32_t middle_of_codes(int64_t kind) { return kind == Q4 ? 8 : kind == Q4M || kind == Q4Z ? 0 : 128; }

template <int64_t KIND, class Scale>
void expand_blocks(const Packed& w, int64_t tile, int64_t begin, int64_t end, uint8_t* to) {
    const Scaling<KIND, Scale> scaling(w, tile);
    const uint8_t* codes = w.codes + tile * tile_bytes(KIND, w.inputs) + begin * bytes_of_block(KIND);
    for (int64_t block = begin; block < end; ++block, codes += bytes_of_block(KIND), to += BLOCK * TILE * 2) {
        vf first[REGISTERS], second[REGISTERS];
        read_scales(scaling, 0, block / w.shared, first, second);
        for (int i = 0; KIND == NVFP4 && i < REGISTERS; ++i) {
            const vf factors = load(w.factors + tile * TILE + i * LANES);
            first[i] *= factors, second[i] *= factors;
        }
        alignas(64) uint8_t all[BLOCK / 2][VECTOR];
        const auto half = [&](auto of) {
            constexpr int HALF = decltype(of)::value;
            for (int v = 0; v < 4; ++v)
                for (int i = 0; i < REGISTERS; ++i) {
                    const vu four = (vu)codes_of<KIND, HALF>(codes + i * sizeof(vb), v);
                    const auto value = [&](int byte) {
                        const vf code = to_float((vi)(four >> 8 * byte & 255) - middle_of_codes(KIND));
                        if constexpr (has_mins(KIND) || has_zeros(KIND)) return code * first[i] + second[i];
                        return code * (HALF && has_halves(KIND) ? second[i] : first[i]);
                    };
                    for (int pair = 0; pair < 2; ++pair) {
                        const vu both = pairs_of(value(2 * pair), value(2 * pair + 1));
                        std::memcpy(all[8 * HALF + 2 * v + pair] + i * sizeof(vu), &both, sizeof both);
                    }
                }
        };
        half(std::integral_constant<int, 0>());
        half(std::integral_constant<int, 1>());
        std::memcpy(to, all, (size_t)(std::min(ceil_div(w.inputs, 2) - block * (BLOCK / 2), BLOCK / 2) * VECTOR));
    }
}

}  // namespace

void expand_blocks(const Packed& w, int64_t tile, int64_t begin, int64_t end, uint8_t* to) {
    with_codes(w, [&](auto kind, auto scale) {
        expand_blocks<decltype(kind)::value, decltype(scale)>(w, tile, begin, end, to);
    });
}

}  // namespace stentor
