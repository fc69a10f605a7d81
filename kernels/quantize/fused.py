"""Shared by operations that quantise their own result: argument checks, and the output tensors."""

import torch
from torch import Tensor

from ..guards import describe, triton_unsupported_reason
from ..variants import Choice
from .scheme import ActivationScheme, Quantized


def check_fused(operation: str, x: Tensor, scheme: ActivationScheme, scale: Tensor | None) -> None:
    """Checks ``x`` [T, K], the values to quantise or what they are computed from.

    Raises:
        ValueError: K is 0, or ``scale`` is not float32 [1] beside ``x`` for granularity ``tensor`` and None for others.
    """
    if x.dim() != 2 or not x.shape[1]:
        raise ValueError(f"{operation}: want rows [T, K] with K > 0, not {describe(x)}")
    if (scheme.granularity == "tensor") != (scale is not None):
        raise ValueError(
            f"{operation}: a scale goes with granularity tensor alone; granularity is {scheme.granularity}, "
            f"scale is {'missing' if scale is None else 'given'}"
        )
    if scale is not None and (scale.shape != (1,) or scale.dtype != torch.float32 or scale.device != x.device):
        raise ValueError(f"{operation}: want scale [1] float32 on {x.device}, not {describe(scale)}")


def fused_unsupported_reason(x: Tensor, scheme: ActivationScheme, choice: Choice) -> str | None:
    """Returns why no Triton kernel can quantise what it computes from ``x``; None if one can."""
    if (unsupported_reason := triton_unsupported_reason(x, choice)) is not None:
        return unsupported_reason
    if scheme.granularity == "group" and scheme.group & (scheme.group - 1):
        return f"it takes groups of a power of two, not {scheme.group}"
    return None


def empty_quantized(rows: int, width: int, scheme: ActivationScheme, scale: Tensor | None, like: Tensor) -> Quantized:
    """Returns empty tensors on the device of ``like`` for [rows, width] values; for granularity ``tensor`` with the
    given scale."""
    values = torch.empty((rows, width), dtype=scheme.dtype, device=like.device)
    if scheme.granularity == "tensor":
        assert scale is not None
        return Quantized(values, scale)
    groups = 1 if scheme.granularity == "token" else -(-width // scheme.group)
    return Quantized(values, torch.empty((rows, groups), dtype=torch.float32, device=like.device))


def unfused(choice: Choice) -> Choice:
    """Returns the choice for the separate operations if the fused kernel does not run: the reference only if asked for
    by name."""
    return "reference" if choice == "reference" else "auto"
