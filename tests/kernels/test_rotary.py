import pytest
import torch
from torch import Tensor

from stentor.kernels import rotary_
from stentor.kernels.rotary import choose
from stentor.tests.kernels.helpers import assert_same_bits, normal, thread_count

DTYPES = (torch.float32, torch.bfloat16)


def table(positions: int, half: int) -> tuple[Tensor, Tensor]:
    angles = torch.outer(torch.arange(positions).double(), 10000.0 ** (-torch.arange(half).double() / half))
    return angles.cos().float(), angles.sin().float()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("q_heads", "k_heads", "dim", "rotary_dim"), [(9, 3, 64, 64), (4, 4, 80, 32), (3, 1, 10, 6)])
def test_slices_of_a_fused_projection_turn_in_place_bitwise_as_the_reference(
    dtype: torch.dtype, q_heads: int, k_heads: int, dim: int, rotary_dim: int
) -> None:
    cos, sin = table(50, rotary_dim // 2)
    positions = torch.tensor([0, 49, 7, 7, 30])
    fused = [normal(5, (q_heads + 2 * k_heads) * dim, seed=1, dtype=dtype) for _ in range(2)]
    before = fused[0].clone()
    for tensor, variant in zip(fused, ("native", "reference"), strict=True):
        q = tensor[:, : q_heads * dim].view(5, q_heads, dim)
        k = tensor[:, q_heads * dim : (q_heads + k_heads) * dim].view(5, k_heads, dim)
        assert choose(q, variant) == variant  # type: ignore[arg-type]
        rotary_(q, k, cos, sin, positions, variant=variant)
    assert_same_bits(fused[0], fused[1])
    assert_same_bits(fused[0][:, (q_heads + k_heads) * dim :], before[:, (q_heads + k_heads) * dim :])
    assert not torch.equal(fused[0], before)


def test_the_pair_turns_by_the_angle_of_its_position() -> None:
    cos, sin = table(10, 2)
    q = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])
    rotary_(q, q.clone(), cos, sin, torch.tensor([3]))
    assert torch.allclose(q, torch.tensor([[[torch.cos(torch.tensor(3.0)), 0.0, torch.sin(torch.tensor(3.0)), 0.0]]]))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_token_is_bitwise_the_same_in_any_batch(threads: int) -> None:
    cos, sin = table(300, 32)
    positions = torch.arange(300)
    q, k = normal(300, 9, 64, seed=1), normal(300, 3, 64, seed=2)
    alone_q, alone_k = q.clone(), k.clone()
    with thread_count(threads):
        rotary_(q, k, cos, sin, positions)
    for i in range(300):
        rotary_(alone_q[i : i + 1], alone_k[i : i + 1], cos, sin, positions[i : i + 1])
    assert_same_bits(q, alone_q)
    assert_same_bits(k, alone_k)


@pytest.mark.parametrize("variant", ["native", "reference"])
@pytest.mark.parametrize("position", [-1, 50])
def test_a_position_outside_the_table_is_refused_before_anything_turns(position: int, variant: str) -> None:
    cos, sin = table(50, 4)
    q = normal(2, 1, 8, seed=1)
    before = q.clone()
    with pytest.raises(IndexError, match=f"position {position} lies outside the table of 50"):
        rotary_(q, q.clone(), cos, sin, torch.tensor([3, position]), variant=variant)  # type: ignore[arg-type]
    assert torch.equal(q, before)


def test_what_does_not_fit_is_refused() -> None:
    cos, sin = table(50, 4)
    q, positions = torch.ones(2, 3, 8), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="does not fit k"):
        rotary_(q, torch.ones(3, 3, 8), cos, sin, positions)
    with pytest.raises(ValueError, match="does not fit k"):
        rotary_(q, q.bfloat16(), cos, sin, positions)
    with pytest.raises(ValueError, match="float32 \\[P, R/2\\] with R <= 8"):
        rotary_(q, q.clone(), *table(50, 5), positions)
    with pytest.raises(ValueError, match="float32 \\[P, R/2\\]"):
        rotary_(q, q.clone(), cos.bfloat16(), sin.bfloat16(), positions)
    with pytest.raises(ValueError, match="int64 \\[2\\]"):
        rotary_(q, q.clone(), cos, sin, positions.int())
    with pytest.raises(ValueError, match="heads and dims of q must be contiguous"):
        rotary_(torch.ones(2, 3, 16)[..., ::2], q, cos, sin, positions)
