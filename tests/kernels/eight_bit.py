"""Operands for the linear maps whose weights have 8 bits."""

import torch
from torch import Tensor

from stentor.kernels.quantize import ActivationScheme, Quantized, quantize, quantize_weight_fp8, quantize_weight_int8
from stentor.kernels.quantize.operands import InputScales
from stentor.kernels.quantize.scheme import FP8
from stentor.kernels.quantize.weights import WeightGranularity
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.helpers import normal

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Of the greatest magnitude: sums in another order, and one rounding to the result's dtype."""


def fp8_weight(rows: int, width: int, granularity: WeightGranularity) -> tuple[Tensor, Tensor]:
    """Of rows and columns whose sizes differ widely, so that a scale in the wrong place shows."""
    spread = torch.logspace(-1, 1, rows)[:, None] * torch.logspace(1, -1, width)
    weight, scale = quantize_weight_fp8(normal(rows, width, seed=11) * spread, granularity)
    return weight.to(DEVICE), scale.to(DEVICE)


def int8_weight(rows: int, width: int) -> tuple[Tensor, Tensor]:
    weight, scale = quantize_weight_int8(normal(rows, width, seed=12) * torch.logspace(-1, 1, rows)[:, None])
    return weight.to(DEVICE), scale.to(DEVICE)


def quantized(tokens: int, width: int, dtype: torch.dtype, scales: InputScales) -> Quantized:
    spread = torch.logspace(-1, 1, tokens)[:, None] * torch.logspace(-1, 1, width)
    x = normal(tokens, width, seed=13) * spread
    scale = None
    if scales == "tensor":
        scale = x.abs().amax().view(1) / (448 if dtype == FP8 else 127)
    assert scales != "none"
    made = quantize(x, ActivationScheme(dtype, scales), scale, variant="reference")
    return Quantized(made.values.to(DEVICE), made.scales.to(DEVICE))
