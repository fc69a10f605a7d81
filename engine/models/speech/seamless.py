"""SeamlessM4T's encoder of speech (arXiv:2312.05187): a Conformer over pairs of frames, and layers that join
positions."""

from collections.abc import Callable, Sequence

import torch
from msgspec.structs import replace
from torch.nn.functional import glu, scaled_dot_product_attention

from ...layers.audio.convolution import Convolution
from ...layers.audio.kaldi_mel import KaldiMel
from ...layers.audio.log_mel import samples_of
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.linear import Linear
from ...layers.linear.weights import WeightMap
from ...layers.mlp import MLP
from ...layers.norm import LayerNorm
from ...model_config.speech.seamless import FEWEST_SAMPLES, SeamlessConfig
from ..encoder_stack import EncodedWindows, Windows, embed_windows, go_on
from .fast_conformer import Conformer, batch_of, fed

_PREFIX = "model.encoder"
_EPS = 1e-5


class _Adapter:
    """A layer that joins positions: of its input, and of what it adds to that."""

    def __init__(self, weights: WeightMap, prefix: str, config: SeamlessConfig, context: LayerContext) -> None:
        spec, adapter, hidden = config.encoder, config.adapter, config.hidden_size
        pad = adapter.pad, adapter.pad
        self._residual_norm, self._norm, self._network_norm = (
            LayerNorm(weights, f"{prefix}.{part}_layer_norm", hidden, _EPS, context)
            for part in ("residual", "self_attn", "ffn")
        )
        self._residual, self._joined = (
            Convolution(
                weights,
                f"{prefix}.{part}_conv",
                hidden,
                2 * hidden,
                context,
                width=adapter.width,
                stride=adapter.stride,
                pad=pad,
            )
            for part in ("residual", "self_attn")
        )
        self._heads, attention = spec.heads, f"{prefix}.self_attn.linear"
        parts = {f"{attention}_{name}": hidden for name in "qkv"}
        self._into = Linear(weights, parts, hidden, context, bias=True, dtype=context.stream)
        self._out = Linear(weights, {f"{attention}_out": hidden}, hidden, context, bias=True, dtype=context.stream)
        self._network = MLP(weights, prefix, config.network("ffn"), hidden, replace(context, adapters=None))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[positions, hidden] of one window → fewer"""
        residual = glu(self._residual(self._residual_norm(x)[None]), dim=2)[0]
        joined = glu(self._joined(self._norm(x)[None]), dim=2)[0].contiguous()
        heads = (
            self._into(joined).view(len(joined), 3, self._heads, -1).permute(1, 2, 0, 3)
        )  # [3, heads, positions, dim]
        q, k, v = heads.unsqueeze(1).unbind()
        attended = scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).flatten(1)
        x = self._out(attended) + residual
        return x + fed(self._network, self._network_norm(x), batch_of([len(x)], x.device))


class SeamlessEncoder:
    """Encodes windows of samples; a window has as many positions as its samples fill. No adapter of LoRA changes it."""

    def __init__(self, weights: WeightMap, config: SeamlessConfig, context: LayerContext) -> None:
        self._config, self._context = config, context
        hidden, size, projection = config.hidden_size, config.frame_size, f"{_PREFIX}.feature_projection"
        self._frame_norm = LayerNorm(weights, f"{projection}.layer_norm", size, config.norm_eps, context)
        parts = {f"{projection}.projection": hidden}
        self._project = Linear(weights, parts, size, context, bias=True, dtype=context.stream)
        self._layers = Conformer(weights, _PREFIX, config.encoder, context)
        self._norm = LayerNorm(weights, f"{_PREFIX}.layers_norm", hidden, config.norm_eps, context)
        plain = replace(context, adapters=None)
        self._network = MLP(weights, _PREFIX, config.network("intermediate_ffn"), hidden, plain)
        self._adapters = [
            _Adapter(weights, f"{_PREFIX}.adapter.layers.{n}", config, context) for n in range(config.adapter.layers)
        ]
        self._last_norm = LayerNorm(weights, f"{_PREFIX}.inner_layer_norm", hidden, _EPS, context)
        self._mel: KaldiMel | None = None

    def __call__(
        self, windows: Windows, after_layer: Callable[[], None] | None = None, adapters: Sequence[int] = ()
    ) -> EncodedWindows:
        pause, embedded = after_layer or go_on, embed_windows(windows, self._embedded, after_layer)
        x = self._norm(self._layers(embedded.rows, embedded.lengths, pause))
        x = x + 0.5 * fed(self._network, x, batch_of(embedded.lengths, x.device))
        parts = list(x.split([*embedded.lengths]))
        for adapter in self._adapters:
            parts = [adapter(part) for part in parts]
            pause()
        return EncodedWindows(self._last_norm(torch.cat(parts)), [len(part) for part in parts])

    def _embedded(self, window: bytes | memoryview) -> torch.Tensor:
        """[pairs of frames, hidden]"""
        if self._mel is None:
            self._mel = KaldiMel(self._config.mel_bins, self._context.device, sampled=True)
        count = max(len(window) // 2, FEWEST_SAMPLES) if len(window) else self._config.samples
        frames = self._mel(samples_of([window], count, self._context.device)[0])
        pairs = frames[: len(frames) // 2 * 2].reshape(-1, self._config.frame_size)
        return self._project(self._frame_norm(pairs.to(self._context.stream)))
