"""The arguments of every variant of attention without a cache."""

from typing import NamedTuple

from torch import Tensor


class VarlenArgs(NamedTuple):
    """Checked arguments of :func:`stentor.kernels.varlen_attention`, which describes them."""

    q: Tensor
    """[Tq, Hq, D]"""
    k: Tensor
    """[Tk, Hkv, D]"""
    v: Tensor
    q_start: Tensor
    """[S + 1] int32"""
    k_start: Tensor
    max_q: int
    scale: float
    left: int
    """Keys seen before a query's position; -1: all."""
    right: int
    """Keys seen after it; -1: all, 0 if attention is causal."""
    softcap: float
    sinks: Tensor | None
