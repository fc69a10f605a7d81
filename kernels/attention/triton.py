"""Paged attention on CUDA: one kernel for decode rows, and another one or cuDNN's for the other sequences."""

from typing import NamedTuple

import torch
from torch import Tensor

from .batch import AttentionBatch
from .paged import Paged
from .triton_decode import DecodeLaunch, prepare_decode
from .triton_invariant import paged_invariant
from .triton_prefill import PrefillLaunch, prepare_prefill
from .whole_prompt import attend_whole_prompt, runs_on_library


class AttentionLaunch(NamedTuple):
    """Prepared launches for all sequences of a batch, with everything fixed except the addresses of tensors."""

    decode: DecodeLaunch | None
    prefill: PrefillLaunch | None

    def run(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        batch: AttentionBatch,
        sinks: Tensor | None,
        slopes: Tensor | None,
        k_scale: Tensor | None,
        v_scale: Tensor | None,
        out: Tensor,
    ) -> None:
        """Launches the kernels with tensors of the layout, and a batch of the numbers, that it was prepared for."""
        given = q, k_cache, v_cache, batch.block_tables, sinks, slopes, k_scale, v_scale, out
        if self.decode is not None:
            starts = None if batch.ragged_tokens is None else batch.query_start
            self.decode.run(*given, seq_lens=batch.seq_lens, query_start=starts, plans=batch.plans)
        if self.prefill is not None:
            self.prefill.run(*given, query_start=batch.query_start, seq_lens=batch.seq_lens)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
    slopes: Tensor | None,
    causal: bool,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    *,
    invariant: bool = False,
) -> tuple[Tensor, AttentionLaunch | None]:
    """Returns the output, and the launch made for such batches unless others are made for each of them."""
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
        slopes=slopes,
        causal=causal,
        k_scale=k_scale,
        v_scale=v_scale,
        max_seq_len=batch.bound,
    )
    if invariant:
        paged_invariant(paged)
        return out, None
    rows, tokens = batch.decode_rows, batch.num_tokens - batch.decode_tokens
    decode = prepare_decode(paged, rows=rows, query_len=batch.decode_query_len, ragged=batch.ragged) if rows else None
    if (whole := batch.whole_prompt) and runs_on_library(paged, whole):
        AttentionLaunch(decode, None).run(q, k_cache, v_cache, batch, sinks, slopes, k_scale, v_scale, out)
        attend_whole_prompt(paged, skipped=rows, tokens=whole)
        return out, None
    launch = AttentionLaunch(decode, prepare_prefill(paged, skipped=rows, tokens=tokens))
    launch.run(q, k_cache, v_cache, batch, sinks, slopes, k_scale, v_scale, out)
    return out, launch
