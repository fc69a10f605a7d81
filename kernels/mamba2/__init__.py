"""The state space recurrence of Mamba-2, between its convolution and its gate (Nemotron-H, Granite 4, Falcon-H1)."""

import ctypes

import torch
from torch import Tensor

from ..guards import check_float32, check_heads, describe, native_unsupported_reason, triton_unsupported_reason
from ..native import by_dtype, pointers, threads
from ..state_rows import StateRows
from ..variants import Choice, Variant, select_variant
from . import reference

__all__ = ["choose", "mamba2"]


_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P,) * 11 + (_I,) * 10 + (ctypes.c_int32, _I)
_NATIVE = by_dtype("stentor_mamba2", *_ARGUMENTS, restype=_I)
_MAX_NATIVE_DIM = 256


def choose(x: Tensor, state_dim: int, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`mamba2` runs. Raises ValueError if one is asked for that cannot run."""
    native = native_unsupported_reason(_NATIVE.get(x.dtype), x)
    if native is None and state_dim > _MAX_NATIVE_DIM:
        native = f"it takes states of up to {_MAX_NATIVE_DIM} dims, not {state_dim}"
    return select_variant(variant, triton=triton_unsupported_reason(x, variant), native=native)


def mamba2(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    state: Tensor,
    rows: StateRows,
    *,
    variant: Choice = "auto",
) -> Tensor:
    """Runs the recurrence over the tokens of each row, starting from the state in the slot that it reads.

    For token t and a head's state S: ``S = exp(dt_t A) S + dt_t x_t ⊗ B_t``, and the output is ``S C_t + D x_t``.

    Args:
        x: [tokens, heads, head_dim]; heads and dims contiguous, tokens may be strided.
        dt: [tokens, heads] float32, contiguous: the step after bias, softplus and clamping.
        A: [heads] float32, contiguous, negative.
        B, C: [tokens, groups, state_dim] of x's dtype, strided like ``x``. Heads are a multiple of groups: head h has
            those of group ``h // (heads / groups)``.
        D: [heads] float32, contiguous.
        state: [slots, heads, head_dim, state_dim] of a float dtype, contiguous. Changed in place. S is rounded to its
            dtype after every token; in rows of more than a few tokens the Triton variant rounds only at their end.
        rows: the tokens of each row, and the slots of its state.
        variant: forces an implementation.

    Returns:
        [tokens, heads, head_dim] of x's dtype, a new contiguous tensor. Everything is computed in float32.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
        IndexError: rows with tokens or slots out of range. The Triton variant does not check.
    """
    for name, part in (("x", x), ("B", B), ("C", C)):
        check_heads("mamba2", name, part, x.dtype)
    tokens, heads, head_dim = x.shape
    if B.shape != C.shape or len(B) != tokens or not B.shape[1] or heads % B.shape[1]:
        raise ValueError(f"mamba2: x {describe(x)}, B {describe(B)} and C {describe(C)} do not fit")
    check_float32("mamba2", "dt", dt, (tokens, heads))
    check_float32("mamba2", "A", A, (heads,))
    check_float32("mamba2", "D", D, (heads,))
    rows.check("mamba2", state, (heads, head_dim, B.shape[2]))
    chosen = choose(x, B.shape[2], variant)
    if chosen == "triton":
        from .triton import mamba2 as run  # late: Triton takes long to import

        return run(x, dt, A, B, C, D, state, rows)
    if chosen == "native":
        out = torch.empty(x.shape, dtype=x.dtype)
        bad = _NATIVE[x.dtype](
            *pointers(x, dt, A, B, C, D, state, out),
            *rows.addresses,
            *(len(state), tokens, x.stride(0), B.stride(0), C.stride(0)),
            *(heads, B.shape[1], head_dim, B.shape[2]),
            rows.state_dtype(state),
            threads(),
        )
        if bad >= 0:
            raise rows.misfit(bad, len(state), tokens, "mamba2")
        return out
    return reference.mamba2(x, dt, A, B, C, D, state, rows)
