"""What every kernel over a paged cache is given."""

from typing import NamedTuple

from torch import Tensor


class Paged(NamedTuple):
    """Queries, the cache that they see, and how; see :func:`stentor.kernels.paged_attention`.

    Nothing of it is checked, and nothing on the device is waited for: lengths and block tables are read there.
    """

    q: Tensor
    """[T, Hq, D], heads and dims contiguous."""
    k_cache: Tensor
    """[blocks, Hkv, D, size]"""
    v_cache: Tensor
    """[blocks, Hkv, size, D], contiguous; both of the dtype of ``q``, or float8_e4m3fn."""
    query_start: Tensor
    """[S + 1] int32"""
    seq_lens: Tensor
    """[S] int32; 0 makes the output of a sequence without tokens to see zeros."""
    block_tables: Tensor
    """[S, max_blocks] int32; entries past a sequence or before its window are not followed."""
    out: Tensor
    """[T, Hq, D] of the dtype of ``q``, heads and dims contiguous: what is written."""
    scale: float
    window: int
    """Below 0 chunks of so many."""
    softcap: float
    sinks: Tensor | None
    causal: bool
    k_scale: Tensor | None
    v_scale: Tensor | None
    max_seq_len: int
    """An upper bound of ``seq_lens``, also of those with which a captured launch is replayed."""

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor]:
        """As kernels for decode rows take them."""
        scales = self.k_scale, self.v_scale
        return self.q, self.k_cache, self.v_cache, self.block_tables, self.sinks, *scales, self.out
