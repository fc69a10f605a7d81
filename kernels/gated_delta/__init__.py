"""The gated delta rule: linear attention that overwrites a key's earlier value (Qwen3-Next, Qwen3.5, Kimi Linear)."""

import ctypes

import torch
from torch import Tensor

from ..guards import check_float32, check_heads, describe, native_unsupported_reason, triton_unsupported_reason
from ..native import by_dtype, pointers, threads
from ..state_rows import StateRows
from ..variants import Choice, Variant, select_variant
from . import reference

__all__ = ["choose", "gated_delta"]


_P, _I = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_P,) * 10 + (_I,) * 10 + (ctypes.c_float, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, _I)
_NATIVE = by_dtype("stentor_gated_delta", *_ARGUMENTS, restype=_I)
_MAX_NATIVE_DIM = 256


def choose(q: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`gated_delta` runs. Raises ValueError if one is asked for that cannot run."""
    native = native_unsupported_reason(_NATIVE.get(q.dtype), q)
    if native is None and q.shape[-1] > _MAX_NATIVE_DIM:
        native = f"it takes keys of up to {_MAX_NATIVE_DIM} dims, not {q.shape[-1]}"
    return select_variant(variant, triton=triton_unsupported_reason(q, variant), native=native)


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    rows: StateRows,
    *,
    scale: float,
    l2norm: bool = True,
    variant: Choice = "auto",
) -> Tensor:
    """Runs the rule over the tokens of each row, starting from the state in the slot that it reads.

    For token t and a head's state S: ``S = exp(decay_t) S``, then ``S += k_t ⊗ beta_t (v_t - k_tᵀ S)``, and the output
    is ``scale · q_tᵀ S``.

    Args:
        q, k: [tokens, k_heads, k_dim]; heads and dims contiguous, tokens may be strided.
        v: [tokens, v_heads, v_dim] of q's dtype, strided like ``q``. v_heads is a multiple of k_heads: head h has the
            query and the key of head ``h // (v_heads / k_heads)``.
        decay: [tokens, v_heads] float32, contiguous: the logarithm of the factor, 0 or less. [tokens, v_heads, k_dim]
            if each channel of a key has its own (Kimi Delta Attention, arXiv:2510.26692).
        beta: [tokens, v_heads] float32, contiguous.
        state: [slots, v_heads, k_dim, v_dim] of a float dtype, contiguous. Changed in place. S is rounded to its dtype
            after every token; in rows of more than a few tokens the Triton variant rounds only at their end.
        rows: the tokens of each row, and the slots of its state.
        scale: multiplies the output.
        l2norm: queries and keys are first normed to length one: divided by √(Σx² + 1e-6).
        variant: forces an implementation.

    Returns:
        [tokens, v_heads, v_dim] of q's dtype, a new contiguous tensor. Everything is computed in float32.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
        IndexError: rows with tokens or slots out of range. The Triton variant does not check.
    """
    for name, heads in (("q", q), ("k", k), ("v", v)):
        check_heads("gated_delta", name, heads, q.dtype)
    tokens, v_heads, v_dim = v.shape
    if q.shape != k.shape or len(q) != tokens or not q.shape[1] or v_heads % q.shape[1]:
        raise ValueError(f"gated_delta: q {describe(q)}, k {describe(k)} and v {describe(v)} do not fit")
    by_channel = decay.dim() == 3
    channels = (q.shape[2],) if by_channel else ()
    for name, factor, more in (("decay", decay, channels), ("beta", beta, ())):
        check_float32("gated_delta", name, factor, (tokens, v_heads, *more))
    rows.check("gated_delta", state, (v_heads, q.shape[2], v_dim))
    chosen = choose(q, variant)
    if chosen == "triton":
        from .triton import gated_delta as run  # late: Triton takes long to import

        return run(q, k, v, decay, beta, state, rows, scale, l2norm)
    if chosen == "native":
        out = torch.empty(v.shape, dtype=v.dtype)
        bad = _NATIVE[q.dtype](
            *pointers(q, k, v, decay, beta, state, out),
            *rows.addresses,
            *(len(state), tokens, q.stride(0), k.stride(0), v.stride(0)),
            *(q.shape[1], v_heads, q.shape[2], v_dim),
            scale,
            l2norm,
            by_channel,
            rows.state_dtype(state),
            threads(),
        )
        if bad >= 0:
            raise rows.misfit(bad, len(state), tokens, "gated_delta")
        return out
    return reference.gated_delta(q, k, v, decay, beta, state, rows, scale, l2norm)
