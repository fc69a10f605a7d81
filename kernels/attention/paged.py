"""The arguments of every kernel over a paged cache."""

from typing import NamedTuple

from torch import Tensor

_Optional = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


class Paged(NamedTuple):
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
    causal: bool
    k_scale: Tensor | None
    v_scale: Tensor | None
    max_seq_len: int
    """An upper bound of ``seq_lens``, also for later replays of a captured launch."""

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, *_Optional, Tensor]:
        """The tensors in the order of the decode kernels' arguments."""
        optional = self.sinks, self.slopes, self.k_scale, self.v_scale
        return self.q, self.k_cache, self.v_cache, self.block_tables, *optional, self.out
