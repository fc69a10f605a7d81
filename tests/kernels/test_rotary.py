import pytest
import torch

from stentor.kernels import rotary_
from stentor.kernels.rotary import choose
from stentor.tests.kernels.heads import projection, rotary_table
from stentor.tests.kernels.helpers import assert_same_bits, normal, thread_count

DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("q_heads", "k_heads", "dim", "rotary_dim"), [(9, 3, 64, 64), (4, 4, 80, 32), (3, 1, 10, 6)])
def test_slices_of_a_fused_projection_turn_in_place_bitwise_as_the_reference(
    dtype: torch.dtype, interleaved: bool, q_heads: int, k_heads: int, dim: int, rotary_dim: int
) -> None:
    cos, sin = rotary_table(50, rotary_dim // 2)
    positions = torch.tensor([0, 49, 7, 7, 30])
    fused = [normal(5, (q_heads + 2 * k_heads) * dim, seed=1, dtype=dtype) for _ in range(2)]
    before = fused[0].clone()
    for tensor, variant in zip(fused, ("native", "reference"), strict=True):
        q = tensor[:, : q_heads * dim].view(5, q_heads, dim)
        k = tensor[:, q_heads * dim : (q_heads + k_heads) * dim].view(5, k_heads, dim)
        assert choose(q, variant) == variant  # type: ignore[arg-type]
        rotary_(q, k, cos, sin, positions, interleaved=interleaved, variant=variant)
    assert_same_bits(fused[0], fused[1])
    assert_same_bits(fused[0][:, (q_heads + k_heads) * dim :], before[:, (q_heads + k_heads) * dim :])
    assert not torch.equal(fused[0], before)


def test_the_pair_turns_by_the_angle_of_its_position() -> None:
    cos, sin = rotary_table(10, 2)
    q = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])
    rotary_(q, q.clone(), cos, sin, torch.tensor([3]))
    assert torch.allclose(q, torch.tensor([[[torch.cos(torch.tensor(3.0)), 0.0, torch.sin(torch.tensor(3.0)), 0.0]]]))


def test_interleaved_pairs_turn_as_halves_do_where_they_lie() -> None:
    cos, sin = rotary_table(10, 3)
    q, k, _ = projection(4, 3, 2, 10, seed=1, dtype=torch.float32)
    order = [0, 2, 4, 1, 3, 5, 6, 7, 8, 9]  # the pairs' first members, their second, the dims that do not turn
    halves_q, halves_k = q[..., order], k[..., order]
    positions = torch.tensor([0, 9, 4, 4])
    rotary_(q, k, cos, sin, positions, interleaved=True)
    rotary_(halves_q, halves_k, cos, sin, positions)
    assert_same_bits(q[..., order], halves_q)
    assert_same_bits(k[..., order], halves_k)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("sections", [(4, 6, 6), (0, 16, 0), (16, 0, 0), (1, 0, 15)])
def test_sections_take_their_position_from_their_row(sections: tuple[int, int, int], interleaved: bool) -> None:
    cos, sin = rotary_table(50, 16)
    q, k, _ = projection(5, 2, 1, 40, seed=1, dtype=torch.float32)
    whole = [(q.clone(), k.clone()) for _ in range(3)]
    positions = torch.randint(50, (3, 5), generator=torch.Generator().manual_seed(1))
    for (q_row, k_row), row in zip(whole, positions, strict=True):
        rotary_(q_row, k_row, cos, sin, row, interleaved=interleaved, variant="reference")
    rotary_(q, k, cos, sin, positions, interleaved=interleaved, sections=sections)
    for pair, axis in enumerate([0] * sections[0] + [1] * sections[1] + [2] * sections[2]):
        dims = [2 * pair, 2 * pair + 1] if interleaved else [pair, pair + 16]
        assert_same_bits(q[..., dims], whole[axis][0][..., dims])
        assert_same_bits(k[..., dims], whole[axis][1][..., dims])
    assert_same_bits(q[..., 32:], whole[0][0][..., 32:])


def test_the_native_variant_leaves_sections_to_the_reference() -> None:
    q = torch.ones(2, 3, 8)
    assert choose(q, sections=(1, 1, 2)) == "reference"
    with pytest.raises(ValueError, match="not sections by several"):
        choose(q, "native", sections=(1, 1, 2))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_token_is_bitwise_the_same_in_any_batch(threads: int) -> None:
    cos, sin = rotary_table(300, 32)
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
    cos, sin = rotary_table(50, 4)
    q = normal(2, 1, 8, seed=1)
    before = q.clone()
    with pytest.raises(IndexError, match=f"position {position} lies outside the table of 50"):
        rotary_(q, q.clone(), cos, sin, torch.tensor([3, position]), variant=variant)  # type: ignore[arg-type]
    assert torch.equal(q, before)


def test_what_does_not_fit_is_refused() -> None:
    cos, sin = rotary_table(50, 4)
    q, positions = torch.ones(2, 3, 8), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="does not fit k"):
        rotary_(q, torch.ones(3, 3, 8), cos, sin, positions)
    with pytest.raises(ValueError, match="does not fit k"):
        rotary_(q, q.bfloat16(), cos, sin, positions)
    with pytest.raises(ValueError, match="float32 \\[P, R/2\\] with R <= 8"):
        rotary_(q, q.clone(), *rotary_table(50, 5), positions)
    with pytest.raises(ValueError, match="float32 \\[P, R/2\\]"):
        rotary_(q, q.clone(), cos.bfloat16(), sin.bfloat16(), positions)
    with pytest.raises(ValueError, match="int64 \\[2\\]"):
        rotary_(q, q.clone(), cos, sin, positions.int())
    with pytest.raises(ValueError, match="heads and dims of q must be contiguous"):
        rotary_(torch.ones(2, 3, 16)[..., ::2], q, cos, sin, positions)
    with pytest.raises(ValueError, match="int64 \\[3, 2\\]"):
        rotary_(q, q.clone(), cos, sin, positions, sections=(1, 1, 2))
    with pytest.raises(ValueError, match="three sizes that sum to 4"):
        rotary_(q, q.clone(), cos, sin, torch.zeros(3, 2, dtype=torch.int64), sections=(1, 1, 1))
