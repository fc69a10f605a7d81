"""Attention over int8 and float8 caches: the reference's result, and a row's bits whatever shares its batch."""

from dataclasses import replace

import pytest
import torch

from stentor.kernels import native
from stentor.kernels.attention import choose
from stentor.kernels.native.processor import TileForm, force_tiles, multiplies_bfloat16, tile_form
from stentor.tests.kernels.helpers import TOLERANCE as OF_DTYPES
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, thread_count
from stentor.tests.kernels.test_attention import DTYPES, World, make_world

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native library")

INT8, FP8 = torch.int8, torch.float8_e4m3fn
coded = pytest.mark.parametrize("codes", [INT8, FP8])
PARTS = [(0, 0, 1), (1, 65, 70), (2, 100, 200), (3, 63, 64), (4, 0, 700)]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: None}
"""Queries and weights have 16 bits where codes are multiplied."""
AS_BFLOAT16 = OF_DTYPES[torch.bfloat16]
"""Many rows meet codes of float8 as bfloat16, and are rounded to it where the processor multiplies pairs of that."""
ERROR = {INT8: 0.01, FP8: 0.06}


def world(codes: torch.dtype, **changes: object) -> World:
    return make_world([1, 70, 200, 64, 700], cache_dtype=codes, **changes)  # type: ignore[arg-type]


@coded
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "size", "window", "chunk", "softcap", "sunk"),
    [
        (9, 3, 64, 32, 0, 0, 0.0, False),
        (4, 4, 80, 16, 0, 0, 0.0, False),
        (8, 1, 128, 16, 7, 0, 0.0, True),
        (8, 2, 256, 64, 100, 0, 30.0, False),
        (5, 5, 24, 48, 0, 50, 0.0, False),
        (40, 1, 8, 16, 1, 0, 5.0, False),
        (7, 1, 32, 16, 0, 0, 2.0, True),
    ],
)
def test_prefill_and_decode_over_codes_are_the_references(
    codes: torch.dtype,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    dim: int,
    size: int,
    window: int,
    chunk: int,
    softcap: float,
    sunk: bool,
) -> None:
    sinks = torch.linspace(-4, 9, heads) if sunk else None
    shape = {"heads": heads, "kv_heads": kv_heads, "dim": dim, "size": size}
    made = replace(world(codes, **shape, dtype=dtype, window=window, softcap=softcap, sinks=sinks), chunk=chunk)
    assert choose(made.queries[0], made.k_cache) == "native"
    for mine, theirs in zip(made.run(PARTS), made.run(PARTS, "reference"), strict=True):
        assert_close(mine, theirs, AS_BFLOAT16 if codes == FP8 and multiplies_bfloat16() else TOLERANCE[dtype])


@coded
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "dim", "size", "window", "softcap"),
    [(3, 64, 16, 0, 0.0), (1, 32, 64, 0, 0.0), (2, 96, 48, 75, 0.0), (5, 24, 16, 0, 2.0), (9, 32, 16, 0, 2.0)],
)
def test_a_row_over_codes_is_bitwise_the_row_among_hundreds(
    codes: torch.dtype, dtype: torch.dtype, heads: int, dim: int, size: int, window: int, softcap: float
) -> None:
    made = world(codes, heads=heads, kv_heads=1, dim=dim, size=size, dtype=dtype, window=window, softcap=softcap)
    whole = made.run(PARTS)[4]
    for begin, end in [(p, p + 1) for p in (0, 1, 15, 16, 63, 64, 300, 511, 512, 699)] + [(30, 35), (505, 516)]:
        with thread_count(2):
            assert_same_bits(made.run([(4, begin, end), (1, 3, 20)])[0], whole[begin:end])


@coded
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_block_size_does_not_show_in_codes(codes: torch.dtype, dtype: torch.dtype) -> None:
    results = [world(codes, size=size, dtype=dtype).run([(4, 0, 700)])[0] for size in (16, 32, 48, 160)]
    for other in results[1:]:
        assert_same_bits(other, results[0])


@coded
@pytest.mark.parametrize("dim", [8, 64])
def test_codes_cost_attention_a_hundredth_or_six(codes: torch.dtype, dim: int) -> None:
    exact, made = make_world([1, 70, 200, 64, 700], dim=dim), world(codes, dim=dim)
    for mine, theirs in zip(made.run(PARTS), exact.run(PARTS), strict=True):
        assert ((mine - theirs).square().mean() / theirs.square().mean()).sqrt() < ERROR[codes]


def assert_float8_has_the_bits_of_bfloat16(dim: int, size: int) -> None:
    """A few rows and many, over a cache of all codes and over one of bfloat16 that holds their numbers."""
    made = replace(world(FP8, dim=dim, size=size, dtype=torch.bfloat16), scales=(torch.full((2,), 2.0**-9),) * 2)
    finite = torch.tensor([code for code in range(256) if code & 127 < 127], dtype=torch.uint8)
    for number, cache in enumerate((made.k_cache, made.v_cache)):
        codes = finite[torch.arange(cache.numel()) * (59 + 2 * number) % len(finite)]
        cache.view(torch.uint8).copy_(codes.view(cache.shape))
    k_cache, v_cache = ((cache.float() * 2.0**-9).bfloat16() for cache in (made.k_cache, made.v_cache))
    plain = replace(made, k_cache=k_cache, v_cache=v_cache, scales=(None, None))
    for parts in (PARTS, [(4, 699, 700), (2, 199, 200)], [(4, 330, 333)]):
        for mine, theirs in zip(made.run(parts), plain.run(parts), strict=True):
            assert_same_bits(mine, theirs)


@pytest.mark.parametrize("form", ["none", "hardware"] if tile_form() == "hardware" else ["none"])
@pytest.mark.parametrize(("dim", "size"), [(64, 16), (96, 32), (24, 16)])
def test_a_float8_cache_has_the_bits_of_a_bfloat16_cache_of_its_numbers(form: TileForm, dim: int, size: int) -> None:
    with force_tiles(form):
        assert_float8_has_the_bits_of_bfloat16(dim, size)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("dim", [8, 64])
def test_what_is_not_finite_stays_with_its_sequence(number: float, dim: int) -> None:
    made = world(INT8, dim=dim)
    expected = made.run([(2, 190, 200)])[0]
    for scale in made.scales:
        assert scale is not None
        scale[made.tables[4][0], :, 3] = number
    _assert_not_finite_behind(made, 4)
    assert_same_bits(made.run([(2, 190, 200)])[0], expected)


@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize("dim", [8, 64])
def test_a_code_that_is_no_number_stays_with_its_sequence(dim: int, code: int) -> None:
    made = world(FP8, dim=dim)
    expected = made.run([(2, 190, 200)])[0]
    made.v_cache.view(torch.uint8)[made.tables[4][0], :, 3] = code
    _assert_not_finite_behind(made, 4)
    assert_same_bits(made.run([(2, 190, 200)])[0], expected)


def _assert_not_finite_behind(made: World, sequence: int) -> None:
    """Whether a few rows see the fourth key, or many."""
    assert not made.run([(sequence, 690, 700)])[0].isfinite().any()
    assert not made.run([(sequence, 600, 700)])[0].isfinite().any()
    assert made.run([(sequence, 0, 3)])[0].isfinite().all()
