"""The arguments of every variant of attention over a paged cache."""

from typing import NamedTuple

import torch
from torch import Tensor

from .batch import AttentionBatch


class AttentionTensors(NamedTuple):
    """The tensors of one launch, as in :class:`AttentionArgs`, in the order of the decode kernels' arguments."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    sinks: Tensor | None
    slopes: Tensor | None
    distances: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    out: Tensor


class AttentionArgs(NamedTuple):
    """Queries, the cache that they see, and how they see it; see :func:`stentor.kernels.paged_attention`.

    Nothing is checked and nothing waits for the device: lengths and block tables are read there.
    """

    q: Tensor
    """[T, Hq, D], heads and dims contiguous."""
    k_cache: Tensor
    """[blocks, Hkv, D, size]"""
    v_cache: Tensor
    """[blocks, Hkv, size, D], contiguous; both caches have the dtype of ``q``, or float8_e4m3fn."""
    query_start: Tensor
    """[S + 1] int32"""
    seq_lens: Tensor
    """[S] int32; 0: the sequence sees no key, and its output is zeros."""
    block_tables: Tensor
    """[S, max_blocks] int32; entries past a sequence or before its window are not read."""
    out: Tensor
    """[T, Hq, D] of the dtype of ``q``, heads and dims contiguous: the output."""
    scale: float
    window: int
    """Tokens of the sliding window; below 0: chunks of that many tokens."""
    softcap: float
    sinks: Tensor | None
    slopes: Tensor | None
    distances: Tensor | None
    causal: bool
    k_scale: Tensor | None
    v_scale: Tensor | None
    max_seq_len: int
    """An upper bound of ``seq_lens``, also for later replays of a captured launch."""
    logsums: Tensor | None = None
    """[T, Hq] float32, contiguous: written; None: not asked for."""

    @classmethod
    def of(
        cls,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        batch: AttentionBatch,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
        slopes: Tensor | None = None,
        distances: Tensor | None = None,
        causal: bool = True,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        logsums: Tensor | None = None,
    ) -> "AttentionArgs":
        """Returns the arguments for a batch, with a new output."""
        return cls(
            q,
            k_cache,
            v_cache,
            batch.query_start,
            batch.seq_lens,
            batch.block_tables,
            torch.empty_like(q, memory_format=torch.contiguous_format),
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=sinks,
            slopes=slopes,
            distances=distances,
            causal=causal,
            k_scale=k_scale,
            v_scale=v_scale,
            max_seq_len=batch.bound,
            logsums=logsums,
        )

    @property
    def optional(self) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """The optional tensors, in the order of all kernels' arguments."""
        return self.sinks, self.slopes, self.distances, self.k_scale, self.v_scale

    @property
    def extent(self) -> int:
        """How many numbers :attr:`distances` has of a query and head."""
        return 0 if self.distances is None else self.distances.shape[-1]

    @property
    def shared(self) -> bool:
        """Whether :attr:`distances` are those of all queries."""
        return self.distances is None or self.distances.dim() == 2

    @property
    def tensors(self) -> AttentionTensors:
        return AttentionTensors(self.q, self.k_cache, self.v_cache, self.block_tables, *self.optional, self.out)
