// Products of packed weights, attention and adapters for the compiler's sanitizers: memory of exactly the size that is
// needed, three threads, given shapes and drawn ones. A row that has other bits by itself ends the program.
#include "../../kernels/linear_packed/expand.h"
#include "../../kernels/low_rank/low_rank.h"
#include "../../kernels/native/codes.h"
#include "../../kernels/native/float8.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

using namespace stentor;

template <class Q, class T>
using Attend = int64_t(const Q*, const T*, const T*, Q*, const int32_t*, const int32_t*, const int32_t*, int64_t, int64_t,
                       int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, float, int64_t, float,
                       const float*, const float*, const float*, const float*, const float*, float*, int64_t, int64_t,
                       int64_t, bool, int64_t);
extern "C" {
int64_t stentor_use_tiles(int64_t form);
int64_t stentor_use_tiles_from(int64_t weights, int64_t rows);
void stentor_pack_plain(const Packed*, const uint8_t*, int64_t, int64_t, int64_t, int64_t);
void stentor_pack_codes(const Packed*, const uint8_t*, const float*, const int16_t*, const float*, int64_t, int64_t, int64_t);
int64_t stentor_linear_packed(const Packed*, const void*, int64_t, int64_t, const float*, int64_t, void*, int64_t, int64_t,
                              int64_t);
void stentor_low_rank_f32(float*, int64_t, const float*, int64_t, const low_rank::Slots*, const low_rank::Rows*, int64_t);
Attend<bf16, bf16> stentor_paged_attention_bf16;
Attend<float, i8> stentor_paged_attention_int8_f32;
Attend<bf16, i8> stentor_paged_attention_int8_bf16;
Attend<float, e4m3> stentor_paged_attention_float8_f32;
Attend<bf16, e4m3> stentor_paged_attention_float8_bf16;
}

namespace {

constexpr int64_t THREADS = 3;
std::mt19937 random_bits(1);

int64_t from_to(int64_t least, int64_t most) { return least + random_bits() % (uint64_t)(most - least + 1); }
template <class T>
T one_of(std::initializer_list<T> values) {
    return values.begin()[from_to(0, (int64_t)values.size() - 1)];
}

void put(float value, float* to) { *to = value; }
void put(float value, bf16* to) { narrow(value, to); }
void put(float value, i8* to) { to->code = (int8_t)(value * 64.0f); }
void put(float value, e4m3* to) { to->bits = (uint8_t)((int)(value * 64.0f) & 0x7b); }
void put(float value, uint8_t* to) { *to = (uint8_t)((int)(value * 64.0f) & 15); }

// Numbers between -2 and 2, or codes.
template <class T>
std::unique_ptr<T[]> filled(int64_t count) {
    std::unique_ptr<T[]> out(new T[(size_t)count]);
    for (int64_t i = 0; i < count; ++i) put((float)from_to(-127, 127) / 64.0f, &out[(size_t)i]);
    return out;
}

void expect_same(const void* a, const void* b, size_t bytes, const char* what) {
    if (std::memcmp(a, b, bytes) == 0) return;
    std::printf("%s: a row has other bits by itself\n", what);
    std::exit(2);
}

// A packed weight and its memory.
struct Weight {
    std::unique_ptr<uint8_t, void (*)(void*)> codes;
    std::unique_ptr<uint16_t[]> scales, spans;
    std::unique_ptr<float[]> factors;
    Packed packed;

    Weight(int64_t kind, int64_t outputs, int64_t inputs)
        : codes((uint8_t*)std::aligned_alloc(64, (size_t)(ceil_div(outputs, TILE) * tile_bytes(kind, inputs))), std::free) {
        const int64_t tiles = ceil_div(outputs, TILE), blocks = ceil_div(inputs, BLOCK), parts = scale_parts(kind);
        std::memset(codes.get(), 0, (size_t)(tiles * tile_bytes(kind, inputs)));
        scales.reset(new uint16_t[(size_t)(tiles * blocks * parts * TILE)]());
        spans.reset(new uint16_t[(size_t)(tiles * ceil_div(blocks, SPAN) * TILE)]());
        if (kind == NVFP4) factors = filled<float>(tiles * TILE);
        const bool whole = kind == Q8H;  // there are no others of it
        packed = {kind,    whole ? SIGNED : HALF, outputs, inputs, 1, codes.get(), scales.get(),
                  nullptr, factors.get(),         spans.get()};
        if (kind == F32) {
            stentor_pack_plain(&packed, (const uint8_t*)filled<float>(outputs * inputs).get(), inputs, 0, outputs, 1);
        } else if (kind == BF16) {
            stentor_pack_plain(&packed, (const uint8_t*)filled<bf16>(outputs * inputs).get(), inputs, 0, outputs, 1);
        } else {
            std::vector<float> given((size_t)(outputs * blocks * parts));
            for (float& scale : given) scale = whole ? (float)from_to(-31, 31) : std::ldexp(1.0f, (int)from_to(-7, 1));
            const std::vector<float> of_spans((size_t)(outputs * ceil_div(blocks, SPAN)), 0.25f);
            stentor_pack_codes(&packed, filled<uint8_t>(outputs * inputs).get(), given.data(), nullptr,
                               whole ? of_spans.data() : nullptr, 0, outputs, 1);
        }
    }
};

void multiply(int64_t kind, int64_t outputs, int64_t inputs, int64_t rows) {
    const Weight weight(kind, outputs, inputs);
#if defined(STENTOR_TILES)
    if (has_codes(weight.packed)) expanded(weight.packed, 0, ceil_div(outputs, TILE), 0);
#endif
    const auto x = filled<float>(rows * inputs), bias = filled<float>(outputs);
    const auto brain = filled<bf16>(rows * inputs);
    const bool ready = kind == BF16 && inputs % 2 == 0;
    std::unique_ptr<float[]> many(new float[(size_t)(rows * outputs)]), alone(new float[(size_t)outputs]);
    const auto run = [&](int64_t row, int64_t count, float* out, int64_t threads) {
        const void* from = ready ? (const void*)(brain.get() + row * inputs) : x.get() + row * inputs;
        stentor_linear_packed(&weight.packed, from, ready, inputs, bias.get(), -1, out, 0, count, threads);
    };
    run(0, rows, many.get(), THREADS);
    for (int64_t row = 0; row < rows; row += 7) {
        run(row, 1, alone.get(), 1);
        expect_same(alone.get(), many.get() + row * outputs, (size_t)outputs * 4, "a product");
    }
}

struct Heads {
    int64_t count, group, dim, size;  // those of keys; queries to each; numbers; tokens of a block
};

// Sequences of (keys, queries). The last query of each has its bits alone.
template <class Q, class T>
void attend(Attend<Q, T>& call, const Heads& of, const std::vector<std::pair<int32_t, int32_t>>& sequences, int64_t window,
            float softcap) {
    const int64_t heads = of.count * of.group, row = heads * of.dim;
    std::vector<int32_t> starts{0}, lengths;
    int64_t width = 0, used = 0, tokens = 0;
    for (const auto& [length, fresh] : sequences) {
        width = std::max(width, ceil_div(length, of.size)), used += ceil_div(length, of.size), tokens += fresh;
        lengths.push_back(length), starts.push_back((int32_t)tokens);
    }
    std::vector<int32_t> places((size_t)used), tables((size_t)(width * (int64_t)sequences.size()), -1);
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), random_bits);
    for (size_t s = 0, next = 0; s < sequences.size(); ++s)
        for (int64_t b = 0; b < ceil_div(lengths[s], of.size); ++b) tables[s * (size_t)width + (size_t)b] = places[next++];
    const auto q = filled<Q>(tokens * row);
    const auto k = filled<T>(used * of.count * of.dim * of.size), v = filled<T>(used * of.count * of.dim * of.size);
    const int64_t scale_count = std::is_same<T, i8>::value ? used * of.count * of.size : of.count;
    const auto k_scales = filled<float>(scale_count), v_scales = filled<float>(scale_count), sinks = filled<float>(heads);
    constexpr int64_t DISTANCES = 33;
    const auto slopes = filled<float>(heads), by_distance = filled<float>(heads * DISTANCES);
    std::unique_ptr<Q[]> out(new Q[(size_t)(tokens * row)]), alone(new Q[(size_t)row]);
    std::unique_ptr<float[]> logsums(new float[(size_t)(tokens * heads)]);
    const auto run = [&](const Q* from, Q* to, const int32_t* start, const int32_t* length, const int32_t* table,
                         int64_t count, int64_t queries) {
        return call(from, k.get(), v.get(), to, start, length, table, count, queries, heads, of.count, of.dim, of.size, used,
                    width, row, 0.2f, window, softcap, sinks.get(), window > 0 ? nullptr : slopes.get(), k_scales.get(),
                    v_scales.get(), window > 0 ? by_distance.get() : nullptr, logsums.get(), DISTANCES, 0, 0, false, THREADS);
    };
    if (run(q.get(), out.get(), starts.data(), lengths.data(), tables.data(), (int64_t)sequences.size(), tokens) != -1)
        std::puts("attention was refused"), std::exit(2);
    for (size_t s = 0; s < sequences.size(); ++s) {
        const int32_t one[] = {0, 1};
        const int64_t last = starts[s + 1] - 1;
        run(q.get() + last * row, alone.get(), one, &lengths[s], tables.data() + s * (size_t)width, 1, 1);
        expect_same(alone.get(), out.get() + last * row, (size_t)row * sizeof(Q), "attention");
    }
}

void adapt(int64_t kind, int64_t inputs, int64_t tokens, const std::vector<int64_t>& outputs) {
    using namespace low_rank;
    const int64_t columns = std::accumulate(outputs.begin(), outputs.end(), (int64_t)0);
    std::vector<std::unique_ptr<Weight>> held;
    std::vector<std::vector<Part>> parts(2);
    std::vector<Adapter> adapters;
    for (std::vector<Part>& some : parts) {
        int64_t ranks = 0, column = 0;
        for (const int64_t count : outputs) {
            const int64_t rank = from_to(1, 40);
            held.push_back(std::make_unique<Weight>(kind, count, rank));
            some.push_back({held.back()->packed, column, ranks, 0.5});
            ranks += rank, column += count;
        }
        held.push_back(std::make_unique<Weight>(kind, ranks, inputs));
        adapters.push_back({held.back()->packed, some.data(), (int64_t)some.size()});
    }
    const Adapter* const by_slot[] = {&adapters[0], nullptr, &adapters[1]};
    const Slots slots{by_slot, 3};
    std::vector<int64_t> of_slot[3], which{0, 1, 2}, starts{0}, rows;
    for (int64_t row = 0; row < tokens; ++row)
        if (const int64_t slot = from_to(0, 3); slot < 3) of_slot[slot].push_back(row);
    for (const auto& some : of_slot) rows.insert(rows.end(), some.begin(), some.end()), starts.push_back((int64_t)rows.size());
    const Rows of{3, which.data(), starts.data(), rows.data()};
    const auto x = filled<float>(tokens * inputs), before = filled<float>(tokens * columns);
    const auto copied = [&](int64_t row, int64_t count) {
        std::unique_ptr<float[]> to(new float[(size_t)(count * columns)]);
        std::memcpy(to.get(), before.get() + row * columns, (size_t)(count * columns) * 4);
        return to;
    };
    const auto many = copied(0, tokens);
    stentor_low_rank_f32(many.get(), columns, x.get(), inputs, &slots, &of, THREADS);
    for (int64_t slot = 0; slot < 3; ++slot)
        for (const int64_t row : of_slot[slot]) {
            const int64_t one[] = {0, 1}, first = 0;
            const Rows it{1, &slot, one, &first};
            const auto alone = copied(row, 1);
            stentor_low_rank_f32(alone.get(), columns, x.get() + row * inputs, inputs, &slots, &it, 1);
            expect_same(alone.get(), many.get() + row * columns, (size_t)columns * 4, "an adapter");
        }
}

void draw() {
    for (const int64_t kind : {F32, BF16, Q4, Q4M, Q8, Q8H, Q8M, IQ4NL, MXFP4, NVFP4, Q4Z, Q8Z})
        for (int round = 0; round < 4; ++round) multiply(kind, from_to(1, 150), from_to(1, 300), from_to(1, 70));
    for (int round = 0; round < 8; ++round) {
        const Heads heads{from_to(1, 2), from_to(1, 6), one_of<int64_t>({16, 24, 32, 64, 96}), one_of<int64_t>({16, 32, 64})};
        std::vector<std::pair<int32_t, int32_t>> sequences((size_t)from_to(1, 3));
        for (auto& [length, fresh] : sequences) fresh = (int32_t)from_to(1, 40), length = fresh + (int32_t)from_to(0, 600);
        const int64_t window = one_of<int64_t>({0, 40, -50});
        const float softcap = one_of({0.0f, 5.0f});
        attend(stentor_paged_attention_bf16, heads, sequences, window, softcap);
        attend(stentor_paged_attention_int8_f32, heads, sequences, window, softcap);
        attend(stentor_paged_attention_int8_bf16, heads, sequences, window, softcap);
        attend(stentor_paged_attention_float8_f32, heads, sequences, window, softcap);
        attend(stentor_paged_attention_float8_bf16, heads, sequences, window, softcap);
    }
    for (int round = 0; round < 12; ++round)
        adapt(one_of({F32, BF16}), from_to(1, 200), from_to(1, 60), {from_to(1, 90), from_to(1, 40)});
}

}  // namespace

int main() {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
#if defined(STENTOR_EMULATED_TILES)
    if (stentor_use_tiles(2)) return 3;
    for (const int64_t weights : {0, 1, 2}) stentor_use_tiles_from(weights, 5);
#endif
    for (const int64_t kind : {BF16, Q4, Q4M, Q8, Q8M, IQ4NL})
        for (const int64_t rows : {1, 4, 5, 16, 17, 33})
            for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{1, 1}, {17, 33}, {35, 70}, {200, 64}})
                multiply(kind, outputs, inputs, rows);
    for (const int32_t count : {1, 3, 20, 45})
        for (const int64_t window : {0, 9}) {
            attend(stentor_paged_attention_bf16, {1, 3, 64, 16}, {{77, count}}, window, 0.0f);
            attend(stentor_paged_attention_bf16, {1, 6, 32, 16}, {{51, count}}, window, 0.0f);
        }
    draw();
    return 0;
}
