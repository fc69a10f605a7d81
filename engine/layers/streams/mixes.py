"""Mixes of residual streams side by side, [tokens, streams · hidden] (attention residuals, arXiv:2603.15031)."""

from typing import Final

import torch
from msgspec.structs import replace

from stentor import kernels

from ...model_config.spec.model import Backbone
from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap
from ..norm import RMSNorm

EPS: Final = 1e-6
"""Of the norms of streams without weights, whatever the model's is."""


class Last:
    """The last stream, where none is kept, for each of some inputs."""

    def __init__(self, hidden: int, inputs: int) -> None:
        self._hidden, self._inputs = hidden, inputs
        self.width = inputs * hidden

    def __call__(self, x: torch.Tensor, kept: int) -> torch.Tensor:
        """x [tokens, streams · hidden] → [tokens, inputs · hidden], float32"""
        return x[:, -self._hidden :].float().repeat(1, self._inputs)


class Mix:
    """Σ over streams s of softmax(score · norm(s)) · s, in float32."""

    def __init__(self, weights: WeightMap, name: str, model: Backbone, context: LayerContext) -> None:
        self._hidden, self._invariant = model.hidden_size, context.invariant
        self.width = model.hidden_size
        exact = replace(context, dtype=torch.float32)
        self._norm = RMSNorm(weights, f"{name}_norm", model.hidden_size, model.norm_eps, exact)
        self._score = context.empty(1, model.hidden_size, dtype=torch.float32)
        weights.add(f"{name}_proj.weight", self._score)
        weights.alias(f"{name}_norm_weight", f"{name}_norm.weight")  # in files of AliceAI

    def __call__(self, x: torch.Tensor, kept: int) -> torch.Tensor:
        """x [tokens, streams · hidden], of which the first ``kept`` streams and the last take part → [tokens,
        hidden], float32"""
        seen = seen_of(x, kept, self._hidden)
        normed = self._norm.exact(seen.flatten(0, 1))
        scores = kernels.linear(normed, self._score, invariant=self._invariant).view(len(x), kept + 1)
        return weighted(seen, scores.softmax(1))


class QueriedMix:
    """Of each query, Σ over streams s of softmax(query · n · hidden ** -0.5) · n with n = s / rms(s), in float32."""

    def __init__(self, weights: WeightMap, name: str, inputs: int, model: Backbone, context: LayerContext) -> None:
        self._hidden, self._invariant = model.hidden_size, context.invariant
        self.width = inputs * model.hidden_size
        self._norm = RMSNorm(weights, None, model.hidden_size, EPS, replace(context, dtype=torch.float32))
        self._queries = context.empty(inputs, model.hidden_size, dtype=torch.float32)
        weights.add(f"{name}.query", self._queries[0] if inputs == 1 else self._queries)

    def __call__(self, x: torch.Tensor, kept: int) -> torch.Tensor:
        """x [tokens, streams · hidden], of which the first ``kept`` streams and the last take part → [tokens, queries ·
        hidden], float32"""
        return queried(seen_of(x, kept, self._hidden), self._queries, self._norm, invariant=self._invariant)


def seen_of(x: torch.Tensor, kept: int, hidden: int) -> torch.Tensor:
    """The first ``kept`` streams of x [tokens, streams · hidden], and the last → float32 [tokens, kept + 1, hidden]"""
    streams = x.unflatten(1, (-1, hidden))
    return torch.cat((streams[:, :kept], streams[:, -1:]), dim=1).float()


def weighted(streams: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The sum of streams [tokens, streams, hidden], times shares [tokens, streams], in order → [tokens, hidden]"""
    first, *others = ((each * share[:, None]) for each, share in zip(streams.unbind(1), shares.unbind(1), strict=True))
    return sum(others, start=first)


class AlikeMixes:
    """A mix for each of several inputs, all alike."""

    def __init__(self, mix: "Mix | QueriedMix", inputs: int) -> None:
        self._mix, self._inputs = mix, inputs
        self.width = inputs * mix.width

    def __call__(self, x: torch.Tensor, kept: int) -> torch.Tensor:
        """As the mix, but [tokens, inputs · hidden]."""
        return self._mix(x, kept).repeat(1, self._inputs)


def queried(streams: torch.Tensor, queries: torch.Tensor, norm: RMSNorm, *, invariant: bool) -> torch.Tensor:
    """The mix of float32 streams [tokens, streams, hidden] for each of queries [queries, hidden] → [tokens, queries ·
    hidden]"""
    tokens, count, hidden = streams.shape
    normed = norm.exact(streams.flatten(0, 1))
    scores = kernels.linear(normed, queries, invariant=invariant) * hidden**-0.5
    by_query = scores.view(tokens, count, -1).unbind(2)
    seen = normed.view(streams.shape)
    return torch.cat([weighted(seen, each.contiguous().softmax(1)) for each in by_query], dim=1)
