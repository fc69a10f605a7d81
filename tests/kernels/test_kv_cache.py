from typing import Any

import pytest
import torch

from stentor.kernels.kv_cache import (
    check_caches,
    choose,
    kv_cache_shape,
    kv_scale_shape,
    make_kv_cache,
    read_scaled,
    triton_cache_unsupported_reason,
    write_kv_,
)
from stentor.kernels.kv_cache.layout import INT8
from stentor.kernels.variants import Choice
from stentor.tests.kernels.heads import FP8, draw, filled_caches, projection
from stentor.tests.kernels.helpers import normal, thread_count

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("tokens", "heads", "dim", "size"), [(1, 3, 64, 32), (5, 1, 7, 16), (300, 3, 64, 48)])
def test_rows_land_in_their_slots_and_nothing_else_changes(
    dtype: torch.dtype, threads: int, tokens: int, heads: int, dim: int, size: int
) -> None:
    k_shape, v_shape = kv_cache_shape(12, heads, dim, size)
    caches = [(torch.full(k_shape, 7.0, dtype=dtype), torch.full(v_shape, 7.0, dtype=dtype)) for _ in range(2)]
    fused = normal(tokens, 2 * heads * dim + 5, seed=1, dtype=dtype)
    k = fused[:, : heads * dim].view(tokens, heads, dim)
    v = fused[:, heads * dim : 2 * heads * dim].view(tokens, heads, dim)
    slots = torch.randperm(12 * size, generator=torch.Generator().manual_seed(2))[:tokens]
    assert choose(k, caches[0][0]) == "native"
    with thread_count(threads):
        write_kv_(k, v, *caches[0], slots)
    write_kv_(k, v, *caches[1], slots, variant="reference")
    assert torch.equal(caches[0][0], caches[1][0])
    assert torch.equal(caches[0][1], caches[1][1])
    slot = int(slots[-1])
    assert torch.equal(caches[0][0][slot // size, :, :, slot % size], k[-1])
    assert torch.equal(caches[0][1][slot // size, :, slot % size], v[-1])
    assert int((caches[0][0] != 7.0).sum()) <= tokens * heads * dim


@pytest.mark.parametrize(("slot", "variant"), [(-1, "native"), (64, "native"), (64, "reference")])
def test_a_slot_outside_the_cache_is_refused_and_nothing_is_written(slot: int, variant: Choice) -> None:
    k_cache, v_cache = make_kv_cache(2, 1, 4, 32, torch.float32, "cpu")
    rows = torch.ones(2, 1, 4)
    with pytest.raises(IndexError, match=f"slot {slot} lies outside the 64"):
        write_kv_(rows, rows, k_cache, v_cache, torch.tensor([0, slot]), variant=variant)
    assert not k_cache.any()
    assert not v_cache.any()


@pytest.mark.parametrize("slots", [[3, -1, 40], [-1, -5, -2]])
def test_a_token_with_a_negative_slot_is_not_written(slots: list[int]) -> None:
    k_cache, v_cache = filled_caches(2, 2, 4, 32, torch.float32, transposed=True)
    _, k, v = projection(3, 2, 2, 4, seed=1, dtype=torch.float32)
    write_kv_(k, v, k_cache, v_cache, torch.tensor(slots), variant="reference")
    written = [slot for slot in slots if slot >= 0]
    assert int((k_cache != 7.0).sum()) == int((v_cache != 7.0).sum()) == 8 * len(written)
    for slot in written:
        assert torch.equal(v_cache[slot // 32, :, slot % 32], v[slots.index(slot)])


@pytest.mark.parametrize("dtype", [*DTYPES, FP8])
@pytest.mark.parametrize("transposed", [True, False, None])
def test_both_layouts_have_one_shape_and_are_zero(dtype: torch.dtype, transposed: bool | None) -> None:
    k_cache, v_cache = make_kv_cache(3, 2, 80, 48, dtype, "cpu", keys_transposed=transposed)
    assert (k_cache.shape, v_cache.shape) == kv_cache_shape(3, 2, 80, 48)
    assert check_caches(k_cache, v_cache, "test") == (3, 2, 80, 48)
    assert k_cache.is_contiguous() == (transposed is not False)  # None: the CPU's
    assert k_cache.transpose(2, 3).is_contiguous() == (transposed is False)
    assert not k_cache.float().any()
    assert not v_cache.float().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_layout_changes_nothing_that_is_seen(dtype: torch.dtype) -> None:
    _, k, v = projection(9, 1, 3, 10, seed=1, dtype=dtype)
    caches = [filled_caches(4, 3, 10, 16, dtype, transposed=transposed) for transposed in (True, False)]
    for k_cache, v_cache in caches:
        write_kv_(k, v, k_cache, v_cache, draw(64, 9, 2), variant="reference")
    assert torch.equal(caches[0][0], caches[1][0])
    assert torch.equal(caches[0][1], caches[1][1])


def test_the_native_variant_leaves_transposed_keys_and_other_dtypes_to_the_reference() -> None:
    rows = torch.ones(1, 2, 8)
    cuda_layout, _ = make_kv_cache(2, 2, 8, 16, torch.float32, "cpu", keys_transposed=False)
    brain, _ = make_kv_cache(2, 2, 8, 16, torch.bfloat16, "cpu")
    assert choose(rows, cuda_layout) == choose(rows, brain) == "reference"
    with pytest.raises(ValueError, match="these are transposed"):
        choose(rows, cuda_layout, "native")
    with pytest.raises(ValueError, match="caches of the rows' dtype, int8 or float8_e4m3fn"):
        choose(rows, brain, "native")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_number_becomes_the_float8_code_of_the_reference(dtype: torch.dtype) -> None:
    """Those about each tie, those too small to be normal, and what is none."""
    codes = torch.arange(256, dtype=torch.uint8).view(FP8).float()
    middles = (codes[:126] + codes[1:127]) / 2
    near = torch.cat([codes, middles, middles.nextafter(torch.tensor(0.0)), middles.nextafter(torch.tensor(1e9))])
    rows = torch.cat([near, -near, torch.tensor([1e9, -torch.inf, torch.inf, 1e-9, -1e-9, -0.0])]).to(dtype)
    rows = torch.nn.functional.pad(rows, (0, -len(rows) % 12)).view(12, 1, -1)
    found = []
    for variant in ("native", "reference"):
        caches = make_kv_cache(1, 1, rows.shape[2], 16, FP8, "cpu")
        for scale in (1.0, 0.3):
            scales = {f"{which}_scale": torch.tensor([scale]) for which in "kv"}
            write_kv_(rows, rows, *caches, torch.arange(12), **scales, variant=variant)
            found.append([cache.view(torch.uint8).clone() for cache in caches])
    for mine, theirs in zip(found[:2], found[2:], strict=True):
        for codes_, expected in zip(mine, theirs, strict=True):
            assert torch.equal(codes_, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [True, False])
def test_float8_caches_hold_rows_divided_by_their_heads_scale(dtype: torch.dtype, transposed: bool) -> None:
    _, k, v = projection(5, 1, 2, 6, seed=1, dtype=dtype)
    k[0, 0, 0], v[1, 1, 1] = 1e4, -1e4
    k_scale, v_scale = torch.tensor([0.5, 0.1]), torch.tensor([2.0, 0.3])
    k_cache, v_cache = filled_caches(2, 2, 6, 16, FP8, transposed=transposed)
    slots = draw(32, 5, 2)
    write_kv_(k, v, k_cache, v_cache, slots, k_scale=k_scale, v_scale=v_scale)
    for token, slot in enumerate(slots.tolist()):
        for head in range(2):
            key, value = k_cache[slot // 16, head, :, slot % 16], v_cache[slot // 16, head, slot % 16]
            expected = (k[token, head].float() / k_scale[head]).clamp(-448, 448)
            assert torch.equal(key.float(), expected.to(FP8).float())
            expected = (v[token, head].float() / v_scale[head]).clamp(-448, 448)
            assert torch.equal(value.float(), expected.to(FP8).float())
    assert int((v_cache.float() != 7.0).sum()) <= 5 * 2 * 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("tokens", "heads", "dim", "size"), [(5, 1, 7, 16), (300, 3, 64, 48)])
def test_int8_caches_hold_codes_and_a_scale_of_each_token_and_head(
    dtype: torch.dtype, threads: int, tokens: int, heads: int, dim: int, size: int
) -> None:
    _, k, v = projection(tokens, 1, heads, dim, seed=1, dtype=dtype)
    k[0, 0], v[1, 0] = 0, v[1, 0] * 1e-30
    slots = draw(12 * size, tokens, 2)
    found = []
    for variant in (None, "reference"):
        k_cache, v_cache = filled_caches(12, heads, dim, size, INT8, transposed=True)
        k_scale, v_scale = torch.full((2, *kv_scale_shape(12, heads, size)), 7.0)
        assert variant or choose(k, k_cache) == "native"
        with thread_count(threads):
            scales: dict[str, Any] = {"k_scale": k_scale, "v_scale": v_scale}
            write_kv_(k, v, k_cache, v_cache, slots, **scales, variant=variant or "auto")
        found.append((k_cache, v_cache, k_scale, v_scale))
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)
    k_cache, v_cache, k_scale, v_scale = found[0]
    block, offset = slots // size, slots % size
    for rows, codes, scale in (
        (k, k_cache[block, :, :, offset], k_scale[block, :, offset]),
        (v, v_cache[block, :, offset], v_scale[block, :, offset]),
    ):
        assert torch.equal(scale, rows.float().abs().amax(2) / 127)
        error = (read_scaled(codes, scale) - rows.float()).abs()
        assert (error <= 0.50001 * scale.unsqueeze(2)).all()
    assert int((k_scale != 7.0).sum()) == int((v_scale != 7.0).sum()) == tokens * heads
    assert int((v_cache != 7).sum()) <= tokens * heads * dim


def test_int8_caches_are_not_for_triton() -> None:
    k_cache, _ = make_kv_cache(2, 2, 8, 16, INT8, "cpu")
    assert choose(torch.ones(1, 2, 8), k_cache) == "native"
    assert choose(torch.ones(1, 2, 8, dtype=torch.float16), k_cache) == "reference"
    assert triton_cache_unsupported_reason(k_cache) == "it takes no int8 caches; float8 ones have as many bytes"


@pytest.mark.parametrize("size", [0, -16, 8, 24])
def test_a_block_holds_a_multiple_of_sixteen(size: int) -> None:
    with pytest.raises(ValueError, match="positive multiple of 16"):
        kv_cache_shape(2, 1, 4, size)


def test_what_does_not_fit_is_refused() -> None:
    k_cache, v_cache = (torch.zeros(shape) for shape in kv_cache_shape(2, 1, 4, 32))
    rows, slots, scales = torch.ones(2, 1, 4), torch.tensor([0, 1]), torch.ones(2, 1, 32)
    with pytest.raises(ValueError, match=r"k .* does not fit 3 slots"):
        write_kv_(rows, rows, k_cache, v_cache, torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=r"v .* does not fit"):
        write_kv_(rows, rows.bfloat16(), k_cache, v_cache, slots)
    with pytest.raises(ValueError, match="int64"):
        write_kv_(rows, rows, k_cache, v_cache, slots.int())
    with pytest.raises(ValueError, match="caches"):
        write_kv_(rows, rows, k_cache, k_cache, slots)
    with pytest.raises(ValueError, match="caches"):
        write_kv_(rows, rows, k_cache, v_cache.bfloat16(), slots)
    with pytest.raises(ValueError, match="heads and dims of k must be contiguous"):
        write_kv_(torch.ones(2, 1, 8)[..., ::2], rows, k_cache, v_cache, slots)
    with pytest.raises(ValueError, match="float8 and int8 caches need k_scale and v_scale"):
        write_kv_(rows, rows, *make_kv_cache(2, 1, 4, 32, FP8, "cpu"), slots, v_scale=torch.ones(1))
    with pytest.raises(ValueError, match="others take none"):
        write_kv_(rows, rows, k_cache, v_cache, slots, k_scale=torch.ones(1), v_scale=torch.ones(1))
    with pytest.raises(ValueError, match=r"k_scale .* must be contiguous float32 \[1\]"):
        write_kv_(
            rows, rows, *make_kv_cache(2, 1, 4, 32, FP8, "cpu"), slots, k_scale=torch.ones(2), v_scale=torch.ones(1)
        )
    with pytest.raises(ValueError, match=r"v_scale .* must be contiguous float32 \[2, 1, 32\]"):
        write_kv_(rows, rows, *make_kv_cache(2, 1, 4, 32, INT8, "cpu"), slots, k_scale=scales, v_scale=torch.ones(1))
    with pytest.raises(ValueError, match="expected float32, bfloat16, float16, float8_e4m3fn or int8"):
        make_kv_cache(2, 1, 4, 32, torch.uint8, "cpu")
