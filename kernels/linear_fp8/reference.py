"""out = (x * x_scale) @ (weight * weight_scale).T + bias, in float32"""

from torch import Tensor

from ..quantize.operands import GROUP, Operands
from ..quantize.weights import BLOCK

_SCRATCH = 1 << 24
"""About how many elements of the weight are widened at once."""


def linear_fp8(operands: Operands) -> Tensor:
    """Computes :func:`stentor.kernels.linear_fp8` on any device."""
    tokens, rows, width = operands.shape
    x = operands.x.float()
    if operands.x_scale is not None:
        scale = operands.x_scale
        x = x * (scale.repeat_interleave(GROUP, 1)[:, :width] if operands.input_scales == "group" else scale)
    out = x.new_empty(tokens, rows, dtype=operands.out_dtype)
    step = max(_SCRATCH // width // BLOCK, 1) * BLOCK
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        made = x @ _widened(operands, part).T
        if operands.bias is not None:
            made += operands.bias[part].float()
        out[:, part] = made.to(operands.out_dtype)
    return out


def _widened(operands: Operands, part: slice) -> Tensor:
    """Returns rows ``part`` of the weight in float32; ``part`` begins with a block."""
    weight, scale = operands.weight[part].float(), operands.weight_scale
    if operands.weight_scales == "tensor":
        return weight * scale
    if operands.weight_scales == "channel":
        return weight * scale[part].unsqueeze(1)
    blocks = scale[part.start // BLOCK : -(-part.stop // BLOCK)]
    spread = blocks.repeat_interleave(BLOCK, 0)[: weight.shape[0]].repeat_interleave(BLOCK, 1)
    return weight * spread[:, : weight.shape[1]]
