"""Symmetric quantisation of activations: scale = max|x| / largest, values = round(x * (1 / scale))"""

import torch
from torch import Tensor
from torch.nn import functional

from .scheme import LARGEST, ActivationScheme, Quantized

SMALLEST_SCALE = 1e-12
"""Zeros are divided by this, and stay zeros."""


def quantize(x: Tensor, scheme: ActivationScheme, scale: Tensor | None = None) -> Quantized:
    """Quantises ``x`` [T, K] as :func:`stentor.kernels.quantize`; ``scale`` [1] for granularity ``tensor`` alone."""
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
    """The float32 scale under which ``largest``, a greatest magnitude, becomes the greatest value of ``dtype``."""
    # by a number torch divides with its reciprocal on CUDA, and a last place differs
    return (largest / torch.full_like(largest, LARGEST[dtype])).clamp_min(SMALLEST_SCALE)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` float32 in ``dtype``: the nearest value, of two the even one; what lies outside becomes the greatest."""
    x = x.clamp(-LARGEST[dtype], LARGEST[dtype])
    return (x.round() if dtype == torch.int8 else x).to(dtype)
