"""torch's fp8 matrix multiplication: cuBLASLt for scales by tensor, it or CUTLASS for scales by token and channel."""

import torch
from torch import Tensor

from ..quantize.operands import Operands


def scaled_mm(operands: Operands) -> Tensor:
    """What :mod:`.selection` lets through: fp8 by fp8, scales by tensor or by token and channel."""
    tokens, rows, _ = operands.shape
    x_scale, weight_scale = operands.x_scale, operands.weight_scale
    assert x_scale is not None
    if (operands.input_scales, operands.weight_scales) != ("tensor", "tensor"):
        x_scale = x_scale.view(-1, 1).expand(tokens, 1).contiguous()
        weight_scale = weight_scale.view(1, -1).expand(1, rows).contiguous()
    bias = operands.bias
    # it adds a bias of the result's dtype, where that has 16 bits
    fused = bias if bias is not None and bias.dtype == operands.out_dtype == torch.bfloat16 else None
    out: Tensor = torch._scaled_mm(
        operands.x,
        operands.weight.t(),
        scale_a=x_scale,
        scale_b=weight_scale,
        bias=fused,
        out_dtype=operands.out_dtype,
        use_fast_accum=True,
    )
    return out if bias is None or fused is not None else out.add_(bias)
