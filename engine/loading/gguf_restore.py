"""What llama.cpp's converter makes of tensors, undone.

Each function takes a stored tensor, in transformers' order of dimensions: plain values, or where it only moves rows the
rows of stored blocks, uint8 [rows, bytes].
"""

from collections.abc import Callable

import torch

Restore = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
"""A stored tensor → those of transformers that it holds."""


def of_logs(stored: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """-exp(x) → x, as a vector."""
    return (torch.log(-stored.float()).flatten(),)


def vector(stored: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A matrix of one column, or one that stands for a vector, → that."""
    return (stored.flatten(),)


def row(stored: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A vector → a matrix of one row."""
    return (stored.reshape(1, -1),)


def convolution(stored: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """[channels, width] → [channels, 1, width]"""
    return (stored.unsqueeze(1),)


def halves_by_head(stored: torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
    """Rows of each head in turn, half of them of the first matrix, half of the second, → both."""
    by_head = stored.view(heads, 2, -1, *stored.shape[1:])
    return by_head[:, 0].flatten(0, 1), by_head[:, 1].flatten(0, 1)


def grouped(stored: torch.Tensor, first: int, groups: int, heads: int) -> tuple[torch.Tensor, ...]:
    """Rows of ``heads`` heads, from the row ``first`` on: the first head of every group, then the second of each, → the
    heads of a group side by side."""
    kept, moved = stored[:first], stored[first:]
    by_head = moved.view(heads // groups, groups, -1, *moved.shape[1:])
    return (torch.cat((kept, by_head.transpose(0, 1).flatten(0, 2))),)


def then(*steps: Restore) -> Restore:
    """Each of what the one before has made; all but the last make one tensor."""

    def restore(stored: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found: tuple[torch.Tensor, ...] = (stored,)
        for step in steps:
            found = step(found[0])
        return found

    return restore
