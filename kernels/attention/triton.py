"""Paged attention on CUDA: decode rows by one kernel, the other sequences by another."""

import torch
from torch import Tensor

from .batch import AttentionBatch
from .triton_decode import DecodeLaunches, prepare_decode
from .triton_invariant import paged_invariant
from .triton_prefill import paged_prefill


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
    causal: bool,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    *,
    invariant: bool = False,
) -> Tensor:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if invariant:
        paged_invariant(
            q,
            k_cache,
            v_cache,
            batch.query_start,
            batch.seq_lens,
            batch.block_tables,
            out,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=sinks,
            causal=causal,
            k_scale=k_scale,
            v_scale=v_scale,
            max_seq_len=batch.max_seq_len,
        )
        return out
    rows = batch.decode_rows
    if rows:
        numbers = scale, window, softcap, causal
        decode = decode_launches(q, k_cache, v_cache, batch, out, *numbers, sinks, k_scale, v_scale)
        decode.start(q, k_cache, v_cache, batch.seq_lens, batch.block_tables, sinks, k_scale, v_scale, out)
    paged_prefill(
        q,
        k_cache,
        v_cache,
        batch.query_start,
        batch.seq_lens,
        batch.block_tables,
        out,
        skipped=rows,
        tokens=batch.num_tokens - batch.decode_tokens,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        causal=causal,
        k_scale=k_scale,
        v_scale=v_scale,
        max_seq_len=batch.max_seq_len,
    )
    return out


def decode_launches(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    out: Tensor,
    scale: float,
    window: int,
    softcap: float,
    causal: bool,
    sinks: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> DecodeLaunches:
    """Of the batch's decode rows, one at least."""
    return prepare_decode(
        q,
        k_cache,
        v_cache,
        batch.seq_lens,
        batch.block_tables,
        out,
        rows=batch.decode_rows,
        query_len=batch.decode_query_len,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        causal=causal,
        k_scale=k_scale,
        v_scale=v_scale,
        max_seq_len=batch.bound,
    )
