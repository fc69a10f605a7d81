"""Convolutions of keys and values by taps that each token brings (Inkling 2)."""

from copy import copy
from typing import Any

import torch

from ...model_config.spec.attention_parts import AddedConvSpec
from ..added_conv import AddedConv
from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap
from .entries import PassTokens
from .token_history import TokenHistory, keep_inputs_


class ConvOfTokens:
    """As :class:`.AddedConv`, of taps that are the sum of stored ones, of each channel, and those that the token
    brings, of each head."""

    def __init__(
        self, weights: WeightMap, prefix: str, spec: AddedConvSpec, layer: int, state: int, context: LayerContext
    ) -> None:
        """As of :class:`.AddedConv`."""
        self._layer, self._state, self._scale, self._width = layer, state, spec.scale, spec.width
        self._heads = spec.heads * len(spec.parts)
        self._stored = context.empty(spec.width, spec.channels, dtype=torch.float32)
        parts = self._stored.split_with_sizes([size for _, size in spec.parts], dim=1)
        for (name, _), part in zip(spec.parts, parts, strict=True):
            weights.add(f"{prefix}.{name}.static_w", part, read=lambda taps: taps.flip(0))  # theirs are newest first

    def again(self, layer: int) -> "ConvOfTokens":
        """The same weights over the states of another layer."""
        found = copy(self)
        found._layer = layer
        return found

    def added(self, x: torch.Tensor, batch: Any, taps: torch.Tensor) -> torch.Tensor:
        """x [tokens, channels] and ``taps`` [tokens, heads · width], newest first, of any float dtype → float32; writes
        the state."""
        states = batch.states
        assert states is not None, "the rows of the batch have no recurrent states"
        history = TokenHistory(x, states.of_layer[self._layer][self._state], states.rows)
        tokens = PassTokens.of(states.rows.cu_seqlens, batch.positions)
        seen = history.until(tokens.rows, tokens.offsets, self._width).float()  # [tokens, width, channels]
        own = taps.float().unflatten(1, (self._heads, self._width)).flip(2)
        found = x.float()
        for at in range(self._width):
            weights = self._stored[at].view(self._heads, -1) + own[:, :, at, None]
            found = found + seen[:, at] * weights.flatten(1)
        keep_inputs_(x, batch, self._layer, self._state)
        return found * self._scale


def key_convs(
    weights: WeightMap, prefix: str, spec: AddedConvSpec, layer: int, state: int, context: LayerContext
) -> AddedConv | ConvOfTokens:
    """The convolution of keys and values; arguments as of :class:`.AddedConv`."""
    if spec.heads:
        return ConvOfTokens(weights, prefix, spec, layer, state, context)
    return AddedConv(weights, prefix, spec, layer, state, context)
