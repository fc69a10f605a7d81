"""Pools the hidden states of a text's tokens to one vector."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch

from ..model_config.encoders.sentence import Dense, DenseActivation, LayerNormed, Module, PoolingMode
from .linear.layer_context import LayerContext
from .linear.weights import WeightMap

ACTIVATE: Final[Mapping[DenseActivation, Callable[[torch.Tensor], torch.Tensor]]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
}
_EPS: Final = 1e-5


def pool(hidden: torch.Tensor, cu_seqlens: torch.Tensor, modes: Sequence[PoolingMode]) -> torch.Tensor:
    """hidden [tokens, size] → float32 [texts, len(modes) · size], the results of the modes concatenated.

    ``cu_seqlens``: int64 [texts + 1]; no text may be empty. Sums are float32.
    """
    return torch.cat([_pool(hidden, cu_seqlens, mode) for mode in modes], dim=1)


def _pool(hidden: torch.Tensor, cu_seqlens: torch.Tensor, mode: PoolingMode) -> torch.Tensor:
    match mode:
        case "cls":
            return hidden[cu_seqlens[:-1]].float()
        case "lasttoken":
            return hidden[cu_seqlens[1:] - 1].float()
        case "max":
            return _segments(hidden.float(), cu_seqlens, "max")
        case "mean":
            return _segments(hidden.float(), cu_seqlens, "mean")
        case "mean_sqrt_len_tokens":
            return _segments(hidden.float(), cu_seqlens, "sum") / cu_seqlens.diff().unsqueeze(1).sqrt()
        case "weightedmean":
            lengths = cu_seqlens.diff()
            owner = torch.repeat_interleave(lengths)
            weights = (
                (torch.arange(len(hidden), device=hidden.device) - cu_seqlens[:-1][owner] + 1).float().unsqueeze(1)
            )
            total = (lengths * (lengths + 1) / 2).unsqueeze(1)
            return _segments(hidden.float() * weights, cu_seqlens, "sum") / total


def _segments(values: torch.Tensor, cu_seqlens: torch.Tensor, how: str) -> torch.Tensor:
    return torch.segment_reduce(values, how, offsets=cu_seqlens, axis=0)


class PostPooling:
    """The modules behind the pooling, in order, in float32."""

    def __init__(self, modules: Sequence[Module], context: LayerContext) -> None:
        self._steps = [_step(module, context) for module in modules]

    @property
    def weights(self) -> list[tuple[Dense | LayerNormed, WeightMap]]:
        """The modules with weights in folders of their own."""
        return [(step.module, step.weights) for step in self._steps if not isinstance(step, _Normalize)]

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        """float32 [texts, inputs] → float32 [texts, outputs]"""
        for step in self._steps:
            vectors = step(vectors)
        return vectors


def normalize(vectors: torch.Tensor) -> torch.Tensor:
    """Scale to length 1 along the last dimension; zeros stay zeros."""
    return torch.nn.functional.normalize(vectors, dim=-1)


class _Normalize:
    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        return normalize(vectors)


class _Dense:
    def __init__(self, module: Dense, context: LayerContext) -> None:
        self.module, self.weights = module, WeightMap()
        self._weight = context.empty(module.outputs, module.inputs, dtype=torch.float32)
        self._bias = context.empty(module.outputs, dtype=torch.float32)
        self.weights.add("linear.weight", self._weight)
        if module.bias:
            self.weights.add("linear.bias", self._bias)
        elif not context.filled:
            self._bias.zero_()

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        return ACTIVATE[self.module.activation](torch.nn.functional.linear(vectors, self._weight, self._bias))


class _Norm:
    def __init__(self, module: LayerNormed, context: LayerContext) -> None:
        self.module, self.weights = module, WeightMap()
        self._weight, self._bias = (context.empty(module.size, dtype=torch.float32) for _ in range(2))
        self.weights.add("norm.weight", self._weight)
        self.weights.add("norm.bias", self._bias)

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(vectors, self._weight.shape, self._weight, self._bias, _EPS)


def _step(module: Module, context: LayerContext) -> _Dense | _Norm | _Normalize:
    match module:
        case Dense():
            return _Dense(module, context)
        case LayerNormed():
            return _Norm(module, context)
        case _:
            return _Normalize()
