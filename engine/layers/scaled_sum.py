"""Learned scales and biases of each channel of the residual stream, and of what is added to it (ZAYA); learned gates of
such a sum (Muse Spark); learned rates at which the stream moves to the output (Dory)."""

from typing import Any, Final

import torch

from stentor.kernels.forward import Traced

from .elementwise import between
from .linear.layer_context import LayerContext
from .linear.quantized import Stream
from .linear.weights import WeightMap


class ScaledStream:
    """(x + bias) · scale, of embeddings."""

    def __init__(self, weights: WeightMap, name: str, hidden: int, context: LayerContext) -> None:
        self._scale, self._bias = (context.empty(hidden, dtype=torch.float32) for _ in range(2))
        self._hidden, self._stream = hidden, context.stream
        weights.add(f"{name}_scale", self._scale)
        weights.add(f"{name}_bias", self._bias)

    def __call__(self, x: Stream) -> Stream:
        """x [tokens, hidden] → the same."""
        if isinstance(x, Traced):
            return x.call("scaled embeddings", self.scaled, self._hidden)
        return self.scaled(x).to(self._stream)

    def scaled(self, x: torch.Tensor, _batch: Any = None) -> torch.Tensor:
        """x [tokens, hidden] of any float dtype → float32"""
        return (x.float() + self._bias) * self._scale


class ScaledSum:
    """The sum of a residual stream and a part's output, each with scales and biases of its own."""

    def __init__(self, weights: WeightMap, name: str, hidden: int, context: LayerContext) -> None:
        self._of_output = ScaledStream(weights, f"{name}.hidden_states", hidden, context)
        self._of_stream = ScaledStream(weights, f"{name}.residual", hidden, context)
        self._hidden, self._dtype = hidden, context.stream

    def __call__(self, output: Stream, stream: Stream) -> Stream:
        """[tokens, hidden] each → a new stream."""
        if isinstance(stream, Traced):
            assert isinstance(output, Traced)
            return stream.call("a scaled sum", self._summed, self._hidden, output)
        assert isinstance(output, torch.Tensor)
        return self._summed(stream, output).to(self._dtype)

    def _summed(self, stream: torch.Tensor, output: torch.Tensor, _batch: Any = None) -> torch.Tensor:
        return self._of_output.scaled(output) + self._of_stream.scaled(stream)


class GatedSum:
    """b · output + √max(1 - b², :attr:`_LEAST`) · stream by channel, where b = sigmoid(gate / temperature)."""

    _LEAST: Final = 1e-3

    def __init__(self, weights: WeightMap, name: str, hidden: int, temperature: float, context: LayerContext) -> None:
        self._gate = context.empty(hidden, dtype=torch.float32)
        self._temperature, self._hidden, self._dtype = temperature, hidden, context.stream
        weights.add(f"{name}.gate", self._gate)

    def __call__(self, output: Stream, stream: Stream) -> Stream:
        """[tokens, hidden] each → a new stream."""
        if isinstance(stream, Traced):
            assert isinstance(output, Traced)
            return stream.call("a gated sum", self._summed, self._hidden, output)
        assert isinstance(output, torch.Tensor)
        return self._summed(stream, output).to(self._dtype)

    def _summed(self, stream: torch.Tensor, output: torch.Tensor, _batch: Any = None) -> torch.Tensor:
        weight = self._gate / self._temperature
        beta = torch.sigmoid(weight)
        alpha = (torch.sigmoid(-weight) * (1 + beta)).clamp(min=self._LEAST).sqrt()
        return alpha * stream.float() + beta * output.float()


class RatedSum:
    """stream + abs(rate · r) · (output - stream), with a learned r of each channel (nGPT, arXiv:2410.01131)."""

    def __init__(self, weights: WeightMap, name: str, hidden: int, rate: float, context: LayerContext) -> None:
        self._learned = context.empty(hidden, dtype=torch.float32)
        self._rate, self._hidden, self._dtype = rate, hidden, context.stream
        weights.add(name, self._learned)

    def __call__(self, output: Stream, stream: Stream) -> Stream:
        """[tokens, hidden] each → a new stream."""
        if isinstance(stream, Traced):
            assert isinstance(output, Traced)
            return stream.call("a step to the output", self._summed, self._hidden, output)
        assert isinstance(output, torch.Tensor)
        return self._summed(stream, output).to(self._dtype)

    def _summed(self, stream: torch.Tensor, output: torch.Tensor, _batch: Any = None) -> torch.Tensor:
        return between(stream.float(), output.float(), (self._learned * self._rate).abs())


StreamSum = ScaledSum | GatedSum | RatedSum
