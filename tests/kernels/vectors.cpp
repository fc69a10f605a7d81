// The vector code of one processor beside plain definitions: conversions, sums, products of bytes, what prepares
// activations, and whole products of packed and plain weights. Prints what differs, and ends with the number of it.
#include "../../kernels/linear/tiles.h"
#include "../../kernels/linear_packed/multiply.h"
#include "../../kernels/native/float8.h"
#include "../../kernels/native/parallel.h"

#include <cstdio>
#include <random>
#include <vector>

using namespace stentor;

extern "C" {
void stentor_pack_plain(const Packed*, const uint8_t*, int64_t, int64_t, int64_t, int64_t);
void stentor_pack_codes(const Packed*, const uint8_t*, const float*, const int16_t*, const float*, int64_t, int64_t, int64_t);
void stentor_unpack_rows(const Packed*, const int64_t*, int64_t, float*, int64_t);
int64_t stentor_linear_packed(const Packed*, const void*, int64_t, int64_t, const float*, int64_t, void*, int64_t, int64_t,
                              int64_t);
void stentor_linear_f32(const float*, const float*, const float*, float*, int64_t, int64_t, int64_t, int64_t, int64_t,
                        int64_t);
void stentor_linear_bf16(const bf16*, const bf16*, const bf16*, bf16*, int64_t, int64_t, int64_t, int64_t, int64_t,
                         int64_t);
}

namespace {

int failures = 0;
std::mt19937 draw(7);

void expect(bool holds, const char* what, double a = 0, double b = 0) {
    if (holds) return;
    if (++failures <= 20) std::printf("%s: %.9g is not %.9g\n", what, a, b);
}

uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
float normal() {
    static std::normal_distribution<float> of;
    return of(draw);
}
std::vector<float> normals(int64_t n) {
    std::vector<float> all((size_t)n);
    for (float& x : all) x = normal();
    return all;
}
bool same(float a, float b) { return bits_of(a) == bits_of(b) || (a != a && b != b); }

template <class T>
void conversions(const char* widening, const char* narrowing) {
    for (uint32_t first = 0; first < 65536; first += LANES) {
        T stored[LANES];
        float wide[LANES];
        for (int i = 0; i < LANES; ++i) stored[i].bits = (uint16_t)(first + i);
        store(wide, load(stored));
        for (int i = 0; i < LANES; ++i) expect(same(wide[i], widen(stored[i])), widening, wide[i], widen(stored[i]));
    }
    // of each value of the upper half that there is: the lower ones about a tie, and some
    for (uint32_t upper = 0; upper < 65536; ++upper) {
        const uint32_t lower[] = {0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0x9000, 0xffff, (uint32_t)draw() & 0xffff, 0x3000};
        for (int at = 0; at + LANES <= 12; at += LANES > 4 ? 12 : LANES) {
            float from[LANES];
            T vectors[LANES], one;
            for (int i = 0; i < LANES; ++i) from[i] = float_of(upper << 16 | lower[(at + i) % 12]);
            store(vectors, load(from));
            for (int i = 0; i < LANES; ++i) {
                narrow(from[i], &one);
                expect(same(widen(vectors[i]), widen(one)), narrowing, widen(vectors[i]), widen(one));
            }
        }
    }
}

// What a code of e4m3fn stands for.
float number_of(int code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const float size = exponent ? std::ldexp(8.0f + (float)fraction, exponent - 10) : std::ldexp((float)fraction, -9);
    return (code & 0x7f) == 0x7f ? NAN : code & 0x80 ? -size : size;
}

void float8() {
    for (int first = 0; first < 256; first += 16) {
        e4m3 codes[16];
        vf sixteen[SIXTEEN];
        float wide[16], part[LANES];
        for (int i = 0; i < 16; ++i) codes[i].bits = (uint8_t)(first + i);
        load_sixteen(codes, sixteen);
        std::memcpy(wide, sixteen, sizeof wide);
        for (int i = 0; i < 16; ++i) {
            const float number = number_of(first + i), one = widen(codes[i]) * FLOAT8_UNIT;
            expect(same(wide[i] * FLOAT8_UNIT, number), "sixteen float8 as floats", wide[i] * FLOAT8_UNIT, number);
            expect(same(one, number), "float8 as a float", one, number);
        }
        store(part, load(codes));
        for (int i = 0; i < LANES; ++i) expect(same(part[i], wide[i]), "a vector of float8", part[i], wide[i]);
    }
#if defined(__AVX512VBMI__)
    for (int first = 0; first < 256; first += 64) {
        uint8_t codes[64];
        bf16 brains[64];
        for (int i = 0; i < 64; ++i) codes[i] = (uint8_t)(first + i);
        __m512i both[2];
        as_brain(_mm512_loadu_si512(codes), both);
        std::memcpy(brains, both, sizeof brains);
        for (int i = 0; i < 64; ++i) {
            const float one = widen(brains[i % 16 / 8 * 32 + i / 16 * 8 + i % 8]) * FLOAT8_UNIT;
            expect(same(one, number_of(first + i)), "sixty-four float8 as bfloat16", one, number_of(first + i));
        }
    }
#endif
    // each code's number, the ties to the next one, and what is just beside those
    for (int code = 0; code < 0x7e; ++code) {
        const float low = number_of(code), high = number_of(code + 1), tie = (low + high) / 2;
        const float near[] = {low, tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f)};
        const int expected[] = {code, code + code % 2, code, code + 1};
        for (int i = 0; i < 4; ++i)
            for (const int sign : {0, 0x80}) {
                const int found = float8_of(set1(sign ? -near[i] : near[i]))[0];
                expect(found == (expected[i] | sign), "a float as float8", found, expected[i] | sign);
            }
    }
    expect(float8_of(set1(1e9f))[0] == 0x7e && float8_of(set1(-INFINITY))[0] == 0xfe, "what is too large as float8");
    expect((float8_of(set1(NAN))[0] & 0x7f) == 0x7f, "no number as float8");
}

void lanes() {
    for (int round = 0; round < 1000; ++round) {
        float x[LANES], tree[LANES];
        for (int i = 0; i < LANES; ++i) tree[i] = x[i] = normal();
        float most = x[0];
        for (int i = 1; i < LANES; ++i) most = std::max(most, x[i]);
        for (int width = LANES / 2; width > 0; width /= 2)
            for (int i = 0; i < width; ++i) tree[i] += tree[i + width];
        expect(hsum(load(x)) == tree[0], "the sum of a register", hsum(load(x)), tree[0]);
        expect(hmax(load(x)) == most, "the largest of a register", hmax(load(x)), most);
    }
}

template <bool WIDE>
void dots() {
    for (int round = 0; round < 2000; ++round) {
        uint8_t codes[LANES * 4];
        int8_t x[4];
        for (auto& code : codes) {
            const uint32_t any = draw();
            code = any & 256 ? (WIDE ? 255 : 15) : any & 512 ? 0 : WIDE ? any & 255 : any & 15;
        }
        for (auto& value : x) value = (int8_t)(draw() & 1 ? 127 : draw() & 1 ? -127 : (int)(draw() % 255) - 127);
        vi acc;
        for (int i = 0; i < LANES; ++i) acc[i] = i * 1000;
        const vi found = dot4<WIDE>(acc, load_as<vb>(codes), x);
        for (int i = 0; i < LANES; ++i) {
            int sum = i * 1000;
            for (int k = 0; k < 4; ++k) sum += ((int)codes[4 * i + k] - (WIDE && CENTRED ? 128 : 0)) * x[k];
            expect(found[i] == sum, WIDE ? "a product of eight-bit codes" : "a product of four-bit codes", found[i], sum);
        }
        uint8_t table[16];
        for (auto& value : table) value = (uint8_t)draw();
        for (auto& code : codes) code &= 15;
        const vb read = look_up(load_as<vb>(codes), table);
        for (int i = 0; i < LANES * 4; ++i) expect(read[i] == table[codes[i]], "a table", read[i], table[codes[i]]);
    }
}

void blocks() {
    for (int round = 0; round < 3000; ++round) {
        std::vector<float> x = normals(BLOCK);
        if (round % 7 == 0) x[draw() % BLOCK] *= 1000.0f;
        if (round % 11 == 0) x[5] = x[20];
        if (round % 13 == 0) x[draw() % BLOCK] = NAN;
        if (round == 1) std::fill(x.begin(), x.end(), 0.0f);
        const int64_t n = round % 3 ? BLOCK : 1 + draw() % BLOCK;
        ByteBlock b;
        quantize_block(x.data(), n, &b);
        std::fill(x.begin() + n, x.end(), 0.0f);
        int peak = -1;
        for (int i = 0; i < BLOCK && peak < 0; ++i)
            if (x[i] != x[i]) peak = i;
        for (int i = 0; i < BLOCK && peak < 0; ++i) {
            bool most = true;
            for (float other : x) most &= std::fabs(other) <= std::fabs(x[i]);
            if (most) peak = i;
        }
        expect(b.peak_at == peak, "where the peak is", b.peak_at, peak);
        if (x[peak] != x[peak]) continue;
        float scale = 0;
        for (int i = 0; i < BLOCK; ++i)
            if (i != peak) scale = std::max(scale, std::fabs(x[i]));
        scale /= 127.0f;
        const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
        const float place = x[peak] * inverse;
        const bool reached = inverse > 0 && std::fabs(place) <= FURTHEST;
        const int steps = reached ? (int)std::nearbyint(place) : inverse > 0 ? (int)std::copysign(FURTHEST, place) : 0;
        int sum = 0;
        for (int i = 0; i < BLOCK; ++i) {
            const int q = i == peak ? steps - (int)b.beyond : (int)std::nearbyint(x[i] * inverse);
            expect(b.q[i] == q, "an activation in eight bits", b.q[i], q);
            sum += i == peak ? steps : q;
        }
        expect(std::fmod(b.beyond, DIGIT) == 0 && std::abs(b.q[peak]) <= DIGIT / 2, "two digits", b.beyond, b.q[peak]);
        const float excess = reached ? 0.0f : x[peak] - scale * (float)steps;
        expect(same(b.scale, scale), "the scale of a block", b.scale, scale);
        expect(same(b.excess, excess), "what is out of reach", b.excess, excess);
        expect(same(b.sum, scale * (float)sum + excess), "the sum of a block", b.sum, scale * (float)sum + excess);
        expect(b.minus8 == -8 * sum, "what offsets add", b.minus8, -8 * sum);
    }
}

// Products beside sums in double precision of what the weight stores and what the rows have become.
void packed(int64_t kind, int64_t outputs, int64_t inputs) {
    const int64_t rows = 15, tiles = ceil_div(outputs, TILE), groups = ceil_div(inputs, BLOCK);
    const int64_t parts = std::max<int64_t>(1, scale_parts(kind));
    uint8_t* const codes = (uint8_t*)std::aligned_alloc(64, (size_t)(tiles * tile_bytes(kind, inputs) + 63) / 64 * 64);
    std::vector<float> held((size_t)(tiles * groups * parts * TILE)), factors((size_t)(tiles * TILE), 0.75f);
    const int64_t spans = ceil_div(groups, SPAN);
    std::vector<float> held_spans((size_t)(tiles * spans * TILE));
    const bool whole = kind == Q8H;  // there are no others of it
    const Packed w = {kind,        whole ? SIGNED : HALF, outputs, inputs, 1, codes, held.data(),
                      nullptr,     kind == NVFP4 ? factors.data() : nullptr, held_spans.data()};
    if (kind == F32 || kind == BF16) {
        const std::vector<float> values = normals(outputs * inputs);
        std::vector<bf16> brain(values.size());
        for (size_t i = 0; i < values.size(); ++i) narrow(values[i], &brain[i]);
        stentor_pack_plain(&w, kind == F32 ? (const uint8_t*)values.data() : (const uint8_t*)brain.data(), inputs, 0, outputs, 1);
    } else {
        std::vector<uint8_t> plain((size_t)(outputs * inputs));
        std::vector<float> scales((size_t)(outputs * groups * parts));
        for (auto& code : plain) code = (uint8_t)(draw() & (four_bits(kind) ? 15 : 255));
        for (auto& scale : scales)
            scale = whole ? (float)(draw() % 63) - 31.0f : std::ldexp(kind == MXFP4 ? 1.0f : 1.0f + (float)(draw() % 8) / 8, -6);
        const std::vector<float> of_spans((size_t)(outputs * spans), 0.0625f);
        stentor_pack_codes(&w, plain.data(), scales.data(), nullptr, whole ? of_spans.data() : nullptr, 0, outputs, 1);
    }
    std::vector<int64_t> all((size_t)outputs);
    for (int64_t i = 0; i < outputs; ++i) all[i] = i;
    std::vector<float> values((size_t)(outputs * inputs)), x = normals(rows * inputs);
    stentor_unpack_rows(&w, all.data(), outputs, values.data(), 1);
    std::vector<float> out((size_t)(rows * outputs)), alone((size_t)outputs);
    stentor_linear_packed(&w, x.data(), 0, inputs, nullptr, -1, out.data(), 0, rows, 2);
    const ActivationFormat format = activation_format_of(kind);
    const int64_t bytes = prepared_stride(format, inputs);
    uint8_t* const ready = (uint8_t*)std::aligned_alloc(64, (size_t)bytes);
    for (int64_t r = 0; r < rows; ++r) {
        prepare_row(x.data() + r * inputs, inputs, format, ready);
        for (int64_t o = 0; o < outputs; ++o) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < inputs; ++k) {
                const ByteBlock& b = ((const ByteBlock*)ready)[k / BLOCK];
                const double input = format == ActivationFormat::F32    ? ((const float*)ready)[k]
                                     : format == ActivationFormat::BF16 ? widen(((const bf16*)ready)[k])
                                     : k % BLOCK == b.peak_at
                                         ? (double)b.scale * (b.q[k % BLOCK] + (double)b.beyond) + b.excess
                                         : (double)b.scale * b.q[k % BLOCK];
                sum += input * values[o * inputs + k];
                size += std::fabs(input * values[o * inputs + k]);
            }
            const double found = out[r * outputs + o];
            expect(std::fabs(found - sum) <= 1e-5 * size + 1e-6, "a packed product", found, sum);
        }
        stentor_linear_packed(&w, x.data() + r * inputs, 0, inputs, nullptr, -1, alone.data(), 0, 1, 1);
        for (int64_t o = 0; o < outputs; ++o)
            expect(same(alone[o], out[r * outputs + o]), "a row alone", alone[o], out[r * outputs + o]);
    }
    std::free(ready);
    std::free(codes);
}

void plain(int64_t rows, int64_t columns, int64_t inner) {
    const std::vector<float> x = normals(rows * inner), weight = normals(columns * inner);
    std::vector<bf16> bx(x.size()), bw(weight.size()), bout((size_t)(rows * columns));
    for (size_t i = 0; i < x.size(); ++i) narrow(x[i], &bx[i]);
    for (size_t i = 0; i < weight.size(); ++i) narrow(weight[i], &bw[i]);
    std::vector<float> out((size_t)(rows * columns));
    stentor_linear_f32(x.data(), weight.data(), nullptr, out.data(), rows, columns, inner, inner, inner, 2);
    stentor_linear_bf16(bx.data(), bw.data(), nullptr, bout.data(), rows, columns, inner, inner, inner, 2);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
            double sum = 0, brain = 0;
            for (int64_t k = 0; k < inner; ++k) {
                sum += (double)x[r * inner + k] * weight[c * inner + k];
                brain += (double)widen(bx[r * inner + k]) * widen(bw[c * inner + k]);
            }
            const double found = out[r * columns + c], rounded = widen(bout[r * columns + c]);
            expect(std::fabs(found - sum) <= 1e-5 * std::sqrt(inner), "a product of floats", found, sum);
            expect(std::fabs(rounded - brain) <= std::fabs(brain) / 200 + 1e-3, "a product of bfloat16", rounded, brain);
        }
}

}  // namespace

int main() {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    conversions<bf16>("bfloat16 as a float", "a float as bfloat16");
    conversions<f16>("float16 as a float", "a float as float16");
    float8();
    lanes();
    dots<false>();
    dots<true>();
    blocks();
    for (int64_t kind : {F32, BF16, Q4, Q4M, Q8, Q8H, Q8M, IQ4NL, MXFP4, NVFP4, Q4Z, Q8Z}) {
        packed(kind, 17, 33);
        packed(kind, 40, 256);
    }
    for (int64_t rows : {1, 2, 5, 13}) plain(rows, 19, 67);
    std::printf("%d of a register of %d lanes differ\n", failures, LANES);
    return failures != 0;
}
