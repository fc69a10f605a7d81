"""The packed product and the pass as other processors compute them: built for theirs, run on this one."""

import platform
import re
import sys
from pathlib import Path

import pytest
import torch

from stentor.kernels.linear_packed import PackedKind, Scaling, empty_packed, linear_packed, pack_codes_, unpack_rows
from stentor.kernels.linear_packed.reference import dequantize
from stentor.kernels.linear_packed.weight import FOUR_BITS, PARTS, TABLES
from stentor.kernels.native import library as native_library
from stentor.kernels.native.build import build, find_sources
from stentor.kernels.native.load import NativeFunction, NativeLibrary, load
from stentor.tests.kernels import test_state_rows
from stentor.tests.kernels.forward_shapes import SHAPES
from stentor.tests.kernels.helpers import COMPILES, assert_close, assert_same_bits, normal, thread_count
from stentor.tests.kernels.mixers import Mixer
from stentor.tests.kernels.packed_weights import KINDS, codes_and_scales, factors_of, packed_weight, spans_of, zeros_of
from stentor.tests.kernels.programs import Sequences, shuffled, whole
from stentor.tests.kernels.test_attention_coded import assert_float8_has_the_bits_of_bfloat16
from stentor.tests.kernels.test_forward import LENGTHS, assert_agrees, same
from stentor.tests.kernels.test_linear_packed import TOLERANCE
from stentor.tests.kernels.tile_library import COMPILED_SOON, calls_to

pytestmark = [
    pytest.mark.proof,
    COMPILES,
    pytest.mark.skipif(
        platform.machine() != "x86_64" or native_library() is None, reason="names x86 processors, and compiles for them"
    ),
]

NEEDS = {
    "x86-64": set[str](),
    "x86-64-v3": {"avx2", "fma", "f16c", "bmi2", "movbe"},
    "skylake-avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd"},
    "cooperlake": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd", "avx512_vnni", "avx512_bf16"},
}
"""Plain SSE2, AVX2, AVX-512 without its instructions for bytes and bfloat16, and without those for tables of bytes
alone, with what the kernel calls them."""
PRODUCT = ("linear_packed", "native")
MIXERS = ("causal_conv", "gated_delta", "mamba2", "selective_scan")
ALL = (*PRODUCT, *MIXERS, "attention", "forward", "low_rank", "sampling")
"""Folders whose units are compiled, some seconds each."""
PRODUCTS = [("x86-64-v3", ALL), ("x86-64", PRODUCT), ("skylake-avx512", PRODUCT)]
ATTENTION = ("attention", "native")
ATTENTIONS = [("x86-64-v3", ALL), *((march, ATTENTION) for march in ("x86-64", "skylake-avx512", "cooperlake"))]
MODULES = ("linear_packed", "linear_packed.weight", "forward.forward", *MIXERS)


def _flags() -> set[str]:
    found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return set(found[1].split()) if found else set()


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    """Kept in the cache as the product's own is: it is compiled where a source has changed."""
    march, units = request.param
    if missing := NEEDS[march] - _flags():
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    if march == "x86-64-v3" and not {"avx512f", "avx_vnni"} & _flags():
        pytest.skip("this processor has no instructions beyond these: all other tests call such kernels")
    sources = [path for path in find_sources() if path.parent.name in units]
    assert {path.parent.name for path in sources} == set(units)
    return load(build(sources=sources, options=(COMPILED_SOON,), march=march))


@pytest.fixture(autouse=True)
def _calls_go_there(library: NativeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MODULES:
        module = sys.modules[f"stentor.kernels.{name}"]
        found = {key: value for key, value in vars(module).items() if isinstance(value, NativeFunction)}
        by_dtype: dict[torch.dtype, NativeFunction] = vars(module)["_NATIVE"] if name in MIXERS else {}
        assert found or by_dtype
        for key, value in found.items():
            monkeypatch.setattr(module, key, _of(library, value))
        for dtype, value in list(by_dtype.items()):
            monkeypatch.setitem(by_dtype, dtype, _of(library, value))


def _of(library: NativeLibrary, function: NativeFunction) -> NativeFunction:
    """The function of that library; one that it lacks is not called."""
    there = NativeFunction(function.name, *function._argtypes, restype=function._restype)
    bound = getattr(library.handle, function.name, None)
    if bound is not None:
        bound.argtypes, bound.restype = list(function._argtypes), function._restype
    there._bound, there._resolved = bound, True
    return there


@pytest.mark.parametrize("library", PRODUCTS, indirect=True)
@pytest.mark.parametrize(("kind", "scaling"), KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), [(17, 33), (50, 257), (53, 3301)])
def test_the_product_is_the_references(kind: PackedKind, scaling: Scaling, outputs: int, inputs: int) -> None:
    weight, x, bias = (
        packed_weight(kind, outputs, inputs, scaling=scaling),
        normal(19, inputs, seed=1),
        normal(outputs, seed=2),
    )
    expected = linear_packed(x, weight, bias, variant="reference")
    for threads in (1, 3):
        with thread_count(threads):
            assert_close(
                linear_packed(x, weight, bias, variant="native"), expected, max(TOLERANCE[kind], 2e-9 * inputs)
            )
            alone = torch.cat([linear_packed(row[None], weight, bias, variant="native") for row in x])
            assert_same_bits(linear_packed(x, weight, bias, variant="native"), alone)
            assert_same_bits(linear_packed(x[3:8], weight, bias, variant="native"), alone[3:8])


@pytest.mark.parametrize("library", PRODUCTS, indirect=True)
@pytest.mark.parametrize("size", [1e-30, 1e-37, 1e-40, 1e-45])
def test_inputs_too_small_to_be_scaled_are_as_good_as_zero(size: float) -> None:
    weight, x = packed_weight("q8", 16, 64), torch.full((2, 64), size)
    x[1, ::2] = 0
    exact = x.double() @ dequantize(weight).double().T
    for variant in ("native", "reference"):
        found = linear_packed(x, weight, variant=variant)
        assert float((found - exact).abs().max()) <= max(2e-2 * size, 1e-36)


@pytest.mark.parametrize("library", PRODUCTS, indirect=True)
@pytest.mark.parametrize(("kind", "scaling"), [pair for pair in KINDS if PARTS[pair[0]]])
def test_codes_of_any_size_are_summed_without_overflow(kind: PackedKind, scaling: Scaling) -> None:
    """The largest codes meet the largest inputs, in 16 bits where there is nothing wider."""
    codes, scales = codes_and_scales(kind, 16, 64, 0, scaling)
    factors, zeros = factors_of(kind, 16, seed=0), zeros_of(kind, 16, 64, 0, scaling)
    for code in range(16) if kind in TABLES else (0, 15 if kind in FOUR_BITS else 255):
        weight = empty_packed(16, 64, kind, scaling=scaling)
        pack_codes_(weight, 0, codes.fill_(code), scales, factors, zeros, spans_of(kind, 16, 64, 0, scaling))
        for sign in (-1.0, 1.0):
            x = torch.full((3, 64), sign)
            expected = linear_packed(x, weight, variant="reference")
            assert_close(linear_packed(x, weight, variant="native"), expected, TOLERANCE[kind])


@pytest.mark.parametrize("library", PRODUCTS, indirect=True)
@pytest.mark.parametrize(("kind", "scaling"), KINDS)
def test_what_is_packed_there_means_what_it_means_here(
    kind: PackedKind, scaling: Scaling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes may lie in another order."""
    there = packed_weight(kind, 37, 95, scaling=scaling)
    rows, values = unpack_rows(there, torch.arange(37)), dequantize(there)
    monkeypatch.undo()
    here = packed_weight(kind, 37, 95, scaling=scaling)
    assert torch.equal(there.scales.view(torch.uint8), here.scales.view(torch.uint8))
    assert_same_bits(rows, dequantize(here) + 0.0)  # no zero has a sign
    assert_same_bits(values, dequantize(here))


@pytest.mark.parametrize("library", ATTENTIONS, indirect=True)
@pytest.mark.parametrize(("dim", "size"), [(64, 16), (96, 32), (24, 16)])
def test_a_float8_cache_has_the_bits_of_a_bfloat16_cache_of_its_numbers(
    library: NativeLibrary, dim: int, size: int
) -> None:
    with calls_to(library):
        assert_float8_has_the_bits_of_bfloat16(dim, size)


@pytest.mark.parametrize("library", PRODUCTS[:1], indirect=True)
@pytest.mark.parametrize(
    "name", ["gemma", "softcapped", "sunk", "olmo", "partial", "brain", "mixed", "granite", "experts in codes"]
)
def test_a_pass_is_the_references_and_one_however_it_is_cut(name: str) -> None:
    shape = SHAPES[name]
    with thread_count(1):
        found = Sequences(shape, LENGTHS).run(whole(LENGTHS))
    with thread_count(2):
        same(Sequences(shape, LENGTHS).run(shuffled(LENGTHS, 2, 15)), found)
    for mine, theirs in zip(found, Sequences(shape, LENGTHS, "reference").run(whole(LENGTHS)), strict=True):
        assert_agrees(shape, mine, theirs)


@pytest.mark.parametrize("library", PRODUCTS[:1], indirect=True)
@pytest.mark.parametrize(("dtype", "kept"), test_state_rows.KEPT)
@pytest.mark.parametrize("mixer", test_state_rows.ALL)
def test_a_state_is_the_references_and_one_however_a_prompt_is_cut(
    mixer: Mixer, dtype: torch.dtype, kept: torch.dtype | None
) -> None:
    test_state_rows.test_ragged_rows_are_the_references(mixer, dtype, kept)
    test_state_rows.test_a_prompt_is_bitwise_the_same_however_it_is_cut(mixer, dtype, kept)
