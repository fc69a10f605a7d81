"""y = x Wᵀ + b"""

import torch
from torch import Tensor
from torch.nn import functional


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(x, weight, bias)


def linear_invariant(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Takes one row at a time, so that the underlying library never sees the number of rows."""
    if x.shape[0] == 0:
        return x.new_empty((0, weight.shape[0]))
    return torch.cat([functional.linear(x[row : row + 1], weight, bias) for row in range(x.shape[0])])
