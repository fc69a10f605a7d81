import pytest
import torch

from stentor.kernels import kv_cache_shape, write_kv_
from stentor.kernels.kv_cache import choose
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
    assert choose(k) == "native"
    with thread_count(threads):
        write_kv_(k, v, *caches[0], slots)
    write_kv_(k, v, *caches[1], slots, variant="reference")
    assert torch.equal(caches[0][0], caches[1][0])
    assert torch.equal(caches[0][1], caches[1][1])
    slot = int(slots[-1])
    assert torch.equal(caches[0][0][slot // size, :, :, slot % size], k[-1])
    assert torch.equal(caches[0][1][slot // size, :, slot % size], v[-1])
    assert int((caches[0][0] != 7.0).sum()) <= tokens * heads * dim


@pytest.mark.parametrize("slot", [-1, 64])
@pytest.mark.parametrize("variant", ["native", "reference"])
def test_a_slot_outside_the_cache_is_refused_and_nothing_is_written(slot: int, variant: str) -> None:
    k_cache, v_cache = (torch.zeros(shape) for shape in kv_cache_shape(2, 1, 4, 32))
    rows = torch.ones(2, 1, 4)
    with pytest.raises(IndexError, match=f"slot {slot} lies outside the 64"):
        write_kv_(rows, rows, k_cache, v_cache, torch.tensor([0, slot]), variant=variant)  # type: ignore[arg-type]
    assert not k_cache.any()
    assert not v_cache.any()


@pytest.mark.parametrize("size", [0, -16, 8, 24])
def test_a_block_holds_a_multiple_of_sixteen(size: int) -> None:
    with pytest.raises(ValueError, match="positive multiple of 16"):
        kv_cache_shape(2, 1, 4, size)


def test_what_does_not_fit_is_refused() -> None:
    k_cache, v_cache = (torch.zeros(shape) for shape in kv_cache_shape(2, 1, 4, 32))
    rows, slots = torch.ones(2, 1, 4), torch.tensor([0, 1])
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
