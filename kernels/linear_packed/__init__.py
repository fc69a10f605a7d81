"""Linear layers on a CPU with weights packed in the order of multiplication: y = x Wᵀ + b."""

import ctypes

import torch
from torch import Tensor

from ..activation.gated import KINDS, ActivationKind
from ..guards import check_float32, describe, native_unsupported_reason
from ..native import NativeFunction, threads
from ..variants import Choice, Variant, select_variant
from . import reference
from .weight import (
    ACTIVATION_FORMATS,
    BLOCK,
    PACKED_BLOCKS,
    PLAIN,
    ActivationFormat,
    PackedKind,
    PackedStruct,
    PackedWeight,
    Scaling,
    Stored,
    activation_format_of,
    empty_packed,
    kind_of,
    pack_codes_,
    pack_gguf_,
    pack_plain_,
    prepared_stride,
    scaling_of,
    unpack_rows,
    unsupported_reason,
)

__all__ = [
    "ACTIVATION_FORMATS",
    "BLOCK",
    "PACKED_BLOCKS",
    "PLAIN",
    "ActivationFormat",
    "PackedKind",
    "PackedStruct",
    "PackedWeight",
    "Scaling",
    "Stored",
    "activation_format_of",
    "choose",
    "empty_packed",
    "kind_of",
    "linear_packed",
    "pack_codes_",
    "pack_gguf_",
    "pack_plain_",
    "prepared_stride",
    "scaling_of",
    "unpack_rows",
    "unsupported_reason",
]

_P, _I = ctypes.c_void_p, ctypes.c_int64
_NATIVE = NativeFunction("stentor_linear_packed", _P, _P, _I, _I, _P, _I, _P, _I, _I, _I, restype=_I)
_FLOATS = (torch.float32, torch.bfloat16)


def choose(x: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`linear_packed` runs on ``x``. Raises ValueError if one is asked for that cannot
    run."""
    return select_variant(variant, native=native_unsupported_reason(_NATIVE if x.dtype in _FLOATS else None, x))


def linear_packed(
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    *,
    activation: ActivationKind | None = None,
    dtype: torch.dtype | None = None,
    variant: Choice = "auto",
) -> Tensor:
    """Returns act(x Wᵀ + bias) for each row of ``x``; sums, bias and activation are in float32.

    For a plain bfloat16 weight, inputs are rounded to bfloat16. For coded weights, each block of 32 inputs is rounded
    in steps, of which 255 span all inputs but the largest. The largest is rounded to such steps too, or kept exactly if
    it is far out. Each output is summed along K in one order. In the native variant a row has the same bits whatever
    the other rows, their number and the number of threads.

    Args:
        x: [T, K] float32 or bfloat16.
        weight: of [N, K].
        bias: [N] float32 or None, contiguous.
        activation: None for none.
        dtype: of the result, float32 or bfloat16; None for that of ``x``.
        variant: forces an implementation.

    Returns:
        [T, N], a new contiguous tensor.

    Raises:
        ValueError: shapes or dtypes that do not fit.
        MemoryError: no room for the rounded rows.
    """
    outputs, inputs = weight.shape
    made = x.dtype if dtype is None else dtype
    if x.dim() != 2 or x.shape[1] != inputs or x.dtype not in _FLOATS or made not in _FLOATS:
        raise ValueError(f"linear_packed: x {describe(x)} to {made} does not fit a {weight.kind} weight {weight.shape}")
    if bias is not None:
        check_float32("linear_packed", "bias", bias, (outputs,))
    if choose(x, variant) == "reference":
        return reference.linear_packed(x, weight, bias, activation, made)
    ready = x.dtype == torch.bfloat16 and weight.kind == "bf16" and inputs % 2 == 0
    rows = x if ready else x.float()
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    out = torch.empty(len(x), outputs, dtype=made)
    failed = _NATIVE(
        ctypes.byref(weight.struct),
        rows.data_ptr(),
        ready,
        rows.stride(0),
        None if bias is None else bias.data_ptr(),
        -1 if activation is None else KINDS[activation],
        out.data_ptr(),
        made == torch.bfloat16,
        len(x),
        threads(),
    )
    if failed:
        raise MemoryError(f"linear_packed: no room for {len(x)} rows of {inputs}")
    return out
