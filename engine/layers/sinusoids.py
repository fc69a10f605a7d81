"""Sinusoidal positions (arXiv:1706.03762)."""

import math

import torch

_THETA = 10_000.0


def sinusoid_table(first: int, rows: int, size: int) -> torch.Tensor:
    """float32 [rows, size] of positions from ``first`` on: sines, then cosines, at frequencies from 1 to exactly
    1 / 10000 (XGLM)."""
    half = size // 2
    steps = torch.arange(half).float() * -(math.log(_THETA) / (half - 1))
    angles = torch.outer(torch.arange(first, first + rows).float(), steps.exp())
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def sinusoid_angles(positions: torch.Tensor, size: int) -> torch.Tensor:
    """Positions [n], which may be negative → float32 [n, size / 2], at frequencies from 1 down to almost 1 / 10000."""
    steps = torch.arange(0, size, 2, device=positions.device).float() / size
    return torch.outer(positions.float(), _THETA**-steps)
