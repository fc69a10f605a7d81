"""Attention over a paged KV cache, prefill and decode alike."""

import ctypes
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..guards import (
    FLOATS,
    check_contiguous_heads,
    check_float32,
    describe,
    native_unsupported_reason,
    triton_unsupported_reason,
)
from ..kv_cache import check_caches, check_scales, native_cache_unsupported_reason, triton_cache_unsupported_reason
from ..kv_cache.layout import FP8, INT8
from ..launching.repeated import LaunchCache
from ..native import by_dtype, pointers, threads
from ..variants import Choice, Variant, select_variant
from . import reference
from .arguments import AttentionArgs, AttentionTensors
from .batch import MAX_DECODE_QUERY_LEN, AttentionBatch

if TYPE_CHECKING:
    from .triton import AttentionLaunch  # heavy

__all__ = ["MAX_DECODE_QUERY_LEN", "AttentionBatch", "choose", "paged_attention"]

_P, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIZES = (_I, _I, _I, _I, _I, _I, _I, _I, _I)
_ARGUMENTS = (*(_P,) * 7, *_SIZES, _F, _I, _F, *(_P,) * 6, _I, _I, _I, ctypes.c_bool, _I)
_NATIVE = by_dtype("stentor_paged_attention", *_ARGUMENTS, restype=_I)
_NATIVE_CODED = {
    code: by_dtype(f"stentor_paged_attention_{name}", *_ARGUMENTS, restype=_I)
    for code, name in ((INT8, "int8"), (FP8, "float8"))
}
_LAUNCHES: "LaunchCache[AttentionLaunch]" = LaunchCache()
MAX_TRITON_DIM = 256
"""The largest head dim that fits the Triton kernels' tiles."""


def choose(q: Tensor, k_cache: Tensor, variant: Choice = "auto", *, logsums: bool = False) -> Variant:
    """Returns the variant that :func:`paged_attention` runs, with or without ``logsums``. Raises ValueError if one is
    asked for that cannot run."""
    native = native_attention_unsupported_reason(q) or native_cache_unsupported_reason(k_cache, q.dtype)
    triton = triton_unsupported_reason(q, variant) or triton_cache_unsupported_reason(k_cache)
    if triton is None and q.shape[-1] > MAX_TRITON_DIM:
        triton = f"it takes heads of up to {MAX_TRITON_DIM} dims, not {q.shape[-1]}"
    if triton is None and logsums:
        triton = "it does not tell sums of exponentials"
    return select_variant(variant, triton=triton, native=native)


def native_attention_unsupported_reason(q: Tensor) -> str | None:
    """Returns why the native variant cannot take these queries; None if it can."""
    return native_unsupported_reason(_NATIVE.get(q.dtype), q)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    window: int = 0,
    chunk: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    distances: Tensor | None = None,
    causal: bool = True,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    logsums: Tensor | None = None,
    invariant: bool = False,
    variant: Choice = "auto",
) -> Tensor:
    """Attends each new token to the keys of its sequence up to itself, which are in the cache already.

    Args:
        q: [T, Hq, D]; heads and dims contiguous, rows may be strided. Hq is a multiple of the cache's heads; query head
            h reads kv head ``h // (Hq / Hkv)``.
        k_cache, v_cache: the layer's caches (:func:`stentor.kernels.make_kv_cache`), of the dtype of ``q``,
            float8_e4m3fn or int8.
        batch: the sequences; T tokens in all.
        scale: multiplies q·k; positive.
        window: tokens that a query sees, itself included; 0: all.
        chunk: in place of a window, a query sees the tokens from the last multiple of ``chunk`` on (Llama 4); 0: all.
        softcap: c > 0 turns a score s into c·tanh(s/c) before the softmax.
        sinks: [Hq] float32, a score per head that takes part in its softmax and has no value (attention sinks,
            arXiv:2309.17453; learned in gpt-oss, arXiv:2508.10925); the soft cap does not apply to it.
        slopes: [Hq] float32; a score gets the head's slope times the key's position less the query's, after the soft
            cap (ALiBi, arXiv:2108.12409).
        distances: [Hq, E] float32, or [T, Hq, E] for queries of their own; contiguous. The score of the key d tokens
            back gets the head's d-th number, and of all farther keys the last, after the soft cap (T5,
            arXiv:1910.10683; Inkling).
        causal: False shows every query all ``seq_lens`` keys of its sequence, which may be fewer than its queries
            (cross-attention over a cache of the encoder's keys); then there is no window, no chunk, no slope and no
            number by distance.
        k_scale, v_scale: scales of the caches' contents, float32: [Hkv] for float8, [blocks, Hkv, size] for int8
            (:func:`stentor.kernels.write_kv_` writes them), none for others.
        logsums: [T, Hq] float32, contiguous: written with the logarithm of the sum of the exponentials of each query's
            scores, -inf where it sees no key. With it, attention to other keys can be joined to this one. The Triton
            variant does not take it.
        invariant: a row has the same bits whatever shares its batch and however its sequence is chunked. The native
            variant always does this; the Triton one then sums in parts of 512 keys; the reference never does.
        variant: forces an implementation.

    Returns:
        [T, Hq, D], a new contiguous tensor; sums are in float32. A query that sees no key gives zeros. In the native
        variant a row depends, bit for bit, only on its own position, query and keys: not on the batch, the chunking or
        the thread count.

    Raises:
        ValueError: shapes, dtypes, strides or numbers that do not fit.
        IndexError: on the CPU, a block table that leads outside the cache or is shorter than its sequence. The Triton
            variant does not check, because it would have to wait for the device.
        MemoryError: on the CPU, no room to plan the batch.
    """
    optional = sinks, slopes, distances, k_scale, v_scale
    absent = sinks is None, slopes is None, distances is None, k_scale is None, v_scale is None
    given: tuple[Tensor, ...] = (q, k_cache, v_cache)
    if False in absent:
        given = (*given, *[each for each in optional if each is not None])
    shared = distances is not None and distances.dim() == 2
    numbers = (scale, window, chunk, softcap, causal, absent, shared, invariant, variant, batch.numbers)
    key, launch = (None, None) if invariant or logsums is not None else _LAUNCHES.find(given, *numbers)
    if launch is not None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        launch.run(AttentionTensors(q, k_cache, v_cache, batch.block_tables, *optional, out), batch)
        return out
    _check_numbers(scale, window, chunk, softcap, causal)
    args = AttentionArgs.of(
        q,
        k_cache,
        v_cache,
        batch,
        scale=scale,
        window=window or -chunk,
        softcap=softcap,
        sinks=sinks,
        slopes=slopes,
        distances=distances,
        causal=causal,
        k_scale=k_scale,
        v_scale=v_scale,
        logsums=logsums,
    )
    _check_tensors(args, batch)
    chosen = choose(q, k_cache, variant, logsums=logsums is not None)
    if chosen == "reference":
        return reference.paged_attention(args)
    if chosen == "triton":
        from .triton import paged_attention as run  # late: Triton takes long to import

        launch = run(args, batch, invariant=invariant)
        if launch is not None:
            _LAUNCHES.keep(key, launch)
        return args.out
    return attend_native(args, batch, after=0 if causal else -1, fewer=not causal)


def _check_numbers(scale: float, window: int, chunk: int, softcap: float, causal: bool) -> None:
    if min(window, chunk, softcap) < 0:
        raise ValueError(f"paged_attention: window {window}, chunk {chunk} and softcap {softcap} must not be negative")
    if window and chunk:
        raise ValueError(f"paged_attention: a window of {window} and chunks of {chunk} exclude each other")
    if not scale > 0:
        raise ValueError(f"paged_attention: scale must be positive, not {scale}")
    if (window or chunk) and not causal:
        raise ValueError(f"paged_attention: window {window} and chunk {chunk} need causal attention")


def _check_tensors(args: AttentionArgs, batch: AttentionBatch) -> None:
    q, k_cache, k_scale = args.q, args.k_cache, args.k_scale
    _, kv_heads, dim, _ = check_caches(k_cache, args.v_cache, "paged_attention")
    check_scales(k_cache, k_scale, args.v_scale, "paged_attention")
    same = q.dtype == k_cache.dtype or k_scale is not None
    if q.dim() != 3 or q.dtype not in FLOATS or not same or q.shape[2] != dim or q.shape[1] % kv_heads:
        raise ValueError(f"paged_attention: q {describe(q)} does not fit k_cache {describe(k_cache)}")
    tokens, heads, _ = q.shape
    check_contiguous_heads("paged_attention", "q", q)
    if tokens != batch.num_tokens:
        raise ValueError(f"paged_attention: q has {tokens} tokens, the batch has {batch.num_tokens}")
    if args.slopes is not None and not args.causal:
        raise ValueError("paged_attention: slopes need causal attention")
    if (distances := args.distances) is not None:
        if not args.causal:
            raise ValueError("paged_attention: numbers by distance need causal attention")
        shape = heads, max(1, distances.shape[-1])
        check_float32("paged_attention", "distances", distances, shape if distances.dim() == 2 else (tokens, *shape))
    if args.logsums is not None:
        check_float32("paged_attention", "logsums", args.logsums, (tokens, heads))
    for name, each in (("sinks", args.sinks), ("slopes", args.slopes)):
        if each is not None:
            check_float32("paged_attention", name, each, (heads,))


def attend_native(args: AttentionArgs, batch: AttentionBatch, *, after: int, fewer: bool) -> Tensor:
    """Runs the native variant with checked arguments. Writes ``args.out``, and returns it.

    A query sees ``after`` keys after its own (-1: all). ``fewer``: sequences may have fewer keys than queries. Raises
    as :func:`paged_attention` does.
    """
    q, k_cache, out = args.q, args.k_cache, args.out
    blocks, kv_heads, _, size = k_cache.shape
    tokens, heads, dim = q.shape
    fault = _NATIVE_CODED.get(k_cache.dtype, _NATIVE)[q.dtype](
        *pointers(q, k_cache, args.v_cache, out),
        *batch.addresses,
        *(tokens, heads, kv_heads, dim, size, blocks, args.block_tables.shape[1], q.stride(0)),
        *(args.scale, args.window, args.softcap),
        *pointers(args.sinks, args.slopes, args.k_scale, args.v_scale, args.distances, args.logsums),
        *(args.extent, 0 if args.shared else heads * args.extent),
        *(after, fewer),
        threads(),
    )
    batch.check_fault(fault, "paged_attention")
    return out
