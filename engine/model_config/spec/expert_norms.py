"""Norms within mixtures of experts, as values. Torch-free."""

from typing import NamedTuple

import msgspec


class ExpertNorms(msgspec.Struct, frozen=True):
    """RMS norms of experts that work on a projection of the token (Muse Spark)."""

    into: str
    """Stored name of that of their input, which is multiplied by 1 + weight."""
    out: str
    """Stored name of that of the output of each, which is multiplied by 1 + weight first, and then normed."""
    eps: float
    out_eps: float


class SumNorm(NamedTuple):
    """An RMS norm of the sum of experts that work on a projection of the token (Kimi K3)."""

    name: str
    """Its stored name."""
    eps: float


class PartNorms(msgspec.Struct, frozen=True):
    """Stored names if router, experts and shared experts have separate norms of the stream (Gemma 4)."""

    experts_in: str
    experts_out: str
    shared_in: str
    shared_out: str
    router_scale: str
    """Factor on the router's input, [hidden], which is normed without weights and divided by √hidden."""
    expert_scale: str
    """Factor on each expert's output, [experts]."""
