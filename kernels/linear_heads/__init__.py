"""A linear layer with a weight per head: y[:, h] = x[:, h] W[h]ᵀ."""

import ctypes

import torch
from torch import Tensor

from ..guards import describe, native_unsupported_reason
from ..native import by_dtype, threads
from ..variants import Choice, Variant, select_variant

_P, _I = ctypes.c_void_p, ctypes.c_int64
_NATIVE = by_dtype("stentor_linear_heads", _P, _P, _P, _I, _I, _I, _I, _I, _I, _I, _I, _I)


def choose(x: Tensor, weight: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`linear_heads` runs. Raises ValueError if ``native`` is asked for and cannot
    run."""
    unsupported_reason = native_unsupported_reason(_NATIVE.get(x.dtype), x)
    if unsupported_reason is None and (x.stride(2) != 1 or weight.stride(2) != 1):
        unsupported_reason = "it takes contiguous rows"
    return select_variant(variant, native=unsupported_reason)


def linear_heads(x: Tensor, weight: Tensor, *, invariant: bool = False, variant: Choice = "auto") -> Tensor:
    """Multiplies each head's row of ``x`` by its weight transposed; sums are in float32.

    Args:
        x: [T, H, K], any float dtype and strides.
        weight: [H, N, K], the dtype of ``x``.
        invariant: a row has the same bits whatever T and its place in the batch; always so in the native variant
            (float32 and bfloat16). The reference takes one row at a time, which is slow.
        variant: forces an implementation.

    Returns:
        [T, H, N], a new contiguous tensor.

    Raises:
        ValueError: shapes or dtypes that do not agree.
    """
    fits = x.dim() == weight.dim() == 3 and x.shape[1] == weight.shape[0] and x.shape[2] == weight.shape[2]
    if not fits or x.dtype != weight.dtype:
        raise ValueError(
            f"linear_heads: x {describe(x)} does not fit weight {describe(weight)}; want [T, H, K] and [H, N, K]"
        )
    if choose(x, weight, variant) == "reference":
        return (_row_by_row if invariant else _reference)(x, weight)
    tokens, heads, inner = x.shape
    columns = weight.shape[1]
    out = x.new_empty((tokens, heads, columns))
    _NATIVE[x.dtype](
        x.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        tokens,
        heads,
        columns,
        inner,
        x.stride(0),
        x.stride(1),
        weight.stride(0),
        weight.stride(1),
        threads(),
    )
    return out


def _reference(x: Tensor, weight: Tensor) -> Tensor:
    """The plain torch reference."""
    rows = torch.bmm(x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)
    return rows.clone(memory_format=torch.contiguous_format)


def _row_by_row(x: Tensor, weight: Tensor) -> Tensor:
    """The reference one row at a time, so that the underlying library never sees the number of rows."""
    if x.shape[0] == 0:
        return x.new_empty((0, *weight.shape[:2]))
    return torch.cat([_reference(x[row : row + 1], weight) for row in range(x.shape[0])])
