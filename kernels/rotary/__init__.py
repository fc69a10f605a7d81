"""Rotary position embedding, in place."""

import ctypes

import torch
from torch import Tensor

from ..guards import check_heads, describe, native_unsupported_reason, triton_unsupported_reason
from ..native import by_dtype, pointers, threads
from ..variants import Choice, Variant, select_variant
from . import reference

_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P, _P, _P, _P, _P, _I, _I, _I, _I, _I, _I, _I, _I, _I, _I)
_NATIVE = by_dtype("stentor_rotary", *_ARGUMENTS, restype=_I)


Sections = tuple[int, int, int]
"""How many of the R/2 frequencies take their position from each row of positions [3, T]."""


def choose(q: Tensor, variant: Choice = "auto", *, sections: Sections | None = None) -> Variant:
    """Returns the variant that :func:`rotary_` runs. Raises ValueError if one is asked for that cannot run."""
    native = native_rotary_unsupported_reason(q, sections)
    return select_variant(variant, triton=triton_unsupported_reason(q, variant), native=native)


def native_rotary_unsupported_reason(q: Tensor, sections: Sections | None) -> str | None:
    """Returns why the native variant cannot run; None if it can."""
    if sections is not None:
        return "it turns all of a head by one position, not sections by several"
    return native_unsupported_reason(_NATIVE.get(q.dtype), q)


def rotary_(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    *,
    interleaved: bool = False,
    sections: Sections | None = None,
    variant: Choice = "auto",
) -> None:
    """Rotates the first R dimensions of every head of ``q`` and ``k`` in place; the rest stay unchanged.

    Computed in float32, rounded once.

    Args:
        q: [T, Hq, D]; may be a slice of a fused projection: heads and dims are contiguous, rows may be strided.
        k: [T, Hkv, D], the dtype of ``q``.
        cos, sin: [P, R/2] float32, contiguous; row p holds position p.
        positions: [T] int64, each in [0, P); with ``sections`` [3, T], whose rows may be strided.
        interleaved: dimension 2i pairs with 2i + 1 (GPT-J, GLM); otherwise i with i + R/2 (Llama, NeoX).
        sections: sizes that sum to R/2: the first frequencies take their position from row 0 of ``positions``, the next
            from row 1, the last from row 2 (Qwen2-VL, arXiv:2409.12191).
        variant: forces an implementation.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
        IndexError: a position outside the table. The Triton variant does not check: its positions must fit.
    """
    check_rotary(q, k, cos, sin, positions, sections, "rotary_")
    chosen = choose(q, variant, sections=sections)
    if chosen == "triton":
        from . import triton  # late: heavy

        triton.rotary_(q, k, cos, sin, positions, interleaved, sections)
        return
    if chosen == "reference":
        reference.rotary_(q, k, cos, sin, positions, interleaved, sections)
        return
    tokens, q_heads, dim = q.shape
    bad = _NATIVE[q.dtype](
        *pointers(q, k, cos, sin, positions),
        *(tokens, q_heads, k.shape[1], dim, cos.shape[1]),
        *(q.stride(0), k.stride(0), cos.shape[0]),
        interleaved,
        threads(),
    )
    if bad >= 0:
        raise IndexError(f"rotary_: position {int(positions[bad])} lies outside the table of {cos.shape[0]}")


def check_rotary(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, sections: Sections | None, operation: str
) -> None:
    """Raises ValueError as :func:`rotary_` says."""
    for name, heads in (("q", q), ("k", k)):
        check_heads(operation, name, heads, heads.dtype)
    tokens, _, dim = q.shape
    if (k.shape[0], k.shape[2]) != (tokens, dim) or k.dtype != q.dtype:
        raise ValueError(f"{operation}: q {describe(q)} does not fit k {describe(k)}")
    fits = cos.dim() == 2 and cos.shape == sin.shape and 1 <= cos.shape[1] <= dim // 2
    fits = fits and cos.dtype == sin.dtype == torch.float32 and cos.is_contiguous() and sin.is_contiguous()
    if not fits:
        raise ValueError(
            f"{operation}: cos {describe(cos)} and sin {describe(sin)} must be contiguous float32 [P, R/2] "
            f"with R <= {dim}"
        )
    shape = (tokens,) if sections is None else (3, tokens)
    if positions.shape != shape or positions.dtype != torch.int64 or (tokens > 1 and positions.stride(-1) != 1):
        raise ValueError(f"{operation}: positions {describe(positions)} must be contiguous int64 {list(shape)}")
    if sections is not None and (min(sections) < 0 or sum(sections) != cos.shape[1]):
        raise ValueError(f"{operation}: sections {sections} must be three sizes that sum to {cos.shape[1]}")
