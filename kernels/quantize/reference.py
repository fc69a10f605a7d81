"""Symmetric quantisation of activations: scale = max|x| / largest, values = round(x * (1 / scale))."""

import torch
from torch import Tensor
from torch.nn import functional

from .scheme import LARGEST, ActivationScheme, Quantized

SMALLEST_SCALE = 1e-12
"""The least scale, so that zeros stay zeros."""


def quantize(x: Tensor, scheme: ActivationScheme, scale: Tensor | None = None) -> Quantized:
    """Quantises ``x`` [T, K] as :func:`stentor.kernels.quantize`; ``scale`` [1] for granularity ``tensor`` only."""
    wide = x.float()
    if scheme.granularity == "tensor":
        assert scale is not None
        return Quantized(rounded(wide * scale.reciprocal(), scheme.dtype).contiguous(), scale)
    if scheme.granularity == "token":
        scales = scale_of(wide.abs().amax(-1, keepdim=True), scheme.dtype)
        return Quantized(rounded(wide * scales.reciprocal(), scheme.dtype).contiguous(), scales)
    rows, width = x.shape
    groups = -(-width // scheme.group)
    padded = functional.pad(wide, (0, groups * scheme.group - width)).view(rows, groups, scheme.group)
    scales = scale_of(padded.abs().amax(-1), scheme.dtype)
    values = rounded(padded * scales.reciprocal().unsqueeze(-1), scheme.dtype).view(rows, groups * scheme.group)
    return Quantized(values[:, :width].contiguous(), scales)


def scale_of(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the float32 scale that maps ``largest``, a greatest magnitude, to the greatest value of ``dtype``."""
    # torch on CUDA divides by a number through its reciprocal, and the last bit would differ
    return (largest / torch.full_like(largest, LARGEST[dtype])).clamp_min(SMALLEST_SCALE)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds ``x`` float32 to ``dtype``, half to even; values outside its range are clamped."""
    x = x.clamp(-LARGEST[dtype], LARGEST[dtype])
    return (x.round() if dtype == torch.int8 else x).to(dtype)
