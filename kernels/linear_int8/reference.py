"""out = (x @ weight.T) * x_scale * weight_scale + bias; if both are int8 the sum is exact."""

import torch
from torch import Tensor

from ..quantize.operands import Operands

_SCRATCH = 1 << 24
"""About how many elements of the weight are widened at once."""
_EXACT = 1024
"""This many products of two int8 sum to under 2^24: float32 holds every partial sum exactly."""


def linear_int8(operands: Operands) -> Tensor:
    """Computes :func:`stentor.kernels.linear_int8` on any device."""
    tokens, rows, width = operands.shape
    out = operands.x.new_empty(tokens, rows, dtype=operands.out_dtype)
    step = max(_SCRATCH // width, 1)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        made = _exact(operands.x, operands.weight[part]) if operands.x_scale is not None else None
        if made is None:
            made = operands.x.float() @ operands.weight[part].float().T
        else:
            assert operands.x_scale is not None
            made = made.float() * operands.x_scale
        made *= operands.weight_scale if operands.weight_scales == "tensor" else operands.weight_scale[part]
        if operands.bias is not None:
            made += operands.bias[part].float()
        out[:, part] = made.to(operands.out_dtype)
    return out


def _exact(x: Tensor, weight: Tensor) -> Tensor:
    """Returns x [T, K] int8 @ weight [N, K] int8 .T as int32 [T, N]."""
    total = x.new_zeros(x.shape[0], weight.shape[0], dtype=torch.int32)
    for start in range(0, x.shape[1], _EXACT):
        part = slice(start, start + _EXACT)
        total += (x[:, part].float() @ weight[:, part].float().T).to(torch.int32)
    return total
