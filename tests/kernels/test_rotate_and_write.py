import pytest
import torch
from torch import Tensor

from stentor.kernels.kv_cache import make_kv_cache, write_kv_
from stentor.kernels.norm import rms_norm
from stentor.kernels.rotary import rotary_
from stentor.kernels.rotate_and_write import choose, rotate_and_write_kv_
from stentor.kernels.variants import Choice
from stentor.tests.kernels.heads import FP8, draw, filled_caches, projection, rotary_table
from stentor.tests.kernels.helpers import assert_same_bits, normal, thread_count

EPS = 1e-6
POSITIONS = torch.tensor([0, 49, 7, 7, 30])


def weights(dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return normal(dim, seed=3, dtype=dtype), normal(dim, seed=4, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("norm", [None, "llama", "gemma"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("q_heads", "kv_heads", "dim", "rotary_dim"), [(9, 3, 64, 64), (4, 4, 80, 32), (3, 1, 10, 6)])
def test_the_native_variant_is_bitwise_its_three_operations(
    dtype: torch.dtype,
    threads: int,
    norm: str | None,
    interleaved: bool,
    q_heads: int,
    kv_heads: int,
    dim: int,
    rotary_dim: int,
) -> None:
    cos, sin = rotary_table(50, rotary_dim // 2)
    slots = draw(96, 5, 2)
    mine, steps = (filled_caches(6, kv_heads, dim, 16, dtype, transposed=True) for _ in range(2))
    q, k, v = projection(5, q_heads, kv_heads, dim, seed=1, dtype=dtype)
    q_norm, k_norm = weights(dim, dtype) if norm is not None else (None, None)
    assert choose(q, mine[0]) == "native"
    with thread_count(threads):
        out = rotate_and_write_kv_(
            q,
            k,
            v,
            cos,
            sin,
            POSITIONS,
            *mine,
            slots,
            q_norm=q_norm,
            k_norm=k_norm,
            eps=EPS,
            plus_one=norm == "gemma",
            interleaved=interleaved,
        )
    q, k, v = projection(5, q_heads, kv_heads, dim, seed=1, dtype=dtype)
    if q_norm is not None and k_norm is not None:
        q, k = (rms_norm(x, w, EPS, plus_one=norm == "gemma", variant="native") for x, w in ((q, q_norm), (k, k_norm)))
    rotary_(q, k, cos, sin, POSITIONS, interleaved=interleaved, variant="native")
    write_kv_(k, v, *steps, slots, variant="native")
    assert_same_bits(out, q)
    assert_same_bits(mine[0], steps[0])
    assert_same_bits(mine[1], steps[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cache_dtype", [None, FP8])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("sections", [None, (3, 6, 7)])
def test_the_reference_is_its_three_references(
    dtype: torch.dtype, cache_dtype: torch.dtype | None, interleaved: bool, sections: tuple[int, int, int] | None
) -> None:
    cos, sin = rotary_table(50, 16)
    positions = POSITIONS if sections is None else torch.stack([POSITIONS, POSITIONS.flip(0), POSITIONS // 2])
    slots = draw(96, 5, 2)
    slots[3] = -1
    mine, steps = (filled_caches(6, 2, 40, 16, cache_dtype or dtype, transposed=False) for _ in range(2))
    k_scale, v_scale = (torch.tensor([0.5, 0.1]), torch.tensor([0.3, 2.0])) if cache_dtype else (None, None)
    q, k, v = projection(5, 4, 2, 40, seed=1, dtype=dtype)
    q_norm, k_norm = weights(40, dtype)
    assert choose(q, mine[0], "reference", sections=sections) == "reference"
    out = rotate_and_write_kv_(
        q,
        k,
        v,
        cos,
        sin,
        positions,
        *mine,
        slots,
        q_norm=q_norm,
        k_norm=k_norm,
        eps=EPS,
        interleaved=interleaved,
        sections=sections,
        k_scale=k_scale,
        v_scale=v_scale,
        variant="reference",
    )
    q, k, v = projection(5, 4, 2, 40, seed=1, dtype=dtype)
    q, k = (rms_norm(x, w, EPS, variant="reference") for x, w in ((q, q_norm), (k, k_norm)))
    rotary_(q, k, cos, sin, positions, interleaved=interleaved, sections=sections, variant="reference")
    write_kv_(k, v, *steps, slots, k_scale=k_scale, v_scale=v_scale, variant="reference")
    assert_same_bits(out, q)
    assert torch.equal(mine[0].float(), steps[0].float())
    assert torch.equal(mine[1].float(), steps[1].float())


@pytest.mark.parametrize("variant", ["native", "reference"])
@pytest.mark.parametrize(
    ("position", "slot", "message"), [(50, 1, "position 50"), (-1, 1, "position -1"), (3, 96, "slot 96")]
)
def test_nothing_is_written_where_a_position_or_a_slot_lies_outside(
    position: int, slot: int, message: str, variant: Choice
) -> None:
    q, k, v = projection(2, 4, 2, 8, seed=1, dtype=torch.float32)
    k_cache, v_cache = make_kv_cache(6, 2, 8, 16, torch.float32, "cpu")
    with pytest.raises(IndexError, match=f"{message} lies outside"):
        rotate_and_write_kv_(
            q,
            k,
            v,
            *rotary_table(50, 4),
            torch.tensor([0, position]),
            k_cache,
            v_cache,
            torch.tensor([0, slot]),
            variant=variant,
        )
    assert not k_cache.any()
    assert not v_cache.any()


def test_what_does_not_fit_is_refused() -> None:
    q, k, v = projection(2, 4, 2, 8, seed=1, dtype=torch.float32)
    angles, positions, slots = rotary_table(50, 4), torch.tensor([0, 1]), torch.tensor([0, 1])
    caches = make_kv_cache(6, 2, 8, 16, torch.float32, "cpu")
    with pytest.raises(ValueError, match=r"rotate_and_write_kv_: q_norm .* does not fit q"):
        rotate_and_write_kv_(q, k, v, *angles, positions, *caches, slots, q_norm=torch.ones(9))
    with pytest.raises(ValueError, match=r"rotate_and_write_kv_: k_norm .* does not fit q"):
        rotate_and_write_kv_(q, k, v, *angles, positions, *caches, slots, k_norm=torch.ones(8).half())
    with pytest.raises(ValueError, match=r"write_kv_: v .* does not fit 2 slots"):
        rotate_and_write_kv_(q, k, q, *angles, positions, *caches, slots)
    with pytest.raises(ValueError, match=r"rotary_: q .* does not fit k"):
        rotate_and_write_kv_(q, k.half(), v.half(), *angles, positions, *caches, slots)
    with pytest.raises(ValueError, match="write_kv_: float8 and int8 caches need"):
        rotate_and_write_kv_(q, k, v, *angles, positions, *make_kv_cache(6, 2, 8, 16, FP8, "cpu"), slots)
    with pytest.raises(ValueError, match="the native variant cannot run: it turns all of a head"):
        rotate_and_write_kv_(q, k, v, *angles, positions, *caches, slots, sections=(1, 1, 2), variant="native")
