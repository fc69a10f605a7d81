"""The operations that keep a state for each sequence, seen alike: tensors by token, slots of state, a call."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stentor.kernels import StateRows, causal_conv, gated_delta, mamba2, selective_scan
from stentor.kernels.causal_conv import Activation
from stentor.kernels.causal_conv import choose as choose_conv
from stentor.kernels.gated_delta import choose as choose_delta
from stentor.kernels.mamba2 import choose as choose_mamba
from stentor.kernels.selective_scan import choose as choose_scan
from stentor.kernels.variants import Choice, Variant

from .helpers import normal

Tokens = dict[str, Tensor]
"""Tensors [tokens, ...]"""


class Mixer(ABC):
    """One of the operations at one size."""

    @abstractmethod
    def tokens(self, count: int, *, seed: int, dtype: torch.dtype, device: str = "cpu") -> Tokens: ...

    @abstractmethod
    def state(self, slots: int, *, seed: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
        """The state as a model that computes in ``dtype`` keeps it."""

    @abstractmethod
    def choose(self, tokens: Tokens, variant: Choice) -> Variant: ...

    @abstractmethod
    def run(self, tokens: Tokens, state: Tensor, rows: StateRows, variant: Choice) -> Tensor:
        """Changes ``state``; returns [tokens, ...]."""


def part(tokens: Tokens, which: slice) -> Tokens:
    return {name: tensor[which] for name, tensor in tokens.items()}


def fused(count: int, *shapes: tuple[int, int], seed: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    """Parts [count, *shape] of the rows of one projection."""
    sizes = [heads * dim for heads, dim in shapes]
    rows = normal(count, sum(sizes), seed=seed, dtype=dtype).to(device)
    return [piece.view(count, *shape) for piece, shape in zip(rows.split(sizes, dim=1), shapes, strict=True)]


@dataclass(frozen=True)
class Conv(Mixer):
    channels: int
    width: int
    bias: bool = True
    activation: Activation = "silu"

    def tokens(self, count: int, *, seed: int, dtype: torch.dtype, device: str = "cpu") -> Tokens:
        x, _ = fused(count, (1, self.channels), (1, 3), seed=seed, dtype=dtype, device=device)
        return {"x": x.squeeze(1)}

    def state(self, slots: int, *, seed: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
        return normal(slots, self.channels, self.width - 1, seed=seed, dtype=dtype).to(device)

    def choose(self, tokens: Tokens, variant: Choice) -> Variant:
        return choose_conv(tokens["x"], self.width, variant)

    def weights(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        weight = normal(self.channels, self.width, seed=100).to(like)
        return weight, normal(self.channels, seed=101).to(like) if self.bias else None

    def run(self, tokens: Tokens, state: Tensor, rows: StateRows, variant: Choice) -> Tensor:
        x = tokens["x"]
        return causal_conv(x, *self.weights(x), state, rows, activation=self.activation, variant=variant)


@dataclass(frozen=True)
class Delta(Mixer):
    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    l2norm: bool = True
    by_channel: bool = False
    scale: float = field(default=0.3)

    def tokens(self, count: int, *, seed: int, dtype: torch.dtype, device: str = "cpu") -> Tokens:
        shapes = ((self.k_heads, self.k_dim), (self.k_heads, self.k_dim), (self.v_heads, self.v_dim))
        q, k, v = fused(count, *shapes, seed=seed, dtype=dtype, device=device)
        if not self.l2norm:  # keys much longer than one let the state grow without end
            q, k = q / self.k_dim**0.5, k / self.k_dim**0.5
        channels = (self.k_dim,) if self.by_channel else ()
        decay = -normal(count, self.v_heads, *channels, seed=seed + 1).exp().to(device)
        beta = normal(count, self.v_heads, seed=seed + 2).sigmoid().to(device)
        return {"q": q, "k": k, "v": v, "decay": decay, "beta": beta}

    def state(self, slots: int, *, seed: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
        return normal(slots, self.v_heads, self.k_dim, self.v_dim, seed=seed).to(device)

    def choose(self, tokens: Tokens, variant: Choice) -> Variant:
        return choose_delta(tokens["q"], variant)

    def run(self, tokens: Tokens, state: Tensor, rows: StateRows, variant: Choice) -> Tensor:
        return gated_delta(**tokens, state=state, rows=rows, scale=self.scale, l2norm=self.l2norm, variant=variant)


@dataclass(frozen=True)
class Mamba(Mixer):
    heads: int
    groups: int
    head_dim: int
    state_dim: int

    def tokens(self, count: int, *, seed: int, dtype: torch.dtype, device: str = "cpu") -> Tokens:
        shapes = ((self.heads, self.head_dim), (self.groups, self.state_dim), (self.groups, self.state_dim))
        x, B, C = fused(count, *shapes, seed=seed, dtype=dtype, device=device)
        dt = torch.nn.functional.softplus(normal(count, self.heads, seed=seed + 1)).to(device)
        return {"x": x, "dt": dt, "B": B, "C": C}

    def state(self, slots: int, *, seed: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
        return normal(slots, self.heads, self.head_dim, self.state_dim, seed=seed).to(device)

    def choose(self, tokens: Tokens, variant: Choice) -> Variant:
        return choose_mamba(tokens["x"], self.state_dim, variant)

    def weights(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """A and D."""
        return -normal(self.heads, seed=100).exp().to(like.device), normal(self.heads, seed=101).to(like.device)

    def run(self, tokens: Tokens, state: Tensor, rows: StateRows, variant: Choice) -> Tensor:
        A, D = self.weights(tokens["x"])
        return mamba2(**tokens, A=A, D=D, state=state, rows=rows, variant=variant)


@dataclass(frozen=True)
class Scan(Mixer):
    channels: int
    state_dim: int

    def tokens(self, count: int, *, seed: int, dtype: torch.dtype, device: str = "cpu") -> Tokens:
        wide, narrow = (1, self.channels), (1, self.state_dim)
        parts = fused(count, wide, wide, wide, narrow, narrow, seed=seed, dtype=dtype, device=device)
        return dict(zip(("x", "gate", "dt", "B", "C"), (part.squeeze(1) for part in parts), strict=True))

    def state(self, slots: int, *, seed: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
        return normal(slots, self.state_dim, self.channels, seed=seed).to(device)

    def choose(self, tokens: Tokens, variant: Choice) -> Variant:
        return choose_scan(tokens["x"], self.state_dim, variant)

    def weights(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The bias of steps, A and D."""
        A = -normal(self.state_dim, self.channels, seed=100).exp()
        bias, D = (normal(self.channels, seed=seed) for seed in (101, 102))
        return bias.to(like.device), A.to(like.device), D.to(like.device)

    def run(self, tokens: Tokens, state: Tensor, rows: StateRows, variant: Choice) -> Tensor:
        bias, A, D = self.weights(tokens["x"])
        return selective_scan(**tokens, dt_bias=bias, A=A, D=D, state=state, rows=rows, variant=variant)
