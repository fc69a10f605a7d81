"""Sinusoidal positions (arXiv:1706.03762)."""

import torch

_THETA = 10_000.0


def sinusoid_angles(positions: torch.Tensor, size: int) -> torch.Tensor:
    """Positions [n], which may be negative → float32 [n, size / 2], at frequencies from 1 down to almost 1 / 10000."""
    steps = torch.arange(0, size, 2, device=positions.device).float() / size
    return torch.outer(positions.float(), _THETA**-steps)
