"""Products and attention on tiles, by an emulator of the instructions and, where the processor has them, by these: the
reference's results, each row by itself, and the same bits from both."""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.kernels import native
from stentor.kernels.attention import AttentionBatch
from stentor.kernels.linear_packed import PackedKind, Scaling, linear_packed
from stentor.kernels.linear_packed.crossover import KINDS as CROSSOVER_KINDS
from stentor.kernels.linear_packed.crossover import ROWS, describe_crossover, measure_crossover, use_tiles_from
from stentor.kernels.linear_packed.weight import PARTS
from stentor.kernels.native.build import build, find_compiler, find_sources
from stentor.kernels.native.processor import TileForm, describe_tiles, force_tiles, tile_form
from stentor.tests.examples import examples
from stentor.tests.kernels.forward_shapes import SHAPES
from stentor.tests.kernels.helpers import COMPILES, assert_close, assert_same_bits, normal, thread_count
from stentor.tests.kernels.latents import make_latents
from stentor.tests.kernels.packed_weights import KINDS, packed_weight
from stentor.tests.kernels.paged_sequences import make_step
from stentor.tests.kernels.programs import Sequences, shuffled, whole
from stentor.tests.kernels.test_attention_coded import assert_float8_has_the_bits_of_bfloat16
from stentor.tests.kernels.test_forward import LENGTHS, assert_agrees, same
from stentor.tests.kernels.test_linear_packed import TOLERANCE
from stentor.tests.kernels.tile_library import IS_X86, calls_to, emulated

pytestmark = [
    pytest.mark.proof,
    COMPILES,
    pytest.mark.skipif(not IS_X86 or native.library() is None, reason="names x86 processors, and compiles for them"),
]

OF_TILES = ("ldtilecfg", "tileloadd", "tdpbf16ps", "tdpbssd", "tdpbsud", "tilestored", "tilerelease")
OF_CODES = ("vpdpwssd", "vperm[it]2b")
"""Instructions by which such a processor reads caches of int8 and of float8."""
CODED = [pair for pair in KINDS if PARTS[pair[0]]]
BRAIN = torch.bfloat16


FORMS: list[TileForm] = ["emulated", "hardware"] if tile_form() == "hardware" else ["emulated"]


@contextmanager
def _tiles(form: TileForm) -> Iterator[None]:
    """Both forms of the library that has both, for all products of five rows or more."""
    with calls_to(emulated()), force_tiles(form):
        assert tile_form() == form
        before = [use_tiles_from(kind, 5) for kind in CROSSOVER_KINDS]
        yield
        for kind, rows in zip(CROSSOVER_KINDS, before, strict=True):
            use_tiles_from(kind, rows)


@pytest.fixture(params=FORMS)
def _on_tiles(request: pytest.FixtureRequest) -> Iterator[None]:
    with _tiles(request.param):
        yield


on_tiles = pytest.mark.usefixtures("_on_tiles")


# ---- products


@on_tiles
@pytest.mark.parametrize(("kind", "scaling"), KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (17, 33), (50, 257)])
def test_a_product_on_tiles_is_the_references_for_every_number_of_rows(
    kind: PackedKind, scaling: Scaling, outputs: int, inputs: int
) -> None:
    weight, bias = packed_weight(kind, outputs, inputs, scaling=scaling), normal(outputs, seed=5)
    x = normal(70, inputs, seed=6)
    x[7] = 0
    expected = linear_packed(x, weight, variant="reference") + bias
    for count in (1, 4, 5, 16, 17, 31, 32, 33, 49, 64, 70):
        assert_close(linear_packed(x[:count], weight, bias, variant="native"), expected[:count], TOLERANCE[kind])


@on_tiles
@pytest.mark.parametrize(("kind", "scaling"), KINDS)
@settings(max_examples=examples(12), deadline=None)
@given(
    outputs=st.integers(1, 70),
    inputs=st.integers(1, 300),
    rows=st.integers(1, 70),
    threads=st.sampled_from([1, 2, 3]),
    brain=st.booleans(),
    data=st.data(),
)
def test_a_row_has_its_bits_by_itself_and_among_others(
    kind: PackedKind,
    scaling: Scaling,
    outputs: int,
    inputs: int,
    rows: int,
    threads: int,
    brain: bool,
    data: st.DataObject,
) -> None:
    """By itself it is the vectors'; inputs and sums are as small as numbers can be, too."""
    weight = packed_weight(kind, outputs, inputs, scaling=scaling, seed=inputs)
    x, bias = normal(rows, inputs, seed=outputs), normal(outputs, seed=rows)
    size = 2.0 ** data.draw(st.sampled_from([0, -120, -126, -130]), label="exponent")
    x, bias = x * size, bias * size
    if brain:
        x = x.bfloat16()
    row = data.draw(st.integers(0, rows - 1), label="row")
    with thread_count(1):
        alone = linear_packed(x[row : row + 1], weight, bias, dtype=torch.float32)
    with thread_count(threads):
        assert_same_bits(linear_packed(x, weight, bias, dtype=torch.float32)[row : row + 1], alone)


@on_tiles
@pytest.mark.parametrize(("kind", "scaling"), CODED)
@pytest.mark.parametrize(("outputs", "inputs"), [(17, 33), (36, 1100)])
def test_codes_on_tiles_have_the_bits_of_vectors(kind: PackedKind, scaling: Scaling, outputs: int, inputs: int) -> None:
    weight, bias = packed_weight(kind, outputs, inputs, scaling=scaling), normal(outputs, seed=2)
    x = normal(37, inputs, seed=1)
    found = linear_packed(x, weight, bias)
    with force_tiles("none"):
        assert_same_bits(found, linear_packed(x, weight, bias))


@on_tiles
@pytest.mark.parametrize(("rows", "inputs"), [(35, 3301), (530, 321)])
def test_sums_of_many_inputs_are_the_same_in_one_go_and_in_stretches(rows: int, inputs: int) -> None:
    """More rows than meet weights at once, or whose sums are kept at once, and more weights than stay in the cache."""
    weight, x = packed_weight("bf16", 37, inputs), normal(rows, inputs, seed=1)
    together = linear_packed(x, weight)
    apart = [linear_packed(some, weight) for some in (x[:20], x[20 : rows - 9], x[rows - 9 :])]
    assert_same_bits(torch.cat(apart), together)
    assert_same_bits(linear_packed(x[rows - 1 :], weight), together[rows - 1 :])


# ---- attention, and all together


def _one_by_one(step_lengths: list[tuple[int, int]], batch: AttentionBatch) -> AttentionBatch:
    """Every token as a sequence of its own."""
    lengths = [length - new + number + 1 for length, new in step_lengths for number in range(new)]
    owners = [number for number, (_, new) in enumerate(step_lengths) for _ in range(new)]
    return AttentionBatch(
        torch.arange(len(lengths) + 1, dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        batch.block_tables[owners].contiguous(),
        torch.zeros(len(lengths), dtype=torch.int64),
        1,
        max(lengths),
    )


@on_tiles
@pytest.mark.parametrize("cached", [BRAIN, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    ("dim", "size", "heads", "kv_heads", "options"),
    [
        (32, 16, 4, 2, {}),
        (64, 64, 8, 1, {"window": 40}),
        (32, 32, 3, 3, {"chunk": 50}),
        (96, 16, 2, 1, {"softcap": 5.0}),
    ],
)
def test_attention_on_tiles_is_the_references_and_a_tokens_bits_are_those_it_has_alone(
    cached: torch.dtype, dim: int, size: int, heads: int, kv_heads: int, options: dict[str, float]
) -> None:
    """Unwritten slots hold NaN."""
    lengths = [(130, 30), (1, 1), (66, 1), (300, 5), (13, 13)]
    shape = {"heads": heads, "kv_heads": kv_heads, "dim": dim, "size": size}
    step = make_step(lengths, **shape, dtype=BRAIN, cache_dtype=cached, transposed=True)
    found = step.run("native", **options)
    assert_close(found, step.run("reference", **options))
    step.batch = _one_by_one(lengths, step.batch)
    assert_same_bits(step.run("native", **options), found)


@on_tiles
@pytest.mark.parametrize(
    ("heads", "rank", "rotated", "size"), [(16, 64, 32, 16), (3, 512, 64, 64), (40, 32, 32, 48), (1, 96, 0, 32)]
)
def test_attention_to_latents_on_tiles_is_the_references_and_a_tokens_bits_are_those_it_has_alone(
    heads: int, rank: int, rotated: int, size: int
) -> None:
    """Unwritten slots hold NaN."""
    world = make_latents([1, 70, 620, 130], heads=heads, rank=rank, rotated=rotated, size=size, dtype=BRAIN)
    parts = [(0, 0, 1), (1, 65, 70), (2, 490, 620), (3, 0, 130)]
    together = world.run(parts)
    for found, expected in zip(together, world.run(parts, "reference"), strict=True):
        assert_close(found, expected)
    for (row, begin, _), found in zip(parts, together, strict=True):
        for token in {0, len(found) // 2, len(found) - 1}:
            with thread_count(1 + token % 2):
                (alone,) = world.run([(row, begin + token, begin + token + 1)])
            assert_same_bits(alone[0], found[token])


@on_tiles
def test_chosen_latents_on_tiles_are_the_references_and_all_in_order_are_as_no_choice() -> None:
    world = make_latents([90], heads=5, rank=64, rotated=32, dtype=BRAIN)
    parts = [(0, 60, 90)]
    generator = torch.Generator().manual_seed(3)
    some = [torch.stack([torch.randperm(60, generator=generator)[:40] for _ in range(30)]).int()]
    for found, expected in zip(world.run(parts, chosen=some), world.run(parts, "reference", chosen=some), strict=True):
        assert_close(found, expected)
    every = [torch.arange(90, dtype=torch.int32).repeat(30, 1)]
    assert_same_bits(world.run(parts, chosen=every)[0], world.run(parts)[0])


@on_tiles
@pytest.mark.parametrize(("dim", "size"), [(64, 16), (96, 32)])
def test_a_float8_cache_on_tiles_has_the_bits_of_a_bfloat16_cache_of_its_numbers(dim: int, size: int) -> None:
    assert_float8_has_the_bits_of_bfloat16(dim, size)


@on_tiles
@pytest.mark.parametrize("name", ["brain", "brain gated", "grouped experts", "experts in codes", "mixed"])
def test_a_pass_on_tiles_is_the_references_and_one_however_it_is_cut(name: str) -> None:
    shape = SHAPES[name]
    with thread_count(1):
        found = Sequences(shape, LENGTHS).run(whole(LENGTHS))
    with thread_count(2):
        same(Sequences(shape, LENGTHS).run(shuffled(LENGTHS, 2, 15)), found)
    for mine, theirs in zip(found, Sequences(shape, LENGTHS, "reference").run(whole(LENGTHS)), strict=True):
        assert_agrees(shape, mine, theirs)


# ---- the emulator, and the instructions

MULTIPLY_ADD = """
#include "amx.h"
using namespace stentor;
static float random_float(uint64_t& state) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint32_t draw = (uint32_t)(state >> 32);
    // signs, few exponents about those of the smallest numbers, and fractions of which many are all ones or zeros
    const uint32_t kinds[4] = {0, 0x7fffff, draw & 0x7fffff, 1};
    const uint32_t bits = (draw & 0x80000000u) | (draw >> 8 & 31) << 23 | kinds[draw >> 13 & 3];
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}
extern "C" __attribute__((visibility("default"))) int64_t differing(int64_t count) {
    uint64_t state = 1;
    int64_t wrong = 0, flushed = 0;
    for (int64_t i = 0; i < count; ++i) {
        float a = random_float(state), b = random_float(state) * 0x1p127f, c = random_float(state), sum = 0;
        uint32_t bits;
        for (float* x : {&a, &b}) std::memcpy(&bits, x, 4), bits &= 0xffff0000u, std::memcpy(x, &bits, 4);
        tiles::flushing([&] { sum = fma(set1(a), set1(b), set1(c))[0]; });
        const float mine = tiles::multiply_add(tiles::small(a), tiles::small(b), tiles::small(c));
        wrong += std::memcmp(&mine, &sum, 4) != 0;
        flushed += sum == 0.0f;
    }
    return wrong ? wrong : flushed > 100 ? 0 : -1;
}
"""


def test_the_emulators_sum_is_the_processors_own_with_small_numbers_taken_for_zero(tmp_path: Path) -> None:
    source = tmp_path / "native.cpp"
    source.write_text(MULTIPLY_ADD)
    library = build(sources=[source], cache_dir=tmp_path, options=("-DSTENTOR_EMULATED_TILES", "-O1"))
    differing = ctypes.CDLL(str(library)).differing
    differing.argtypes, differing.restype = [ctypes.c_int64], ctypes.c_int64
    assert differing(1_000_000) == 0


def test_tiles_are_configured_as_the_processor_demands_or_the_process_ends(tmp_path: Path) -> None:
    source = tmp_path / "main.cpp"
    source.write_text(
        '#include "native_amx.cpp"\n'
        "int main(int count, char**) {\n"
        "    tiles::Shapes shapes;\n"
        "    for (int t = 0; t < 3; ++t) shapes.set(t, count == 1 ? 16 : 8, 64);\n"
        "    tiles::Emulator::configure(shapes);\n"
        "    tiles::Emulator::add_signed<0, 1, 2>();\n"
        "}\n"
    )
    program = tmp_path / "program"
    folder = Path(native.__file__).parent
    options = ["-std=c++17", "-march=native", "-DSTENTOR_EMULATED_TILES", f"-I{folder}"]
    subprocess.run([find_compiler(), *options, str(source), "-o", str(program)], check=True)
    assert subprocess.run([program], check=False).returncode == 0
    refused = subprocess.run([program, "wrong"], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert refused.stderr == "tiles: tiles that do not fit each other\n"


@pytest.mark.parametrize("form", FORMS[1:] or ["none"])
@settings(max_examples=examples(40), deadline=None)
@given(
    kind=st.sampled_from(KINDS if FORMS[1:] else CODED),
    outputs=st.integers(1, 150),
    inputs=st.integers(1, 900),
    rows=st.integers(5, 70),
    exponent=st.sampled_from([0, -60, -120, -126, -130]),
    large=st.sampled_from([1.0, 40.0, 1e4]),
)
def test_the_processors_form_has_the_bits_of_the_emulator(
    form: TileForm,
    kind: tuple[PackedKind, Scaling],
    outputs: int,
    inputs: int,
    rows: int,
    exponent: int,
    large: float,
) -> None:
    """Where the processor has no tiles, codes have those of its vectors."""
    weight = packed_weight(kind[0], outputs, inputs, scaling=kind[1], seed=inputs)
    x = normal(rows, inputs, seed=outputs) * 2.0**exponent
    x[:, 3::40] *= large
    with _tiles("emulated"):
        expected = linear_packed(x, weight)
    with _tiles(form):
        assert_same_bits(linear_packed(x, weight), expected)


@pytest.mark.skipif(FORMS[1:] == [], reason="this processor has no tiles")
@settings(max_examples=examples(20), deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 40)), min_size=1, max_size=4),
    dim=st.sampled_from([32, 64, 96]),
    size=st.sampled_from([16, 32, 64]),
    group=st.integers(1, 6),
    window=st.sampled_from([0, 40]),
    cached=st.sampled_from([BRAIN, torch.float8_e4m3fn]),
)
def test_attention_has_the_emulators_bits_on_the_processor(
    lengths: list[tuple[int, int]], dim: int, size: int, group: int, window: int, cached: torch.dtype
) -> None:
    steps = [(before + new, new) for before, new in lengths]
    shape = {"heads": 2 * group, "kv_heads": 2, "dim": dim, "size": size}
    step = make_step(steps, **shape, dtype=BRAIN, cache_dtype=cached, transposed=True)
    with _tiles("emulated"):
        expected = step.run("native", window=window)
    with _tiles("hardware"):
        assert_same_bits(step.run("native", window=window), expected)


@pytest.mark.skipif(FORMS[1:] == [], reason="this processor has no tiles")
@settings(max_examples=examples(20), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 700), min_size=1, max_size=3),
    tokens=st.integers(1, 40),
    heads=st.integers(1, 40),
    rank=st.sampled_from([32, 64, 128]),
    rotated=st.sampled_from([0, 32]),
    size=st.sampled_from([16, 32, 48]),
)
def test_attention_to_latents_has_the_emulators_bits_on_the_processor(
    lengths: list[int], tokens: int, heads: int, rank: int, rotated: int, size: int
) -> None:
    world = make_latents(lengths, heads=heads, rank=rank, rotated=rotated, size=size, dtype=BRAIN)
    parts = [(row, max(0, length - tokens), length) for row, length in enumerate(lengths)]
    with _tiles("emulated"):
        expected = world.run(parts)
    with _tiles("hardware"):
        for found, same in zip(world.run(parts), expected, strict=True):
            assert_same_bits(found, same)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="there is no objdump")
def test_for_a_processor_with_tiles_the_kernels_have_its_instructions() -> None:
    """Which nothing here can run."""
    units = ("linear_packed/native_tiles.cpp", *(f"attention/native_{of}.cpp" for of in ("bf16", "int8", "float8")))
    sources = [path for path in find_sources() if f"{path.parent.name}/{path.name}" in units]
    assert len(sources) == len(units)
    library = build(sources=sources, march="sapphirerapids", options=("-O1",))
    code = subprocess.run(["objdump", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    for instruction in (*OF_TILES, *OF_CODES):
        assert re.search(rf"\b{instruction}\b", code), instruction


def test_a_library_without_tiles_says_so_and_refuses_them() -> None:
    if tile_form() == "hardware":
        pytest.skip("this processor has tiles")
    assert describe_tiles() is None or "refuses" in str(describe_tiles())
    with pytest.raises(ValueError, match="tiles cannot be emulated here"), force_tiles("emulated"):
        pass
    with calls_to(emulated()), force_tiles("emulated"):
        assert describe_tiles() == "products and attention run on AMX tiles, emulated"
    assert tile_form() == "none"


def test_rows_from_which_tiles_are_taken_are_measured_and_do_not_show() -> None:
    before = [use_tiles_from(kind, 5) for kind in CROSSOVER_KINDS]
    limits = measure_crossover()
    if tile_form() == "hardware":
        assert limits is not None
        assert all(limit in (*ROWS, ROWS[-1] + 1) for limit in limits)
        assert [use_tiles_from(kind, 5) for kind in CROSSOVER_KINDS] == list(limits)
        weight, x = packed_weight("q4", 40, 96), normal(9, 96, seed=1)
        by_tiles = linear_packed(x, weight)
        use_tiles_from("q4", 10)
        assert_same_bits(linear_packed(x, weight), by_tiles)
        assert describe_crossover((4, 16, 10)).startswith("bfloat16 from 4 rows on, codes of 4 bits from 16 rows on")
    else:
        assert limits is None
    for kind, rows in zip(CROSSOVER_KINDS, before, strict=True):
        use_tiles_from(kind, rows)
