"""Attention over concatenated sequences without a cache: encoders and cross-attention."""

import torch
from torch import Tensor

from ..attention import MAX_TRITON_DIM, native_attention_unsupported_reason
from ..guards import check_float32, check_heads, describe, triton_unsupported_reason
from ..variants import Choice, Variant, select_variant
from . import native, reference
from .arguments import VarlenArgs
from .native import KeyLayout, lay_out_keys

__all__ = ["KeyLayout", "choose", "lay_out_keys", "varlen_attention"]


def choose(q: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`varlen_attention` runs. Raises ValueError if one is asked for that cannot run."""
    triton = triton_unsupported_reason(q, variant)
    if triton is None and q.shape[-1] > MAX_TRITON_DIM:
        triton = f"it takes heads of up to {MAX_TRITON_DIM} dims, not {q.shape[-1]}"
    return select_variant(variant, triton=triton, native=native_attention_unsupported_reason(q))


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_start: Tensor,
    k_start: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    layout: KeyLayout | None = None,
    variant: Choice = "auto",
) -> Tensor:
    """Attends the queries of each of S sequences to its own keys.

    A sequence's last query has the position of its last key: query i of n is at position ``i + m - n`` among m keys.

    Args:
        q: [Tq, Hq, D]; heads and dims contiguous, rows may be strided. Hq is a multiple of Hkv; query head h reads kv
            head ``h // (Hq / Hkv)``.
        k, v: [Tk, Hkv, D] of q's dtype, strided like ``q``.
        q_start, k_start: [S + 1] int32, contiguous: sequence s has the queries [q_start[s], q_start[s + 1]) and the
            keys [k_start[s], k_start[s + 1]).
        max_q, max_k: most queries and most keys of one sequence, for the choice of tiles.
        scale: multiplies q·k; positive.
        causal: hides the keys after a query's position.
        window: (left, right): keys that a query sees before its position and after it; -1 means all.
        softcap: c > 0 turns a score s into c·tanh(s/c) before the softmax.
        sinks: [Hq] float32, a score per head that takes part in its softmax and has no value.
        layout: the result of :func:`lay_out_keys` for ``k_start``, for callers that attend to the same sequences
            repeatedly.
        variant: forces an implementation.

    Returns:
        [Tq, Hq, D], a new contiguous tensor; sums are in float32. A query that sees no key gives zeros.

    Raises:
        ValueError: shapes, dtypes, strides or numbers that do not fit. The values in ``q_start`` and ``k_start`` are
            not checked.
    """
    for name, rows in (("q", q), ("k", k), ("v", v)):
        check_heads("varlen_attention", name, rows, q.dtype)
    if k.shape != v.shape or q.shape[2] != k.shape[2] or q.shape[1] % k.shape[1]:
        raise ValueError(f"varlen_attention: q {describe(q)}, k {describe(k)} and v {describe(v)} do not fit")
    for name, start in (("q_start", q_start), ("k_start", k_start)):
        if start.dtype != torch.int32 or start.shape != q_start.shape or start.dim() != 1 or not start.is_contiguous():
            raise ValueError(f"varlen_attention: {name} {describe(start)} must be contiguous int32 [S + 1]")
    if min(window) < -1 or softcap < 0 or not scale > 0 or max_q < 0 or max_k < 0:
        raise ValueError(
            f"varlen_attention: window {window} must not lie below -1, softcap {softcap}, max_q {max_q} and max_k "
            f"{max_k} not below 0, and scale {scale} must be positive"
        )
    if sinks is not None:
        check_float32("varlen_attention", "sinks", sinks, q.shape[1:2])
    left, right = window
    args = VarlenArgs(q, k, v, q_start, k_start, max_q, scale, left, 0 if causal else right, softcap, sinks)
    chosen = choose(q, variant)
    if chosen == "triton":
        from .triton import varlen_attention as run  # late: Triton takes long to import

        return run(args)
    if chosen == "native":
        layout = layout or lay_out_keys(k_start)
        assert layout is not None
        return native.varlen_attention(args, layout)
    return reference.varlen_attention(args)
