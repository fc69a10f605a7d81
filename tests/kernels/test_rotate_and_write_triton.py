from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stentor.kernels.kv_cache import tunables as kv_cache
from stentor.kernels.rotate_and_write import choose, rotate_and_write_kv_
from stentor.kernels.rotate_and_write import tunables as rotate_and_write
from stentor.kernels.tuning import Config, Tunable, overridden
from stentor.kernels.variants import Choice
from stentor.tests.examples import examples
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.heads import (
    FP8,
    TRITON_TOLERANCE,
    assert_close_cache,
    assert_same_cache,
    draw,
    filled_caches,
    projection,
    rotary_table,
)
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal

TABLE = 50
BLOCKS = 6
VARIANTS: tuple[Choice, Choice] = ("triton", "reference")

SHAPES = [  # tokens, q heads, kv heads, head dim, rotary dim, block size
    (1, 32, 8, 64, 64, 16),
    (5, 6, 2, 80, 32, 32),
    (4, 3, 3, 96, 96, 64),
    (3, 10, 1, 128, 128, 128),
    (2, 4, 2, 256, 64, 48),
    (0, 4, 2, 64, 64, 16),
]


def run(
    variant: Choice,
    shape: tuple[int, int, int, int, int, int],
    dtype: torch.dtype,
    *,
    transposed: bool = False,
    norm: bool = True,
    float8: bool = False,
    sections: tuple[int, int, int] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, keys and values as they are afterwards."""
    tokens, q_heads, kv_heads, dim, rotary_dim, size = shape
    q, k, v = projection(tokens, q_heads, kv_heads, dim, seed=1, dtype=dtype, device=DEVICE)
    cos, sin = rotary_table(TABLE, rotary_dim // 2, DEVICE)
    rows = () if sections is None else (3,)
    positions = torch.randint(TABLE, (*rows, tokens), generator=torch.Generator().manual_seed(5)).to(DEVICE)
    slots = draw(BLOCKS * size, tokens, 2, DEVICE)
    slots[1::4] = -1
    cache_dtype = FP8 if float8 else dtype
    caches = filled_caches(BLOCKS, kv_heads, dim, size, cache_dtype, transposed=transposed, device=DEVICE)
    if float8:
        options["k_scale"], options["v_scale"] = (
            (torch.rand(kv_heads, generator=torch.Generator().manual_seed(s)) / 50 + 0.001).to(DEVICE) for s in (6, 7)
        )
    if norm:
        options["q_norm"], options["k_norm"] = (normal(dim, seed=s, dtype=dtype).to(DEVICE) for s in (3, 4))
    assert choose(q, caches[0], variant, sections=sections) == variant
    out = rotate_and_write_kv_(
        q, k, v, cos, sin, positions, *caches, slots, eps=1e-6, sections=sections, variant=variant, **options
    )
    if variant == "triton":
        assert out is q
    return out, *caches


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("float8", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_without_norms_it_is_bitwise_the_reference(
    dtype: torch.dtype, transposed: bool, float8: bool, shape: tuple[int, int, int, int, int, int]
) -> None:
    mine, expected = (
        run(variant, shape, dtype, transposed=transposed, norm=False, float8=float8) for variant in VARIANTS
    )
    assert_same_bits(mine[0], expected[0])
    assert_same_cache(mine[1], expected[1])
    assert_same_cache(mine[2], expected[2])


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_with_norms_it_is_the_reference(
    dtype: torch.dtype, plus_one: bool, shape: tuple[int, int, int, int, int, int]
) -> None:
    mine, expected = (run(variant, shape, dtype, plus_one=plus_one) for variant in VARIANTS)
    assert_close(mine[0], expected[0], TRITON_TOLERANCE[dtype])
    assert_close(mine[1], expected[1], TRITON_TOLERANCE[dtype])
    assert_same_cache(mine[2], expected[2])


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
def test_llama_rounds_before_the_weight_and_gemma_after(dtype: torch.dtype) -> None:
    """In the dtype's own last place: a rounding that is left out or moved changes a large share of all elements."""
    for plus_one in (False, True):
        mine, expected = (run(variant, (5, 6, 2, 80, 32, 32), dtype, plus_one=plus_one) for variant in VARIANTS)
        assert (mine[0] != expected[0]).float().mean() < 0.02


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads = draw(st.integers(1, 5))
    dim = draw(st.integers(1, 24)) * 2
    half = draw(st.integers(1, dim // 2))
    first = draw(st.integers(0, half))
    second = draw(st.integers(0, half - first))
    shape = (draw(st.integers(1, 6)), kv_heads * draw(st.integers(1, 4)), kv_heads, dim, 2 * half)
    return {
        "shape": (*shape, draw(st.sampled_from([16, 48, 128]))),
        "dtype": draw(st.sampled_from([torch.float32, torch.float16])),
        "transposed": draw(st.booleans()),
        "norm": draw(st.booleans()),
        "float8": draw(st.booleans()),
        "plus_one": draw(st.booleans()),
        "interleaved": draw(st.booleans()),
        "sections": draw(st.sampled_from([None, (first, second, half - first - second)])),
    }


@pytest.mark.triton
@settings(max_examples=examples(8, 50), deadline=None, database=None)
@given(case=cases(), block_tokens=st.sampled_from([1, 2, 8]), block_heads=st.sampled_from([1, 4]))
def test_any_shape_layout_and_way_of_turning_is_the_reference(
    case: dict[str, Any], block_tokens: int, block_heads: int
) -> None:
    tile = Config.of(BLOCK_TOKENS=block_tokens, BLOCK_HEADS=block_heads, fuse_multiply_add=False)
    with overridden("rotate_and_write", tile):
        mine, expected = (run(variant, **case) for variant in VARIANTS)
    # a head of few dims can have a small norm, and what divides by it magnifies the last place
    tolerance = 4 * TRITON_TOLERANCE[case["dtype"]] if case["norm"] else 0.0
    assert_close(mine[0], expected[0], tolerance)
    if case["norm"]:
        assert_close_cache(mine[1], expected[1], tolerance)
    else:
        assert_same_cache(mine[1], expected[1])
    assert_same_cache(mine[2], expected[2])


@pytest.mark.triton
@pytest.mark.parametrize("which", ["q_norm", "k_norm"])
def test_a_norm_may_be_of_queries_or_keys_alone(which: str) -> None:
    weight: dict[str, Any] = {which: normal(64, seed=3).to(DEVICE)}
    mine, expected = (run(v, (3, 4, 2, 64, 32, 16), torch.float32, norm=False, **weight) for v in VARIANTS)
    assert_close(mine[0], expected[0])
    assert_close(mine[1], expected[1])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cache_dtype", [None, FP8])
@pytest.mark.parametrize(("q_heads", "norm"), [(32, False), (64, True)])
@pytest.mark.parametrize("tokens", [1, 64, 3000])
def test_model_shapes_on_a_gpu(
    dtype: torch.dtype, cache_dtype: torch.dtype | None, q_heads: int, norm: bool, tokens: int
) -> None:
    cos, sin = rotary_table(4096, 64, DEVICE)
    scale = None if cache_dtype is None else torch.rand(8, device=DEVICE) / 10 + 0.02
    weights = [normal(128, seed=s, dtype=dtype).to(DEVICE) if norm else None for s in (3, 4)]
    results = []
    for variant in VARIANTS:
        q, k, v = projection(tokens, q_heads, 8, 128, seed=1, dtype=dtype, device=DEVICE)
        caches = filled_caches(200, 8, 128, 16, cache_dtype or dtype, transposed=False, device=DEVICE)
        assert choose(q, caches[0], variant) == variant
        out = rotate_and_write_kv_(
            q,
            k,
            v,
            cos,
            sin,
            draw(4096, tokens, 6, DEVICE),
            *caches,
            draw(3200, tokens, 7, DEVICE),
            q_norm=weights[0],
            k_norm=weights[1],
            eps=1e-6,
            k_scale=scale,
            v_scale=scale,
            variant=variant,
        )
        results.append((out, *caches))
    mine, expected = results
    assert_same_cache(mine[2], expected[2])
    if norm:
        assert_close(mine[0], expected[0], TRITON_TOLERANCE[dtype])
        assert_close_cache(mine[1], expected[1], TRITON_TOLERANCE[dtype])
    else:
        assert_same_bits(mine[0], expected[0])
        assert_same_cache(mine[1], expected[1])


@pytest.mark.triton
@pytest.mark.parametrize("tunable", [rotate_and_write.tunables()[0], kv_cache.tunables()[0]], ids=lambda t: t.operation)
def test_what_the_tuner_times_runs_under_its_candidates(tunable: Tunable) -> None:
    call = tunable.workload(torch.device(DEVICE))
    assert len(set(tunable.candidates)) == len(tunable.candidates)
    with overridden(tunable.operation, tunable.candidates[-1]):
        call()
