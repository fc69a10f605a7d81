// Tiles: eight registers of up to 16 rows of 64 bytes, and products of two of them added to a third, as Intel's AMX has
// them. Kernels are written once, over a class of a dozen operations, which has two bodies:
//
//     Hardware   the instructions; where the compiler's target has them
//     Emulator   plain C++ that gives the same bits, after the pseudo code in Intel's manual; on any x86-64 with FMA, where
//                STENTOR_EMULATED_TILES is defined, as the tests' own library has it
//
// Which of them runs, if any, is decided as the library is loaded (form()). A thread configures its tiles for each call of
// a kernel and releases them behind it (Shaped): nothing is left for the system to save, or for other users of tiles.
//
//     C [rows, 16] += A [rows, 4 n bytes] B [n, 16 outputs of 4 bytes]
//
// A row of A runs along K. Four bytes of K of each of 16 outputs are a row of B, which is how packed weights lie
// (linear_packed/packed.h): two values of bfloat16, or four of eight bits.
#pragma once

#include "vec.h"

#include <algorithm>

namespace stentor {
namespace tiles {

enum class Form : int64_t { NONE = 0, HARDWARE = 1, EMULATED = 2 };

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define STENTOR_AMX 1
#endif
#if defined(STENTOR_EMULATED_TILES) && !(defined(__x86_64__) && defined(__FMA__))
#error "vectors give the bits of tiles by fused multiply-adds of x86-64"
#endif
#if defined(STENTOR_AMX) || defined(STENTOR_EMULATED_TILES)
#define STENTOR_TILES 1
#endif

constexpr int64_t ROWS = 16;
constexpr int64_t BYTES = 64;  // per row
constexpr int64_t PAIRS = 16;  // bfloat16 pairs per row that one instruction sums

// Rows from which products go by tiles; vectors take fewer. Bits do not depend on it. It goes by what the weights are: codes of
// four bits have to be unpacked first, and of bfloat16 vectors have no product that sums as tiles do. What was measured on a
// Xeon with AMX, until it is measured on this machine (linear_packed/crossover.py).
enum class Weights : int64_t { BRAIN = 0, NIBBLES = 1, BYTES = 2 };
constexpr int64_t USUAL_ROWS[3] = {4, 16, 10};
int64_t from_rows(Weights weights);  // native_amx.cpp

// Defined in native_amx.cpp.
Form form();

// The operand of LDTILECFG: rows and bytes per row of each tile.
struct alignas(64) Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int64_t row_count, int64_t row_bytes) {
        rows[tile] = (uint8_t)row_count;
        bytes[tile] = (uint16_t)row_bytes;
    }
};
static_assert(sizeof(Shapes) == 64, "as the instruction reads it");

#if defined(STENTOR_AMX)

// Uses inline assembly, because GCC's intrinsics take tile numbers only as literals and do not declare that
// they touch memory.
struct Hardware {
    static void configure(const Shapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
    static void release() { asm volatile("tilerelease"); }
    template <int T>
    static void zero() {
        asm volatile("tilezero %%tmm%c0" : : "i"(T));
    }
    template <int T>
    static void load(const void* from, int64_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
    }
    template <int T>
    static void store(void* to, int64_t stride) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
    }
    template <int C, int A, int B>
    static void add_bf16() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
    }
    template <int C, int A, int B>
    static void add_signed() {
        asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
    }
    template <int C, int A, int B>
    static void add_signed_by_unsigned() {
        asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
    }
};

#endif

#if defined(STENTOR_EMULATED_TILES)

// Ends the process where the processor would raise an exception. Defined in native_amx.cpp.
[[noreturn]] void refuse(const char* what);

static inline float small(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

// a * b + c of numbers that are not small, a and b of bfloat16, rounded once. A result is small if it would be so with any
// exponent: of 2^-126, to which more is rounded than that, it takes a second look.
static inline float multiply_add(float a, float b, float c) {
    const float sum = std::fma(a, b, c);
    if (!(std::fabs(sum) <= 0x1p-126f)) return sum;
    if (std::fabs(sum) == 0x1p-126f && std::fabs(c) < 0x1p-100f) {  // of larger parts it is exact
        constexpr double LEAST = 0x1p-126 - 0x1p-151;
        const double sign = std::copysign(1.0, sum);
        if (std::fma(sign * a, (double)b, sign * c - LEAST) >= 0.0) return sum;
        return std::copysign(0.0f, sum);
    }
    return small(sum);
}

class Emulator {
   public:
    static void configure(const Shapes& shapes) {
        Registers& all = registers();
        all = Registers{};
        if (shapes.palette != 1 || shapes.start_row != 0) refuse("a palette or first row that there is not");
        for (int t = 0; t < 16; ++t) {
            const bool none = shapes.rows[t] == 0 && shapes.bytes[t] == 0, whole = shapes.rows[t] && shapes.bytes[t];
            if (t >= COUNT ? !none : !none && !whole) refuse("a tile of no size");
            if (shapes.rows[t] > ROWS || shapes.bytes[t] > BYTES) refuse("a tile that is too large");
            if (t < COUNT) all.tile[t].rows = shapes.rows[t], all.tile[t].bytes = shapes.bytes[t];
        }
    }
    static void release() { registers() = Registers{}; }

    template <int T>
    static void zero() {
        std::memset(of(T).data, 0, sizeof(of(T).data));
    }
    template <int T>
    static void load(const void* from, int64_t stride) {
        Tile& tile = of(T);
        std::memset(tile.data, 0, sizeof tile.data);
        for (int64_t r = 0; r < tile.rows; ++r)
            std::memcpy(tile.data[r], (const char*)from + r * stride, (size_t)tile.bytes);
    }
    template <int T>
    static void store(void* to, int64_t stride) {
        const Tile& tile = of(T);
        for (int64_t r = 0; r < tile.rows; ++r) std::memcpy((char*)to + r * stride, tile.data[r], (size_t)tile.bytes);
    }

    // The pairs of a row are two chains of sums, from zero, of which the sum is added to what there is.
    template <int C, int A, int B>
    static void add_bf16() {
        by_rows<C, A, B>([](const Tile& a, const Tile& b, int64_t m, int64_t n, void* sum) {
            float even = 0.0f, odd = 0.0f, so_far;
            for (int64_t k = 0; k < b.rows; ++k) {
                even = multiply_add(number(a, m, 2 * k), number(b, k, 2 * n), even);
                odd = multiply_add(number(a, m, 2 * k + 1), number(b, k, 2 * n + 1), odd);
            }
            std::memcpy(&so_far, sum, 4);
            so_far = small(small(so_far) + small(even + odd));
            std::memcpy(sum, &so_far, 4);
        });
    }
    template <int C, int A, int B>
    static void add_signed() {
        add_bytes<C, A, B, int8_t>();
    }
    template <int C, int A, int B>
    static void add_signed_by_unsigned() {
        add_bytes<C, A, B, uint8_t>();
    }

   private:
    static constexpr int COUNT = 8;

    struct Tile {
        int64_t rows, bytes;
        alignas(64) uint8_t data[ROWS][BYTES];
    };
    struct Registers {
        Tile tile[COUNT];
    };
    static Registers& registers() {
        static thread_local Registers all = {};
        return all;
    }
    static Tile& of(int number) {
        Tile& tile = registers().tile[number];
        if (tile.rows == 0) refuse("a tile that is not configured");
        return tile;
    }
    static float number(const Tile& tile, int64_t row, int64_t column) {
        bf16 value;
        std::memcpy(&value, tile.data[row] + 2 * column, 2);
        return small(widen(value));
    }
    template <int C, int A, int B, class Element>
    static void by_rows(const Element& element) {
        Tile &c = of(C), &a = of(A), &b = of(B);
        if (c.rows != a.rows || a.bytes != 4 * b.rows || b.bytes != c.bytes) refuse("tiles that do not fit each other");
        if (c.bytes % 4) refuse("a row that ends within a number");
        for (int64_t m = 0; m < c.rows; ++m)
            for (int64_t n = 0; n < c.bytes / 4; ++n) element(a, b, m, n, c.data[m] + 4 * n);
    }
    template <int C, int A, int B, class Right>
    static void add_bytes() {
        by_rows<C, A, B>([](const Tile& a, const Tile& b, int64_t m, int64_t n, void* sum) {
            uint32_t so_far;
            std::memcpy(&so_far, sum, 4);
            for (int64_t k = 0; k < b.rows; ++k)
                for (int64_t i = 4 * k; i < 4 * k + 4; ++i)
                    so_far += (uint32_t)((int8_t)a.data[m][i] * (Right)b.data[k][4 * n + i % 4]);
            std::memcpy(sum, &so_far, 4);
        });
    }
};

#endif

#if defined(STENTOR_TILES)

// Calls body(Hardware()) or body(Emulator()), as form() says, and returns its result; `otherwise` if there are no
// tiles.
template <class Body, class Result>
static inline Result with_tiles(const Body& body, Result otherwise) {
    switch (form()) {
#if defined(STENTOR_AMX)
        case Form::HARDWARE: return body(Hardware());
#endif
#if defined(STENTOR_EMULATED_TILES)
        case Form::EMULATED: return body(Emulator());
#endif
        default: return otherwise;
    }
}

// The shapes of an area of up to 32 rows by two tiles: sums are tiles 0 to 3, row by row, inputs of `input_bytes` 4 and 5,
// weights 6 and 7. With `halves` the second row of tiles is for the same rows again.
template <class Tiles>
static inline void configure_area(int64_t count, int64_t input_bytes, bool halves = false) {
    Shapes shapes;
    for (int g = 0; g < 2; ++g) {
        const int64_t rows = halves ? count : std::min(ROWS, count - g * ROWS);
        if (rows <= 0) break;
        shapes.set(2 * g, rows, BYTES);
        shapes.set(2 * g + 1, rows, BYTES);
        shapes.set(4 + g, rows, input_bytes);
    }
    for (int t = 6; t < 8; ++t) shapes.set(t, input_bytes / 4, BYTES);
    Tiles::configure(shapes);
}

// An area that is reconfigured when the number of its rows changes, and released at the end.
template <class Tiles>
class Shaped {
   public:
    Shaped() = default;
    ~Shaped() {
        if (count_) Tiles::release();
    }
    Shaped(const Shaped&) = delete;
    Shaped& operator=(const Shaped&) = delete;

    void take(int64_t count, int64_t input_bytes = BYTES, bool halves = false) {
        if (count == count_) return;
        configure_area<Tiles>(count, input_bytes, halves);
        count_ = count;
    }

   private:
    int64_t count_ = 0;
};

// sums [count, 32] += a [count, 32 n] b [16 n pairs, 32, 2], of bfloat16: n chunks, `a_chunk` and `b_chunk` bytes apart,
// rows of a, b and sums `a_row`, `b_row` and `sum_row` bytes. FROM_ZERO: sums = a b.
template <class Tiles, bool FROM_ZERO>
static inline void add_area(int64_t count, int64_t chunks, const char* a, int64_t a_row, int64_t a_chunk, const char* b,
                            int64_t b_row, int64_t b_chunk, float* sums, int64_t sum_row) {
    const bool deep = count > ROWS;
    float* const lower = (float*)((char*)sums + ROWS * sum_row);
    if constexpr (FROM_ZERO) {
        Tiles::template zero<0>();
        Tiles::template zero<1>();
        if (deep) {
            Tiles::template zero<2>();
            Tiles::template zero<3>();
        }
    } else {
        Tiles::template load<0>(sums, sum_row);
        Tiles::template load<1>(sums + ROWS, sum_row);
        if (deep) {
            Tiles::template load<2>(lower, sum_row);
            Tiles::template load<3>(lower + ROWS, sum_row);
        }
    }
    for (int64_t n = 0; n < chunks; ++n, a += a_chunk, b += b_chunk) {
        Tiles::template load<4>(a, a_row);
        Tiles::template load<6>(b, b_row);
        Tiles::template load<7>(b + BYTES, b_row);
        Tiles::template add_bf16<0, 4, 6>();
        Tiles::template add_bf16<1, 4, 7>();
        if (!deep) continue;
        Tiles::template load<5>(a + ROWS * a_row, a_row);
        Tiles::template add_bf16<2, 5, 6>();
        Tiles::template add_bf16<3, 5, 7>();
    }
    Tiles::template store<0>(sums, sum_row);
    Tiles::template store<1>(sums + ROWS, sum_row);
    if (deep) {
        Tiles::template store<2>(lower, sum_row);
        Tiles::template store<3>(lower + ROWS, sum_row);
    }
}

// Not inlined, so that no arithmetic is moved out of it.
template <class Body>
__attribute__((noinline)) void call(const Body& body) {
    body();
}

// Runs body() with subnormal numbers treated as zero, as tile products do, so that vectors give the same bits.
template <class Body>
inline void flushing(const Body& body) {
    constexpr unsigned FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x40;
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
    call(body);
    _mm_setcsr(before);
}

// The sums of pairs as an instruction takes them: two chains, from zero, of up to PAIRS pairs. Each lane gains the
// products of its pair with `pair`.
struct PairSum {
    vf even = {}, odd = {};

    static vf first(vu pairs) { return (vf)(pairs << 16); }
    static vf second(vu pairs) { return (vf)(pairs & 0xffff0000u); }

    void add(vf first_of, vf second_of, vf first_by, vf second_by) {
        even = fma(first_of, first_by, even);
        odd = fma(second_of, second_by, odd);
    }
    vf added_to(vf sum) const { return sum + (even + odd); }
};

#endif

}  // namespace tiles
}  // namespace stentor
