"""What later runs of blocks of layers get of what the blocks made before (Inkling 2 Mini)."""

from collections.abc import Sequence
from typing import Protocol

import torch
from msgspec.structs import replace

from stentor import kernels

from ...model_config.spec.model import Backbone
from ...model_config.spec.streams import BlockLoopSpec, BlockResidualSpec
from ..elementwise import elementwise
from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap
from ..norm import RMSNorm
from .mixes import EPS, queried


class _Inputs(Protocol):
    width: int

    def __call__(self, x: torch.Tensor, kept: int) -> torch.Tensor: ...


class LoopQueries:
    """float32 [layers, 4, hidden]: of each layer, a vector for the mix that its queries get, its keys, its values and
    its network."""

    def __init__(self, weights: WeightMap, spec: BlockLoopSpec, hidden: int, context: LayerContext) -> None:
        self.vectors = context.empty(spec.layers, len(spec.gates), hidden, dtype=torch.float32)
        parts = self.vectors[:, ::3], self.vectors[:, 1:3]
        for name, part in zip(spec.queries, parts, strict=True):
            stored = 2 * spec.layers, hidden
            weights.add(name, part, shape=stored, read=lambda rows: rows.unflatten(0, (-1, 2)))


class _MessageGate:
    """(1 - tanh(f)) · x + tanh(m) · message, with f and m of a low-rank product of both, normed, in float32."""

    def __init__(
        self, weights: WeightMap, name: str, spec: BlockLoopSpec, model: Backbone, context: LayerContext
    ) -> None:
        self._invariant = context.invariant
        self._norm = RMSNorm(weights, None, model.hidden_size, model.norm_eps, replace(context, dtype=torch.float32))
        self._down, self._forget, self._gain = made = tuple(
            context.empty(*shape, dtype=torch.float32) for _, shape in spec.gate(name, model.hidden_size)
        )
        for (stored, _), matrix in zip(spec.gate(name, model.hidden_size), made, strict=True):
            weights.add(stored, matrix)

    def __call__(self, x: torch.Tensor, message: torch.Tensor) -> torch.Tensor:
        """x and message float32 [tokens, hidden] → the same"""
        both = torch.cat([self._norm.exact(x), self._norm.exact(message)], dim=1)
        low = kernels.linear(both, self._down, invariant=self._invariant)
        forgets, gains = (
            elementwise(torch.tanh, kernels.linear(low, matrix, invariant=self._invariant))
            for matrix in (self._forget, self._gain)
        )
        return (1 - forgets) * x + gains * message


class GatedMix:
    """The inputs of a part in a later run of its layer."""

    def __init__(
        self,
        weights: WeightMap,
        mix: _Inputs,
        queries: LoopQueries,
        layer: int,
        spec: BlockResidualSpec,
        prefix: str,
        model: Backbone,
        inputs: Sequence[int],
        context: LayerContext,
    ) -> None:
        """``mix``: what the first run gets. ``layer``: among those that run several times. ``inputs``: numbers of the
        vectors and gates of the part's inputs."""
        assert spec.loop is not None
        self._mix, self._queries, self._layer = mix, queries, layer
        self._vectors = slice(inputs[0], inputs[-1] + 1)
        self._made = slice(spec.blocks, spec.blocks + spec.looped)
        self._hidden, self._invariant = model.hidden_size, context.invariant
        self.width = mix.width
        self._norm = RMSNorm(weights, None, model.hidden_size, EPS, replace(context, dtype=torch.float32))
        self._gates = [
            _MessageGate(weights, f"{prefix}.{spec.loop.gates[each]}", spec.loop, model, context) for each in inputs
        ]

    def __call__(self, x: torch.Tensor, kept: int) -> torch.Tensor:
        """x [tokens, streams · hidden] → float32 [tokens, inputs · hidden]"""
        made = x.unflatten(1, (-1, self._hidden))[:, self._made].float()
        vectors = self._queries.vectors[self._layer, self._vectors]
        messages = queried(made, vectors, self._norm, invariant=self._invariant).split(self._hidden, dim=1)
        given = self._mix(x, kept).split(self._hidden, dim=1)
        gated = zip(self._gates, given, messages, strict=True)
        return torch.cat([gate(each.contiguous(), message.contiguous()) for gate, each, message in gated], dim=1)
