"""Which implementation multiplies by a weight of 8 bits: the first, in this order, that can.

==========  ===============================================================================================
gemv        Triton, one token
skinny      Triton, few tokens
scaled_mm   torch's (cuBLASLt, CUTLASS), many tokens, fp8 with scales by tensor or by token and channel
tiles       Triton, everything else on CUDA
reference   plain torch, any device
==========  ===============================================================================================
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from ..quantize.operands import InputScales, Operands
from ..quantize.weights import WeightGranularity
from ..variants import Choice, select_variant, wanted

Implementation = Literal["gemv", "skinny", "scaled_mm", "tiles", "reference"]

SKINNY_TOKENS = 64
"""Up to this many tokens the weight's bytes cost more than the arithmetic."""


@dataclass(frozen=True)
class Selection:
    implementation: Implementation
    refused: tuple[tuple[Implementation, str], ...]
    """The implementations before it in the order, each with why it was passed over."""

    def __str__(self) -> str:
        return "; ".join((self.implementation, *(f"not {name}: {reason}" for name, reason in self.refused)))


@dataclass(frozen=True)
class _Case:
    """The properties of a product on which the choice of an implementation depends."""

    tokens: int
    """The number of tokens, or a larger one that is treated alike."""
    rows: int
    width: int
    x_dtype: torch.dtype
    input_scales: InputScales
    weight_scales: WeightGranularity
    out_dtype: torch.dtype
    capability: int
    triton_only: bool


def select(operands: Operands, variant: Choice, unsupported_reason: str | None) -> Selection:
    """Returns the implementation for ``operands``.

    Args:
        operands: what is multiplied.
        variant: ``triton`` leaves out torch's kernel, ``reference`` all others.
        unsupported_reason: why Triton cannot run on these tensors; None if it can.

    Raises:
        ValueError: ``triton`` or ``native`` is asked for and cannot run.
    """
    if select_variant(variant, triton=unsupported_reason) == "reference":
        return _reference(unsupported_reason or "the reference was asked for")
    from ..quantize.fp8 import capability  # late: importing Triton takes half a second

    tokens, rows, width = operands.shape
    return _select(
        _Case(
            tokens=next((most for most in (1, SKINNY_TOKENS) if tokens <= most), SKINNY_TOKENS + 1),
            rows=rows,
            width=width,
            x_dtype=operands.x.dtype,
            input_scales=operands.input_scales,
            weight_scales=operands.weight_scales,
            out_dtype=operands.out_dtype,
            capability=capability(),
            triton_only=wanted(variant) == "triton",
        )
    )


@cache
def _reference(reason: str) -> Selection:
    names: tuple[Implementation, ...] = ("gemv", "skinny", "scaled_mm", "tiles")
    return Selection("reference", tuple((name, reason) for name in names))


@cache
def _select(case: _Case) -> Selection:
    refused: list[tuple[Implementation, str]] = []
    unsupported_reasons: tuple[tuple[Implementation, str | None], ...] = (
        ("gemv", None if case.tokens == 1 else "it takes one token"),
        ("skinny", None if case.tokens <= SKINNY_TOKENS else f"it takes up to {SKINNY_TOKENS} tokens"),
        ("scaled_mm", _scaled_mm_unsupported_reason(case)),
    )
    for name, unsupported_reason in unsupported_reasons:
        if unsupported_reason is None:
            return Selection(name, tuple(refused))
        refused.append((name, unsupported_reason))
    return Selection("tiles", tuple(refused))


def _scaled_mm_unsupported_reason(case: _Case) -> str | None:
    """Returns why ``torch._scaled_mm`` cannot run, by what torch 2.11 to 2.13 accept; None if it can."""
    if case.triton_only:
        return "Triton was asked for"
    if case.x_dtype != torch.float8_e4m3fn:
        return f"it multiplies fp8 by fp8, x is {str(case.x_dtype).removeprefix('torch.')}"
    if case.input_scales == "group" or case.weight_scales == "block":
        return "its scales are by tensor, or by token and channel"
    if case.rows % 16 or case.width % 16:
        return f"N and K must be multiples of 16, they are {case.rows} and {case.width}"
    if case.capability < 89:
        return f"fp8 tensor cores came with compute capability 8.9, this is {case.capability / 10}"
    if (case.input_scales, case.weight_scales) == ("tensor", "tensor"):
        return None
    if case.capability >= 120:
        return f"by token and channel it has no kernel for compute capability {case.capability / 10}"
    if case.out_dtype != torch.bfloat16:
        return "by token and channel it returns bfloat16 everywhere, other dtypes not"
    return None
