"""The short depthwise causal convolution of recurrent mixers and of LFM2; a state holds the last inputs."""

import ctypes
from typing import Literal

import torch
from torch import Tensor

from ..guards import FLOATS, describe, native_unsupported_reason, triton_unsupported_reason
from ..native import by_dtype, pointers, threads
from ..state_rows import StateRows
from ..variants import Choice, Variant, select_variant
from . import reference

__all__ = ["Activation", "causal_conv", "choose"]

Activation = Literal["silu", "none"]
"""The activation of the sums."""


_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P,) * 8 + (_I,) * 6 + (ctypes.c_int32, ctypes.c_int32, _I)
_NATIVE = by_dtype("stentor_causal_conv", *_ARGUMENTS, restype=_I)
_NATIVE_WIDTHS = (2, 3, 4)


def choose(x: Tensor, width: int, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`causal_conv` runs. Raises ValueError if one is asked for that cannot run."""
    native = native_unsupported_reason(_NATIVE.get(x.dtype), x)
    if native is None and width not in _NATIVE_WIDTHS:
        native = f"it takes widths of 2 to 4, not {width}"
    return select_variant(variant, triton=triton_unsupported_reason(x, variant), native=native)


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    rows: StateRows,
    *,
    activation: Activation,
    variant: Choice = "auto",
) -> Tensor:
    """Convolves each channel of each row with the ``width`` inputs up to and including a token.

    Args:
        x: [tokens, channels]; channels contiguous, tokens may be strided.
        weight: [channels, width] of x's dtype, contiguous; the last column belongs to the token itself. Width is 2 or
            more.
        bias: [channels] of x's dtype, contiguous.
        state: [slots, channels, width - 1] of a float dtype, contiguous: the inputs of the last tokens, oldest first.
            Changed in place. Later tokens see an input as rounded to the state's dtype.
        rows: the tokens of each row, and the slots of its state.
        activation: applied to the sums.
        variant: forces an implementation.

    Returns:
        [tokens, channels], a new contiguous tensor: sums are in float32, rounded once.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
        IndexError: rows with tokens or slots out of range. The Triton variant does not check.
    """
    if x.dim() != 2 or x.dtype not in FLOATS or (x.shape[1] > 1 and x.stride(1) != 1):
        raise ValueError(
            f"causal_conv: x {describe(x)} must be [tokens, channels] of a float dtype, channels contiguous"
        )
    channels = x.shape[1]
    fits = weight.dim() == 2 and weight.shape[0] == channels and weight.shape[1] >= 2
    if not fits or weight.dtype != x.dtype or not weight.is_contiguous():
        raise ValueError(f"causal_conv: weight {describe(weight)} must be contiguous [{channels}, width] of x's dtype")
    if bias is not None and (bias.shape != (channels,) or bias.dtype != x.dtype or not bias.is_contiguous()):
        raise ValueError(f"causal_conv: bias {describe(bias)} must be contiguous [{channels}] of x's dtype")
    rows.check("causal_conv", state, (channels, weight.shape[1] - 1))
    chosen = choose(x, weight.shape[1], variant)
    if chosen == "triton":
        from .triton import causal_conv as run  # late: Triton takes long to import

        return run(x, weight, bias, state, rows, activation)
    if chosen == "native":
        out = torch.empty(x.shape, dtype=x.dtype)
        bad = _NATIVE[x.dtype](
            *pointers(x, weight, bias, state, out),
            *rows.addresses,
            *(len(state), len(x), x.stride(0), channels, weight.shape[1]),
            activation == "silu",
            rows.state_dtype(state),
            threads(),
        )
        if bad >= 0:
            raise rows.misfit(bad, len(state), len(x), "causal_conv")
        return out
    return reference.causal_conv(x, weight, bias, state, rows, activation)
