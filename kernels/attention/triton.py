"""Paged attention on CUDA: one kernel for decode rows, and another one or cuDNN's for the other sequences."""

from typing import NamedTuple

from .arguments import AttentionArgs, AttentionTensors
from .batch import AttentionBatch
from .triton_decode import DecodeLaunch, prepare_decode
from .triton_invariant import paged_invariant
from .triton_prefill import PrefillLaunch, prepare_prefill
from .whole_prompt import attend_whole_prompt, runs_on_library


class AttentionLaunch(NamedTuple):
    """Prepared launches for all sequences of a batch, with everything fixed except the addresses of tensors."""

    decode: DecodeLaunch | None
    prefill: PrefillLaunch | None

    def run(self, tensors: AttentionTensors, batch: AttentionBatch) -> None:
        """Launches the kernels with tensors of the layout, and a batch of the numbers, that it was prepared for."""
        if self.decode is not None:
            starts = None if batch.ragged_tokens is None else batch.query_start
            self.decode.run(tensors, seq_lens=batch.seq_lens, query_start=starts, plans=batch.plans)
        if self.prefill is not None:
            self.prefill.run(tensors, query_start=batch.query_start, seq_lens=batch.seq_lens)


def paged_attention(args: AttentionArgs, batch: AttentionBatch, *, invariant: bool = False) -> AttentionLaunch | None:
    """Writes ``args.out``; returns the launch made for such batches unless others are made for each of them."""
    if invariant:
        paged_invariant(args)
        return None
    rows, tokens = batch.decode_rows, batch.num_tokens - batch.decode_tokens
    decode = prepare_decode(args, rows=rows, query_len=batch.decode_query_len, ragged=batch.ragged) if rows else None
    if (whole := batch.whole_prompt) and runs_on_library(args, whole):
        AttentionLaunch(decode, None).run(args.tensors, batch)
        attend_whole_prompt(args, skipped=rows, tokens=whole)
        return None
    launch = AttentionLaunch(decode, prepare_prefill(args, skipped=rows, tokens=tokens))
    launch.run(args.tensors, batch)
    return launch
