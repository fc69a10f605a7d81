"""The selective scan of Mamba after its convolution, including its steps and its gate (Mamba, Falcon Mamba, Jamba)."""

import ctypes

import torch
from torch import Tensor

from ..guards import FLOATS, check_float32, describe, native_unsupported_reason, triton_unsupported_reason
from ..native import by_dtype, pointers, threads
from ..state_rows import StateRows
from ..variants import Choice, Variant, select_variant
from . import reference

__all__ = ["choose", "selective_scan"]


_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P,) * 13 + (_I,) * 10 + (ctypes.c_int32, _I)
_NATIVE = by_dtype("stentor_selective_scan", *_ARGUMENTS, restype=_I)
_MAX_NATIVE_DIM = 256


def choose(x: Tensor, state_dim: int, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`selective_scan` runs. Raises ValueError if one is asked for that cannot run."""
    native = native_unsupported_reason(_NATIVE.get(x.dtype), x)
    if native is None and state_dim > _MAX_NATIVE_DIM:
        native = f"it takes states of up to {_MAX_NATIVE_DIM} dims, not {state_dim}"
    return select_variant(variant, triton=triton_unsupported_reason(x, variant), native=native)


def selective_scan(
    x: Tensor,
    gate: Tensor,
    dt: Tensor,
    dt_bias: Tensor,
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

    For token t, a channel's state S and s = softplus(dt_t + dt_bias): ``S = exp(s A) S + s x_t B_t``, and the output is
    ``(S · C_t + D x_t) silu(gate_t)``.

    Args:
        x, gate, dt: [tokens, channels] of one float dtype; channels contiguous, tokens may be strided.
        dt_bias: [channels] float32, contiguous.
        A: [state_dim, channels] float32, contiguous, negative.
        B, C: [tokens, state_dim] of x's dtype, strided like ``x``: shared by all channels.
        D: [channels] float32, contiguous.
        state: [slots, state_dim, channels] of a float dtype, contiguous. Changed in place: S is rounded to its dtype
            after every token.
        rows: the tokens of each row, and the slots of its state.
        variant: forces an implementation.

    Returns:
        [tokens, channels] of x's dtype, a new contiguous tensor. Everything is computed in float32.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
        IndexError: rows with tokens or slots out of range. The Triton variant does not check.
    """
    for name, part in (("x", x), ("gate", gate), ("dt", dt), ("B", B), ("C", C)):
        strided = part.dim() == 2 and part.shape[1] > 1 and part.stride(1) != 1
        if part.dim() != 2 or strided or part.dtype not in FLOATS or part.dtype != x.dtype:
            raise ValueError(
                f"selective_scan: {name} {describe(part)} must be [tokens, channels] of one float dtype, channels "
                "contiguous"
            )
    tokens, channels = x.shape
    if not gate.shape == dt.shape == x.shape or B.shape != C.shape or len(B) != tokens:
        parts = ((name, describe(part)) for name, part in (("x", x), ("gate", gate), ("dt", dt), ("B", B), ("C", C)))
        raise ValueError(f"selective_scan: {', '.join(' '.join(part) for part in parts)} do not fit")
    state_dim = B.shape[1]
    check_float32("selective_scan", "dt_bias", dt_bias, (channels,))
    check_float32("selective_scan", "A", A, (state_dim, channels))
    check_float32("selective_scan", "D", D, (channels,))
    rows.check("selective_scan", state, (state_dim, channels))
    chosen = choose(x, state_dim, variant)
    if chosen == "triton":
        from .triton import selective_scan as run  # late: Triton takes long to import

        return run(x, gate, dt, dt_bias, A, B, C, D, state, rows)
    if chosen == "native":
        out = torch.empty(x.shape, dtype=x.dtype)
        bad = _NATIVE[x.dtype](
            *pointers(x, gate, dt, dt_bias, A, B, C, D, state, out),
            *rows.addresses,
            *(len(state), tokens, x.stride(0), gate.stride(0), dt.stride(0), B.stride(0), C.stride(0)),
            *(channels, state_dim),
            rows.state_dtype(state),
            threads(),
        )
        if bad >= 0:
            raise rows.misfit(bad, len(state), tokens, "selective_scan")
        return out
    return reference.selective_scan(x, gate, dt, dt_bias, A, B, C, D, state, rows)
