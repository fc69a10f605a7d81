"""Whisper's encoder (arXiv:2212.04356): log-mel frames of 30 seconds of audio."""

from collections.abc import Callable, Sequence

import torch

from stentor import kernels

from ...layers.audio.convolution import Convolution
from ...layers.audio.log_mel import LogMel
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.weights import WeightMap
from ...model_config.speech.whisper import WhisperConfig
from ..encoder_stack import EncodedWindows, EncoderStack, Windows, go_on


class WhisperEncoder:
    """Encodes windows of log-mel frames. Every window is filled with silence, so all have as many positions."""

    def __init__(self, weights: WeightMap, config: WhisperConfig, context: LayerContext) -> None:
        self._config, self._context = config, context
        hidden, encoder = config.hidden_size, "model.encoder"
        self._convolutions = (
            Convolution(weights, f"{encoder}.conv1", config.mel_bins, hidden, context),
            Convolution(weights, f"{encoder}.conv2", hidden, hidden, context, stride=2),
        )
        self._positions = context.empty(config.source_positions, hidden, dtype=context.stream)
        weights.add(f"{encoder}.embed_positions.weight", self._positions)
        self._stack = EncoderStack(weights, config.encoder, f"{encoder}.layer_norm", context)
        self._log_mel: LogMel | None = None

    def __call__(
        self, windows: Windows, after_layer: Callable[[], None] | None = None, adapters: Sequence[int] = ()
    ) -> EncodedWindows:
        pause = after_layer or go_on
        x = self.features(windows).to(self._context.stream)
        pause()
        for convolution in self._convolutions:
            x = kernels.activate_(convolution(x).contiguous(), "gelu")
            pause()
        residual = (x + self._positions).flatten(0, 1)
        return self._stack(residual, [self._config.source_positions] * len(windows), after_layer, adapters)

    def features(self, windows: Windows) -> torch.Tensor:
        """Windows of at most ``config.samples`` → log-mel float32 [windows, frames, bins]."""
        if self._log_mel is None:
            self._log_mel = LogMel(self._config.mel_bins, self._context.device)
        return self._log_mel(windows, self._config.samples)
