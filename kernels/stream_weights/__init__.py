"""The weights of a token's residual streams: manifold-constrained hyper-connections."""

import ctypes

import torch
from torch import Tensor

from ..guards import check_float32, native_unsupported_reason
from ..native import NativeFunction, pointers, threads
from ..variants import Choice, Variant, select_variant
from . import reference

__all__ = ["choose", "stream_weights"]

_P, _I = ctypes.c_void_p, ctypes.c_int64
_NATIVE = NativeFunction("stentor_stream_weights", _P, _P, _P, _P, _I, _I, _I, ctypes.c_double, _I)


def choose(x: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`stream_weights` runs. Raises ValueError if one is asked for that cannot run."""
    return select_variant(variant, native=native_unsupported_reason(_NATIVE, x))


def stream_weights(
    x: Tensor, base: Tensor, scale: Tensor, *, streams: int, iterations: int, eps: float, variant: Choice = "auto"
) -> Tensor:
    """Returns the weights of the sum of a token's ``streams``, of what is added to each, and of their mixture.

    Args:
        x: float32 [tokens, streams · (streams + 2)], contiguous: numbers for the three, one after another, the last by
            rows of a matrix.
        base: float32 [streams · (streams + 2)], contiguous, added to ``x`` times ``scale``.
        scale: float32 [3], one for each of the three.
        streams: 2 or more.
        iterations: 1 or more: divisions of the matrix by the sums of its columns; between two of them by those of its
            rows.
        eps: added to weights of the sum, to the matrix before it is divided, and to sums.
        variant: forces an implementation.

    Returns:
        float32 like ``x``, a new tensor. In the native variant a row does not depend on the others.

    Raises:
        ValueError: shapes, dtypes or numbers that do not fit.
    """
    width = streams * (streams + 2)
    if streams < 2 or iterations < 1:
        raise ValueError(f"stream_weights: {streams} streams and {iterations} iterations, expected 2 and 1 at least")
    check_float32("stream_weights", "x", x, (len(x), width))
    check_float32("stream_weights", "base", base, (width,))
    check_float32("stream_weights", "scale", scale, (3,))
    if choose(x, variant) == "reference":
        return reference.stream_weights(x, base, scale, streams, iterations, eps)
    out = torch.empty_like(x)
    _NATIVE(*pointers(x, base, scale, out), len(x), streams, iterations, eps, threads())
    return out
