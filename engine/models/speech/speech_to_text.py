"""Speech2Text's encoder: gated convolutions over filter banks, and layers over as many positions as there is audio."""

from collections.abc import Callable, Sequence

import torch

from ...layers.audio.convolution import Convolution
from ...layers.audio.kaldi_mel import KaldiMel
from ...layers.audio.log_mel import samples_of
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.weights import WeightMap
from ...layers.sinusoids import sinusoid_table
from ...model_config.speech.speech_to_text import FEWEST_SAMPLES, Speech2TextConfig
from ..encoder_stack import EncodedWindows, EncoderStack, Windows


class Speech2TextEncoder:
    """Encodes windows of samples; a window has as many positions as its samples fill."""

    def __init__(self, weights: WeightMap, config: Speech2TextConfig, context: LayerContext) -> None:
        self._config, self._context = config, context
        hidden, last = config.hidden_size, len(config.kernels) - 1
        self._convolutions = [
            Convolution(
                weights,
                f"model.encoder.conv.conv_layers.{number}",
                config.conv_channels // 2 if number else config.mel_bins,
                2 * hidden if number == last else config.conv_channels,
                context,
                width=width,
                stride=2,
                pad=(width // 2, width // 2),
            )
            for number, width in enumerate(config.kernels)
        ]
        stack = config.encoder_stack
        self._stack = EncoderStack(weights, stack.layers, stack.norm, context)
        self._mel: KaldiMel | None = None

    def __call__(
        self, windows: Windows, after_layer: Callable[[], None] | None = None, adapters: Sequence[int] = ()
    ) -> EncodedWindows:
        # features are normed over a window
        return self._stack.one_by_one(windows, self._embedded, after_layer, adapters)

    def _embedded(self, window: bytes | memoryview) -> torch.Tensor:
        """[positions, hidden]"""
        if self._mel is None:
            self._mel = KaldiMel(self._config.mel_bins, self._context.device)
        count = max(len(window) // 2, FEWEST_SAMPLES) if len(window) else self._config.samples
        x = self._mel(samples_of([window], count, self._context.device)[0]).to(self._context.stream).unsqueeze(0)
        for convolution in self._convolutions:
            x = torch.nn.functional.glu(convolution(x), dim=2)
        entry = self._config.encoder_stack.input
        places = sinusoid_table(entry.first, x.shape[1], x.shape[2]).to(x)
        return x[0] * entry.scale + places
