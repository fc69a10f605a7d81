"""Rotation of heads whose pairs have two angles."""

import pytest
import torch

from stentor import kernels
from stentor.engine.layers.rotary import rotate_apart_


def _heads(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    q, k = (torch.randn(5, heads, 16, generator=random).to(dtype) for heads in (4, 2))
    return q, k


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("interleaved", [False, True])
def test_equal_angles_of_both_numbers_rotate_as_one_angle_does(dtype: torch.dtype, interleaved: bool) -> None:
    angles, positions = torch.randn(7, 8), torch.tensor([6, 0, 2, 2, 5])
    both = angles.repeat(1, 2)
    (q, k), (expected_q, expected_k) = _heads(dtype), _heads(dtype)
    rotate_apart_(q, k, both.cos(), both.sin(), positions, interleaved=interleaved)
    kernels.rotary_(expected_q, expected_k, angles.cos(), angles.sin(), positions, interleaved=interleaved)
    close = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close((q, k), (expected_q, expected_k), rtol=close, atol=close)


def test_each_number_of_a_pair_rotates_by_its_own_angle() -> None:
    q, k = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[1.0, 2.0]]])
    angles = torch.tensor([[0.0, torch.pi / 2]])  # the first number stays, the second becomes the first
    rotate_apart_(q, k, angles.cos(), angles.sin(), torch.tensor([0]), interleaved=True)
    torch.testing.assert_close(q, torch.tensor([[[3.0, 3.0]]]))
    torch.testing.assert_close(k, torch.tensor([[[1.0, 1.0]]]))
