"""Moonshine Streaming's encoder: frames of samples, and layers in which a position sees a window around it."""

from collections.abc import Callable, Sequence

import torch

from stentor import kernels

from ...layers.audio.convolution import Convolution
from ...layers.audio.log_mel import samples_of
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.linear import Linear
from ...layers.linear.weights import WeightMap
from ...model_config.speech.moonshine_streaming import FRAME, WIDTH, MoonshineStreamingConfig
from ..encoder_stack import EncodedWindows, EncoderStack, Windows

_EPS = 1e-6


class MoonshineStreamingEncoder:
    """Encodes windows of samples; a window has as many positions as its samples fill."""

    def __init__(self, weights: WeightMap, config: MoonshineStreamingConfig, context: LayerContext) -> None:
        self._config, self._context = config, context
        hidden, encoder, embedder = config.encoder_hidden_size, "model.encoder", "model.encoder.embedder"
        self._log_k = context.empty(dtype=torch.float32)
        weights.add(f"{embedder}.comp.log_k", self._log_k)
        self._frames = Linear(weights, {f"{embedder}.linear": hidden}, FRAME, context, dtype=context.stream)
        pad = WIDTH - 1, 0
        self._convolutions = (
            Convolution(weights, f"{embedder}.conv1", hidden, 2 * hidden, context, width=WIDTH, stride=2, pad=pad),
            Convolution(weights, f"{embedder}.conv2", 2 * hidden, hidden, context, width=WIDTH, stride=2, pad=pad),
        )
        self._stack = EncoderStack(weights, config.encoder, f"{encoder}.final_norm", context)
        norms = [f"{config.encoder.prefix}.{layer}.{norm}" for layer in range(len(config.windows)) for norm in _NORMS]
        for norm in (*norms, f"{encoder}.final_norm"):
            weights.alias(f"{norm}.gamma", f"{norm}.weight")
        self._positions = context.empty(config.stored_positions, hidden, dtype=context.stream)
        weights.add("model.decoder.pos_emb.weight", self._positions)
        self._project: Linear | None = None
        if hidden != config.hidden_size:
            outputs = {"model.decoder.proj": config.hidden_size}
            self._project = Linear(weights, outputs, hidden, context, dtype=context.stream)

    def __call__(
        self, windows: Windows, after_layer: Callable[[], None] | None = None, adapters: Sequence[int] = ()
    ) -> EncodedWindows:
        encoded = self._stack.one_by_one(windows, self._embedded, after_layer, adapters)
        rows = encoded.rows + torch.cat([self._positions[:length] for length in encoded.lengths])
        return EncodedWindows(rows if self._project is None else self._project(rows), encoded.lengths)

    def _embedded(self, window: bytes | memoryview) -> torch.Tensor:
        """[positions, encoder's hidden]"""
        count = max(len(window) // 2, FRAME) if len(window) else self._config.samples
        samples = samples_of([window], -(-count // FRAME) * FRAME, self._context.device)
        frames = samples.view(-1, FRAME)
        centred = frames - frames.mean(1, keepdim=True)
        frames = centred / (centred.square().mean(1, keepdim=True) + _EPS).sqrt()
        x = self._frames(torch.asinh(frames * self._log_k.exp()).to(self._context.stream))
        x = kernels.activate_(x.contiguous(), "silu")
        x[count // FRAME :] = 0  # one that is not full is silence
        first, second = self._convolutions
        x = kernels.activate_(first(x.unsqueeze(0)).contiguous(), "silu")
        return second(x)[0]


_NORMS = ("input_layernorm", "post_attention_layernorm")
