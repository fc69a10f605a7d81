"""The convolution over tokens in mixers with a recurrent state."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch.nn.functional import pad

from stentor import kernels

from .forward_batch import StateBatch
from .linear.layer_context import LayerContext
from .linear.weights import WeightMap


class CausalConvolution:
    """Causal convolution of each channel over its last tokens."""

    def __init__(
        self, weights: WeightMap, parts: Mapping[str, int], width: int, bias: bool, context: LayerContext
    ) -> None:
        """``parts``: channels by stored name."""
        channels = sum(parts.values())
        self._weight = context.empty(channels, 1, width)
        self._bias = context.empty(channels) if bias else None
        for stored, ending in ((self._weight, "weight"), (self._bias, "bias")):
            if stored is not None:
                for name, part in zip(parts, stored.split_with_sizes(list(parts.values())), strict=True):
                    weights.add(f"{name}.{ending}", part)

    def __call__(
        self, x: torch.Tensor, state: torch.Tensor, states: StateBatch, activation: Literal["silu", "none"]
    ) -> torch.Tensor:
        """x [tokens, channels] → the same, in the compute dtype; ``state``: the layer's."""
        weight = self._weight.squeeze(1)
        return kernels.causal_conv(x.to(weight.dtype), weight, self._bias, state, states.rows, activation=activation)

    def centered(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The convolution over whole texts with as many tokens on both sides. x [tokens, channels] → the same, in the
        compute dtype; ``positions`` int64 [tokens], from 0 on in each text."""
        width, tokens = self._weight.shape[2], len(x)
        reach = width // 2
        taps = self._weight.squeeze(1).float()
        # a token of another text is at a distance that its position does not have
        at = pad(positions, (reach, reach), value=-width)
        inputs = pad(x.to(self._weight.dtype).float(), (0, 0, reach, reach))
        total = torch.zeros_like(inputs[:tokens])
        for tap in range(width):
            same = at[tap : tap + tokens] == positions + (tap - reach)
            total += inputs[tap : tap + tokens].masked_fill(~same[:, None], 0.0) * taps[:, tap]
        return (total if self._bias is None else total + self._bias.float()).to(self._weight.dtype)
