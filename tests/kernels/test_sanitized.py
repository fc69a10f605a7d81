"""The kernels on emulated tiles under the compiler's sanitizers: they touch what is theirs, and threads do not meet."""

import os
import subprocess
from pathlib import Path

import pytest

from stentor.kernels import native
from stentor.kernels.native.build import find_compiler, find_sources
from stentor.tests.kernels.tile_library import IS_X86

pytestmark = [pytest.mark.proof, pytest.mark.skipif(not IS_X86, reason="tiles are x86's")]

SOURCES = ("linear_packed/", "native/", "attention/native_bf16.cpp")
"""What multiplies on tiles, and what it takes: attention over bfloat16 alone, for each unit takes long to compile."""
PROGRAM = r"""
#include "../linear_packed/expand.h"
#include <cstdio>
#include <memory>
#include <vector>
using namespace stentor;
extern "C" {
int64_t stentor_use_tiles(int64_t form);
int64_t stentor_use_tiles_from(int64_t weights, int64_t rows);
void stentor_pack_plain(const Packed*, const uint8_t*, int64_t, int64_t, int64_t, int64_t);
void stentor_pack_codes(const Packed*, const uint8_t*, const float*, const int16_t*, const float*, int64_t, int64_t,
                        int64_t);
int64_t stentor_linear_packed(const Packed*, const void*, int64_t, int64_t, const float*, int64_t, void*, int64_t,
                              int64_t, int64_t);
int64_t stentor_paged_attention_bf16(const bf16*, const bf16*, const bf16*, bf16*, const int32_t*, const int32_t*,
                                     const int32_t*, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                                     int64_t, int64_t, float, int64_t, float, const float*, const float*,
                                     const float*, int64_t, bool, int64_t);
}
// memory of exactly the size that is needed: a byte past it is somebody else's
template <class T>
std::unique_ptr<T[]> filled(int64_t count, int seed) {
    std::unique_ptr<T[]> out(new T[count]);
    for (int64_t i = 0; i < count; ++i) {
        const int draw = (int)((i * 7919 + seed * 104729) % 251) - 125;
        if constexpr (std::is_same<T, bf16>::value)
            narrow(draw / 64.0f, &out[i]);
        else
            out[i] = std::is_same<T, float>::value ? (T)(draw / 64.0f) : (T)(draw & 15);
    }
    return out;
}
void multiply(int64_t kind, int64_t outputs, int64_t inputs, int64_t rows) {
    const int64_t tiles = ceil_div(outputs, TILE), blocks = ceil_div(inputs, BLOCK);
    const int64_t bytes = tiles * tile_bytes(kind, inputs);
    std::unique_ptr<uint8_t, void (*)(void*)> codes((uint8_t*)std::aligned_alloc(64, bytes), std::free);
    std::memset(codes.get(), 0, bytes);
    const auto scales = filled<uint16_t>(tiles * blocks * 2 * TILE, 0);
    Packed w{kind, HALF, outputs, inputs, 1, codes.get(), scales.get(), nullptr, nullptr, nullptr};
    if (kind == BF16) {
        stentor_pack_plain(&w, (const uint8_t*)filled<bf16>(outputs * inputs, 1).get(), inputs, 0, outputs, 1);
    } else {
        stentor_pack_codes(&w, filled<uint8_t>(outputs * inputs, 1).get(),
                           filled<float>(outputs * blocks * scale_parts(kind), 2).get(), nullptr, nullptr, 0, outputs,
                           1);
        const int64_t each = tile_bytes(BF16, inputs);
        std::unique_ptr<uint8_t, void (*)(void*)> room((uint8_t*)std::aligned_alloc(64, each), std::free);
        for (int64_t tile = 0; tile < tiles; ++tile) expand_tile(w, tile, room.get());
    }
    const auto x = filled<float>(rows * inputs, 3), bias = filled<float>(outputs, 4);
    const auto brain = filled<bf16>(rows * inputs, 3);
    const bool ready = kind == BF16 && inputs % 2 == 0;
    std::unique_ptr<float[]> many(new float[rows * outputs]), alone(new float[outputs]);
    const auto run = [&](int64_t row, int64_t count, float* out, int64_t threads) {
        const void* from = ready ? (const void*)(brain.get() + row * inputs) : x.get() + row * inputs;
        stentor_linear_packed(&w, from, ready, inputs, bias.get(), -1, out, 0, count, threads);
    };
    run(0, rows, many.get(), 3);
    for (int64_t row = 0; row < rows; row += 7) {
        run(row, 1, alone.get(), 1);
        if (std::memcmp(alone.get(), many.get() + row * outputs, outputs * 4)) std::puts("bits differ"), std::exit(2);
    }
}
void attend(int64_t dim, int64_t heads, int64_t length, int64_t count, int64_t window) {
    constexpr int64_t SIZE = 16;
    const int64_t blocks = ceil_div(length, SIZE);
    const auto q = filled<bf16>(count * heads * dim, 1), k = filled<bf16>(blocks * dim * SIZE, 2);
    const auto v = filled<bf16>(blocks * dim * SIZE, 3);
    std::vector<int32_t> table(blocks), starts{0, (int32_t)count}, lengths{(int32_t)length};
    for (int64_t b = 0; b < blocks; ++b) table[b] = (int32_t)b;
    std::unique_ptr<bf16[]> out(new bf16[count * heads * dim]);
    stentor_paged_attention_bf16(q.get(), k.get(), v.get(), out.get(), starts.data(), lengths.data(), table.data(), 1,
                                 count, heads, 1, dim, SIZE, blocks, blocks, heads * dim, 0.2f, window, 0.0f, nullptr,
                                 nullptr, nullptr, 0, false, 3);
}
int main() {
    if (stentor_use_tiles(2)) return 3;
    for (const int64_t weights : {0, 1, 2}) stentor_use_tiles_from(weights, 5);
    for (const int64_t kind : {(int64_t)BF16, (int64_t)Q4, (int64_t)Q4M, (int64_t)Q8, (int64_t)Q8M, (int64_t)IQ4NL})
        for (const int64_t rows : {1, 4, 5, 16, 17, 33})
            for (const auto& shape : {std::pair<int64_t, int64_t>{1, 1}, {17, 33}, {35, 70}, {200, 64}})
                multiply(kind, shape.first, shape.second, rows);
    for (const int64_t count : {1, 3, 20, 45})
        for (const int64_t window : {0, 9}) attend(64, 3, 77, count, window), attend(32, 6, 51, count, window);
    return 0;
}
"""


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_kernels_on_tiles_run_clean(sanitizer: str, tmp_path: Path) -> None:
    """Also that a row has its bits by itself, with threads that help."""
    folder, main, program = Path(native.__file__).parent, tmp_path / "main.cpp", tmp_path / "program"
    main.write_text(PROGRAM)
    sources = [str(path) for path in find_sources() if f"{path.parent.name}/{path.name}".startswith(SOURCES)]
    options = ["-std=c++17", "-O1", "-g1", "-march=native", "-pthread", "-ffp-contract=off", "-Wno-psabi"]
    options += ["-DSTENTOR_EMULATED_TILES", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", f"-I{folder}"]
    objects = []
    for number, source in enumerate([str(main), *sources]):
        objects.append(str(tmp_path / f"{number}.o"))
        subprocess.run([find_compiler(), *options, "-c", source, "-o", objects[-1]], check=True)
    subprocess.run([find_compiler(), *options, *objects, "-o", str(program)], check=True)
    done = subprocess.run(
        [program], capture_output=True, text=True, check=False, env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
