"""Convolutions over the last tokens that are added to what they convolve (Inkling)."""

from copy import copy
from typing import Any

import torch

from stentor import kernels
from stentor.kernels.forward import Traced

from ..model_config.spec.attention_parts import AddedConvSpec
from .forward_batch import ForwardBatch
from .linear.layer_context import LayerContext
from .linear.quantized import Stream
from .linear.weights import WeightMap


class AddedConv:
    """(x + conv(x)) · scale, of each channel."""

    def __init__(
        self, weights: WeightMap, prefix: str, spec: AddedConvSpec, layer: int, state: int, context: LayerContext
    ) -> None:
        """``prefix``: of the convolved part. ``state``: the number of its state among those of ``layer``."""
        self._layer, self._state, self._scale = layer, state, spec.scale
        self._weight = context.empty(spec.channels, spec.width)
        parts = self._weight.split_with_sizes([size for _, size in spec.parts])
        for (name, size), part in zip(spec.parts, parts, strict=True):
            stored = size, 1, spec.width
            weights.add(f"{prefix}.{name}.weight", part, shape=stored, read=lambda taps: taps.squeeze(1))

    def again(self, layer: int) -> "AddedConv":
        """The same weights over the states of another layer."""
        found = copy(self)
        found._layer = layer
        return found

    def __call__(self, x: Stream, batch: ForwardBatch) -> Stream:
        """x [tokens, channels] → the same; writes the state."""
        if isinstance(x, Traced):
            return x.call("a convolution added", self.added, x.width)
        return self.added(x, batch).to(x.dtype)

    def added(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        """x [tokens, channels] of any float dtype → float32; writes the state."""
        states = batch.states
        assert states is not None, "the rows of the batch have no recurrent states"
        states.note(self.added, x)
        state = states.of_layer[self._layer][self._state]
        convolved = kernels.causal_conv(
            x.to(self._weight.dtype), self._weight, None, state, states.rows, activation="none"
        )
        found = x.float() + convolved.float()
        return found if self._scale == 1.0 else found * self._scale
