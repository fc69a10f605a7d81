import pytest
import torch

from stentor.kernels.kv_cache import choose, write_kv_
from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.heads import FP8, assert_same_cache, draw, filled_caches, projection

SHAPES = [(1, 1, 64, 16), (5, 3, 80, 48), (6, 9, 96, 32), (3, 2, 256, 128), (0, 2, 64, 16)]


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize(("tokens", "heads", "dim", "size"), SHAPES)
def test_rows_land_in_their_slots_and_nothing_else_changes(
    dtype: torch.dtype, transposed: bool, tokens: int, heads: int, dim: int, size: int
) -> None:
    _, k, v = projection(tokens, 2, heads, dim, seed=1, dtype=dtype, device=DEVICE)
    slots = draw(12 * size, tokens, 2, DEVICE)
    slots[1::3] = -1
    mine, expected = (
        filled_caches(12, heads, dim, size, dtype, transposed=transposed, device=DEVICE) for _ in range(2)
    )
    assert choose(k, mine[0], "triton") == "triton"
    write_kv_(k, v, *mine, slots, variant="triton")
    write_kv_(k, v, *expected, slots, variant="reference")
    assert_same_cache(mine[0], expected[0])
    assert_same_cache(mine[1], expected[1])


@pytest.mark.triton
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize(("block_tokens", "block_heads"), [(16, 2), (4, 8), (2, 1)])
def test_a_tile_of_any_size_writes_the_same(transposed: bool, block_tokens: int, block_heads: int) -> None:
    _, k, v = projection(21, 2, 3, 7, seed=1, dtype=torch.float32, device=DEVICE)
    slots = draw(12 * 16, 21, 2, DEVICE)
    mine, expected = (
        filled_caches(12, 3, 7, 16, torch.float32, transposed=transposed, device=DEVICE) for _ in range(2)
    )
    with overridden("write_kv", Config.of(BLOCK_TOKENS=block_tokens, BLOCK_HEADS=block_heads)):
        write_kv_(k, v, *mine, slots, variant="triton")
    write_kv_(k, v, *expected, slots, variant="reference")
    assert_same_cache(mine[0], expected[0])
    assert_same_cache(mine[1], expected[1])


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("transposed", [True, False])
def test_float8_caches_round_as_the_reference(dtype: torch.dtype, transposed: bool) -> None:
    _, k, v = projection(9, 1, 8, 80, seed=1, dtype=dtype, device=DEVICE)
    k[0, 0, 0], v[1, 1, 1], v[2, 0] = 6e4, -6e4, v[2, 0] / 256
    k[3, 3, 3] = float("nan")
    k_scale, v_scale = (torch.rand(8, generator=torch.Generator().manual_seed(s)).to(DEVICE) for s in (3, 4))
    slots = draw(48, 9, 2, DEVICE)
    slots[7] = -1
    mine, expected = (filled_caches(3, 8, 80, 16, FP8, transposed=transposed, device=DEVICE) for _ in range(2))
    assert choose(k, mine[0], "triton") == "triton"
    write_kv_(k, v, *mine, slots, k_scale=k_scale, v_scale=v_scale, variant="triton")
    write_kv_(k, v, *expected, slots, k_scale=k_scale, v_scale=v_scale, variant="reference")
    assert_same_cache(mine[0], expected[0])
    assert_same_cache(mine[1], expected[1])
    assert int(mine[0].float().isnan().sum()) == 1
    assert mine[1].float().min() == -448.0
