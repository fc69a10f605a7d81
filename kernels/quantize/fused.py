"""What operations share that quantise their own result: guards, and the tensors that they fill."""

import torch
from torch import Tensor

from ..guards import describe, triton_unsupported_reason
from ..variants import Choice
from .scheme import ActivationScheme, Quantized


def check_fused(operation: str, x: Tensor, scheme: ActivationScheme, scale: Tensor | None) -> None:
    """Checks what an operation is to quantise: ``x``, or what it computes from ``x``, [T, K].

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
    """Why no Triton kernel can quantise what it makes of ``x``; None when one can."""
    if (unsupported_reason := triton_unsupported_reason(x, choice)) is not None:
        return unsupported_reason
    if scheme.granularity == "group" and scheme.group & (scheme.group - 1):
        return f"it takes groups of a power of two, not {scheme.group}"
    return None


def empty_quantized(rows: int, width: int, scheme: ActivationScheme, scale: Tensor | None, like: Tensor) -> Quantized:
    """Tensors on the device of ``like`` for [rows, width] values; the scale of granularity ``tensor`` is the given."""
    values = torch.empty((rows, width), dtype=scheme.dtype, device=like.device)
    if scheme.granularity == "tensor":
        assert scale is not None
        return Quantized(values, scale)
    groups = 1 if scheme.granularity == "token" else -(-width // scheme.group)
    return Quantized(values, torch.empty((rows, groups), dtype=torch.float32, device=like.device))


def unfused(choice: Choice) -> Choice:
    """What the operations run as where the fused kernel does not: the reference if that was asked for by name."""
    return "reference" if choice == "reference" else "auto"
