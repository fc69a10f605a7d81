"""Paged attention on CUDA: one kernel for decode rows, and another one or cuDNN's for the other sequences."""

import torch
from torch import Tensor

from .batch import AttentionBatch
from .paged import Paged
from .triton_decode import DecodeLaunch, paged_decode, prepare_decode
from .triton_invariant import paged_invariant
from .triton_prefill import paged_prefill
from .whole_prompt import attend_whole_prompt, runs_on_library


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
) -> tuple[Tensor, DecodeLaunch | None]:
    """Returns the output, and if all sequences are decode rows, the launch made for them."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    paged = Paged(
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
    if invariant:
        paged_invariant(paged)
        return out, None
    rows, query_len = batch.decode_rows, batch.decode_query_len
    if batch.decodes is not None:
        launch = prepare_decode(paged._replace(max_seq_len=batch.bound), rows=rows, query_len=query_len)
        launch.run(*paged.tensors, seq_lens=batch.seq_lens, plans=batch.plans)
        return out, launch
    paged_decode(paged, rows=rows, query_len=query_len, plans=batch.plans)
    if (tokens := batch.whole_prompt) and runs_on_library(paged, tokens):
        attend_whole_prompt(paged, skipped=rows, tokens=tokens)
    else:
        paged_prefill(paged, skipped=rows, tokens=batch.num_tokens - batch.decode_tokens)
    return out, None
