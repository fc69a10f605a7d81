"""y = x · dequantize(W)ᵀ + b, in float32 and rounded once."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from .weight import GGUFWeight, dequantize


def linear_gguf(x: Tensor, weight: GGUFWeight, bias: Tensor | None) -> Tensor:
    values = dequantize(weight, torch.float32)
    return linear(x.float(), values, None if bias is None else bias.float()).to(x.dtype)
