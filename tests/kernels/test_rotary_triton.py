import pytest
import torch

from stentor.kernels import rotary_
from stentor.kernels.rotary import choose
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.heads import projection, rotary_table
from stentor.tests.kernels.helpers import assert_same_bits

SHAPES = [
    (1, 32, 8, 64, 64),
    (5, 6, 2, 80, 32),
    (3, 3, 3, 96, 96),
    (2, 9, 1, 128, 128),
    (4, 2, 1, 10, 6),
    (0, 4, 2, 64, 64),
]


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("tokens", "q_heads", "k_heads", "dim", "rotary_dim"), SHAPES)
def test_slices_of_a_fused_projection_turn_in_place_bitwise_as_the_reference(
    dtype: torch.dtype, interleaved: bool, tokens: int, q_heads: int, k_heads: int, dim: int, rotary_dim: int
) -> None:
    cos, sin = rotary_table(50, rotary_dim // 2, DEVICE)
    positions = torch.tensor([49, 0, 7, 7, 30], device=DEVICE)[:tokens]
    mine, expected = (projection(tokens, q_heads, k_heads, dim, seed=1, dtype=dtype, device=DEVICE) for _ in range(2))
    assert choose(mine[0], "triton") == "triton"
    rotary_(*mine[:2], cos, sin, positions, interleaved=interleaved, variant="triton")
    rotary_(*expected[:2], cos, sin, positions, interleaved=interleaved, variant="reference")
    for a, b in zip(mine, expected, strict=True):
        assert_same_bits(a, b)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("sections", [(5, 8, 7), (0, 20, 0), (20, 0, 0), (4, 0, 16)])
def test_sections_take_their_position_from_their_row(
    dtype: torch.dtype, interleaved: bool, sections: tuple[int, int, int]
) -> None:
    cos, sin = rotary_table(50, 20, DEVICE)
    buffer = torch.randint(50, (3, 9), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    positions = buffer[:, :5]  # rows of a longer buffer
    mine, expected = (projection(5, 4, 2, 64, seed=1, dtype=dtype, device=DEVICE) for _ in range(2))
    assert choose(mine[0], "triton", sections=sections) == "triton"
    rotary_(*mine[:2], cos, sin, positions, interleaved=interleaved, sections=sections, variant="triton")
    rotary_(*expected[:2], cos, sin, positions, interleaved=interleaved, sections=sections, variant="reference")
    for a, b in zip(mine, expected, strict=True):
        assert_same_bits(a, b)
