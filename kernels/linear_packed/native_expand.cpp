// Codes written out as the weights of bfloat16 that they stand for, for products of many rows.
#include "byte_blocks.h"
#include "expand.h"

#include <vector>

namespace stentor {

#if defined(STENTOR_TILES)

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
constexpr int32_t middle_of_codes(int64_t kind) { return kind == Q4 ? 8 : kind == Q4M ? 0 : 128; }

#if defined(__AVX512F__)
// What the 16 codes of a kind of four bits stand for, without their scale.
template <int64_t KIND>
inline vf values_of_codes() {
    vi values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if constexpr (has_table(KIND)) values = __builtin_convertvector(load_as<vy>(table_of<KIND>()), vi);
    return to_float(values - middle_of_codes(KIND));
}
#endif

// What the codes of a register's outputs stand for, without their scale: of input number `byte` of the four that vector v
// of a half of a block has.
template <int64_t KIND, int HALF>
inline vf values_of(const uint8_t* codes, int v, int byte) {
#if defined(__AVX512F__)
    if constexpr (four_bits(KIND)) {
        const vu places = load_as<vu>(codes + v * VECTOR) >> (8 * byte + 4 * HALF);  // of which four bits count
        return (vf)_mm512_permutexvar_ps((__m512i)places, (__m512)values_of_codes<KIND>());
    }
#endif
    const vu four = (vu)codes_of<KIND, HALF>(codes, v);
    return to_float((vi)(four >> 8 * byte & 255) - middle_of_codes(KIND));
}

// Writes a block, of which all inputs are there.
template <int64_t KIND>
void expand_block(const uint8_t* codes, const vf* first, const vf* second, uint8_t* to) {
    const auto half = [&](auto of) {
        constexpr int HALF = decltype(of)::value;
        for (int v = 0; v < 4; ++v)
            for (int i = 0; i < REGISTERS; ++i) {
                const auto value = [&](int byte) {
                    const vf code = values_of<KIND, HALF>(codes + i * sizeof(vb), v, byte);
                    if constexpr (has_mins(KIND)) return code * first[i] + second[i];
                    return code * (HALF && has_halves(KIND) ? second[i] : first[i]);
                };
                for (int pair = 0; pair < 2; ++pair) {
                    const vu both = pairs_of(value(2 * pair), value(2 * pair + 1));
                    std::memcpy(to + (8 * HALF + 2 * v + pair) * VECTOR + i * sizeof(vu), &both, sizeof both);
                }
            }
    };
    half(std::integral_constant<int, 0>());
    half(std::integral_constant<int, 1>());
}

// Blocks [begin, end) of a tile. The codes that follow are fetched meanwhile.
template <int64_t KIND>
void expand_tile(const Packed& w, int64_t tile, int64_t begin, int64_t end, uint8_t* to) {
    const Scaling<KIND> scaling(w, tile);
    const uint8_t* codes = w.codes + tile * tile_bytes(KIND, w.inputs) + begin * bytes_of_block(KIND);
    int64_t left = ceil_div(w.inputs, 2) - begin * (BLOCK / 2);
    for (int64_t block = begin; block < end; ++block, left -= BLOCK / 2) {
        vf first[REGISTERS], second[REGISTERS];
        read_scales(scaling, 0, block / w.shared, first, second);
        for (int i = 0; KIND == NVFP4 && i < REGISTERS; ++i) {
            const vf factors = load(w.factors + tile * TILE + i * LANES);
            first[i] *= factors, second[i] *= factors;
        }
        for (int64_t line = 0; line < bytes_of_block(KIND); line += 64) fetch(codes + line, CODES_AHEAD);
        if (left >= BLOCK / 2) {
            expand_block<KIND>(codes, first, second, to);
        } else {
            alignas(64) uint8_t all[BLOCK / 2 * VECTOR];
            expand_block<KIND>(codes, first, second, all);
            std::memcpy(to, all, (size_t)(left * VECTOR));
        }
        codes += bytes_of_block(KIND), to += BLOCK / 2 * VECTOR;
    }
}

// Room of this thread, on lines.
uint8_t* room_for(int64_t bytes, int place) {
    static thread_local std::vector<uint8_t> rooms[2];
    constexpr int64_t LINE = 64;
    std::vector<uint8_t>& room = rooms[place];
    if ((int64_t)room.size() < bytes + LINE) room.resize((size_t)(bytes + LINE));
    return (uint8_t*)(((uintptr_t)room.data() + LINE - 1) / LINE * LINE);
}

}  // namespace

void expand_blocks(const Packed& w, int64_t tile, int64_t begin, int64_t end, uint8_t* to) {
    with_codes(w, [&](auto kind) { expand_tile<decltype(kind)::value>(w, tile, begin, end, to); });
}

Packed expanded(const Packed& w, int64_t tile, int64_t last, int place) {
    const int64_t bytes = tile_bytes(BF16, w.inputs);
    uint8_t* const room = room_for((last - tile) * bytes, place);
    const int64_t blocks = ceil_div(w.inputs, BLOCK);
    for (int64_t t = tile; t < last; ++t) expand_blocks(w, t, 0, blocks, room + (t - tile) * bytes);
    return {BF16, HALF, std::min(w.outputs, last * TILE) - tile * TILE, w.inputs, 1, room, nullptr, nullptr, nullptr, nullptr};
}

#endif

}  // namespace stentor
