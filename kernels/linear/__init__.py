"""Dense linear layers: y = x Wᵀ + b."""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from ..guards import describe, native_unsupported_reason, triton_unsupported_reason
from ..launching.repeated import LaunchCache
from ..linear_fp8.selection import SKINNY_TOKENS
from ..native import by_dtype, pointers, threads
from ..variants import Choice, Variant, select_variant, wanted
from . import reference

_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P, _P, _P, _P, _I, _I, _I, _I, _I, _I)
NATIVE = by_dtype("stentor_linear", *_ARGUMENTS)
_ROWS = by_dtype("stentor_linear_rows", restype=_I)
Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
_PRODUCTS: LaunchCache[Product] = LaunchCache()
"""The prepared products on a GPU: torch's, or ours for few rows."""
_faster_up_to: dict[torch.dtype, int] = {}


def choose(x: Tensor, weight: Tensor, *, invariant: bool = False, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`linear` runs on these arguments.

    Without ``invariant`` the native variant runs if it is the faster one: in float32 for any number of rows on AVX-512,
    in bfloat16 for a few. With ``invariant`` it runs wherever it can. On CUDA the Triton variant runs with
    ``invariant``. Without, it takes up to 64 rows, and runs if this GPU's tuning table has block sizes for this many
    rows and this weight, which means that it was faster there.

    Raises:
        ValueError: a variant is asked for that cannot run.
    """
    if x.is_cuda or wanted(variant) == "triton":
        return select_variant(variant, triton=_triton_unsupported_reason(x, weight, invariant, variant))
    unsupported_reason = native_unsupported_reason(NATIVE.get(x.dtype), x)
    if unsupported_reason is None:
        if x.stride(1) != 1 or weight.stride(1) != 1:
            unsupported_reason = "it takes contiguous rows"
        elif not invariant and x.shape[0] > _native_rows(x.dtype) and wanted(variant) == "auto":
            return "reference"
    return select_variant(variant, native=unsupported_reason)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, invariant: bool = False, variant: Choice = "auto"
) -> Tensor:
    """Multiplies each row of ``x`` by ``weight`` transposed and adds ``bias``; sums are in float32.

    Args:
        x: [T, K], any float dtype.
        weight: [N, K], the dtype of ``x``.
        bias: [N] or None, the dtype of ``x``, contiguous.
        invariant: a row has the same bits whatever T and its place in the batch, and in the native variant (float32 and
            bfloat16) whatever the thread count. The Triton variant uses tiles of one size; the reference takes one row
            at a time, which is slow.
        variant: forces an implementation.

    Returns:
        [T, N], a new contiguous tensor.

    Raises:
        ValueError: shapes or dtypes that do not agree.
    """
    given = (x, weight) if bias is None else (x, weight, bias)
    key, product = _PRODUCTS.find(given, invariant, variant)
    if product is not None:
        return product(x, weight, bias)
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1] or x.dtype != weight.dtype:
        raise ValueError(f"linear: x {describe(x)} does not fit weight {describe(weight)}; want [T, K] and [N, K]")
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != x.dtype or not bias.is_contiguous()):
        raise ValueError(f"linear: bias {describe(bias)} does not fit weight {describe(weight)}; want contiguous [N]")
    if choose(x, weight, invariant=invariant, variant=variant) == "reference":
        if invariant:
            return reference.linear_invariant(x, weight, bias)
        return _PRODUCTS.keep(key, reference.linear)(x, weight, bias)
    if invariant and (x.is_cuda or wanted(variant) == "triton"):
        from .triton_fixed import linear_fixed  # late: heavy

        return linear_fixed(x, weight, bias)
    if x.is_cuda or wanted(variant) == "triton":
        return _PRODUCTS.keep(key, _prepare_triton(x, weight, bias))(x, weight, bias)
    rows, inner = x.shape
    columns = weight.shape[0]
    out = x.new_empty((rows, columns))
    NATIVE[x.dtype](
        *pointers(x, weight, bias, out),
        *(rows, columns, inner, x.stride(0), weight.stride(0)),
        threads(),
    )
    return out


def _triton_unsupported_reason(x: Tensor, weight: Tensor, invariant: bool, variant: Choice) -> str | None:
    if invariant:
        if x.stride(1) != 1 or weight.stride(1) != 1:
            return "it takes contiguous rows"
        return triton_unsupported_reason(x, variant)
    return few_rows_unsupported_reason(x, weight, variant)


def few_rows_unsupported_reason(x: Tensor, weight: Tensor, variant: Choice) -> str | None:
    """Returns why no kernel for few rows multiplies contiguous ``x`` by ``weight``; None if one does."""
    if not 1 <= x.shape[0] <= SKINNY_TOKENS:
        return f"it takes up to {SKINNY_TOKENS} rows"
    if x.dtype not in (torch.bfloat16, torch.float16) or not (x.is_contiguous() and weight.is_contiguous()):
        return "it takes contiguous bfloat16 or float16"
    if (reason := triton_unsupported_reason(x, variant)) is not None or wanted(variant) == "triton":
        return reason
    from . import triton_gemv, triton_skinny  # late: heavy

    few = triton_gemv if x.shape[0] == 1 else triton_skinny
    return "no block sizes are known to beat torch's product" if few.config_of(x, weight) == few.LIBRARY else None


def _prepare_triton(x: Tensor, weight: Tensor, bias: Tensor | None) -> Product:
    from . import triton_gemv, triton_skinny  # late: heavy

    return (
        triton_gemv.prepare_gemv(x, weight, bias) if x.shape[0] == 1 else triton_skinny.prepare_skinny(x, weight, bias)
    )


def _native_rows(dtype: torch.dtype) -> int:
    rows = _faster_up_to.get(dtype)
    if rows is None:
        function = _ROWS[dtype].bind()
        rows = _faster_up_to[dtype] = int(function()) if function else 0
    return rows
