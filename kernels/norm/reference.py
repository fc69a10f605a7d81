"""Root mean square norm (arXiv:1910.07467): y = x / sqrt(mean(x²) + eps) · w"""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, plus_one: bool) -> Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if plus_one:
        return (normed * (1.0 + weight.float())).to(x.dtype)
    return normed.to(x.dtype) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, plus_one: bool) -> Tensor:
    residual.add_(x)
    return rms_norm(residual, weight, eps, plus_one)
