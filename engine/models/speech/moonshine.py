"""Moonshine's encoder (arXiv:2410.15608): convolutions over samples, and layers over as many positions as there is
audio."""

from collections.abc import Callable, Sequence

import torch

from stentor import kernels

from ...layers.audio.convolution import Convolution
from ...layers.audio.log_mel import samples_of
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.weights import WeightMap
from ...model_config.speech.moonshine import CONVOLUTIONS, MoonshineConfig
from ..encoder_stack import EncodedWindows, EncoderStack, Windows

_EPS = 1e-5


class MoonshineEncoder:
    """Encodes windows of samples; a window has as many positions as its samples fill."""

    def __init__(self, weights: WeightMap, config: MoonshineConfig, context: LayerContext) -> None:
        self._config, self._context = config, context
        hidden, encoder = config.hidden_size, "model.encoder"
        channels = (1, hidden, 2 * hidden, hidden)
        self._convolutions = [
            Convolution(
                weights,
                f"{encoder}.conv{number + 1}",
                channels[number],
                channels[number + 1],
                context,
                width=width,
                stride=stride,
                pad=(0, 0),
                bias=number > 0,
            )
            for number, (width, stride) in enumerate(CONVOLUTIONS)
        ]
        self._weight, self._bias = (context.empty(hidden, dtype=torch.float32) for _ in range(2))
        weights.add(f"{encoder}.groupnorm.weight", self._weight)
        weights.add(f"{encoder}.groupnorm.bias", self._bias)
        self._stack = EncoderStack(weights, config.encoder, f"{encoder}.layer_norm", context)

    def __call__(
        self, windows: Windows, after_layer: Callable[[], None] | None = None, adapters: Sequence[int] = ()
    ) -> EncodedWindows:
        return self._stack.one_by_one(windows, self._embedded, after_layer, adapters)  # a norm is over all of a window

    def _embedded(self, window: bytes | memoryview) -> torch.Tensor:
        """[positions, hidden]"""
        first, second, third = self._convolutions
        count = max(len(window) // 2, self._config.fewest_samples) if len(window) else self._config.samples
        x = samples_of([window], count, self._context.device).to(self._context.stream)
        x = first(x.unsqueeze(2))[0].float().tanh_()  # [positions, hidden]
        normed = torch.nn.functional.layer_norm(x, tuple(x.shape), eps=_EPS) * self._weight + self._bias
        x = normed.to(self._context.stream).unsqueeze(0)
        for convolution in (second, third):
            x = kernels.activate_(convolution(x).contiguous(), "gelu")
        return x[0]
