"""Norms of rows, in float32.

- RMS norm (arXiv:1910.07467): y = x / sqrt(mean(x²) + eps) · w
- Layer norm (arXiv:1607.06450): y = (x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) · w + b
"""

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float, plus_one: bool) -> Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if plus_one:
        return (normed * (1.0 + weight.float())).to(x.dtype)
    return normed.to(x.dtype) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, plus_one: bool) -> Tensor:
    residual.add_(x)
    return rms_norm(residual, weight, eps, plus_one)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    wide_bias = None if bias is None else bias.float()
    return functional.layer_norm(x.float(), weight.shape, weight.float(), wide_bias, eps).to(x.dtype)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    residual.add_(x)
    return layer_norm(residual, weight, bias, eps)
