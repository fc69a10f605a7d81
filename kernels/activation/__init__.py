"""Activations of feed-forward layers, with and without a gate."""

import ctypes

from torch import Tensor

from ..guards import FLOATS, describe, native_unsupported_reason
from ..native import by_dtype, threads
from ..variants import Choice, Variant, select_variant
from . import reference
from .gated import KINDS, ActivationKind, choose, gated_activation
from .quantized import choose_quantized, gated_activation_quantized

_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P, _I, ctypes.c_int32, _I)
_NATIVE = by_dtype("stentor_activate", *_ARGUMENTS)


def choose_plain(x: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`activate_` runs: torch's own on a GPU. Raises ValueError if a named one cannot
    run."""
    return select_variant(variant, native=native_unsupported_reason(_NATIVE.get(x.dtype), x))


def activate_(x: Tensor, kind: ActivationKind, *, variant: Choice = "auto") -> Tensor:
    """Replaces each value of ``x`` by act(value), computed in float32 and rounded once; returns ``x``.

    Args:
        x: contiguous, of any shape; changed.
        kind: ``silu``, ``gelu_tanh`` (the tanh form), ``gelu`` (the error function), ``relu2`` (max(x, 0)²),
            ``quick_gelu`` (x · sigmoid(1.702 x)) or ``relu``.
        variant: forces an implementation.

    Raises:
        ValueError: an unknown kind, a dtype or strides that do not fit.
    """
    if kind not in KINDS:
        raise ValueError(f"activate_: kind must be one of {', '.join(KINDS)}, not {kind!r}")
    if x.dtype not in FLOATS or not x.is_contiguous():
        raise ValueError(f"activate_: x {describe(x)} must be contiguous, of a float dtype; strides are {x.stride()}")
    if choose_plain(x, variant) == "reference":
        return x.copy_(reference.activation(x, kind))
    _NATIVE[x.dtype](x.data_ptr(), x.numel(), KINDS[kind], threads())
    return x


__all__ = [
    "ActivationKind",
    "activate_",
    "choose",
    "choose_plain",
    "choose_quantized",
    "gated_activation",
    "gated_activation_quantized",
]
