"""A causal speech encoder for streamed audio, as in Voxtral Realtime.

The state of a stream is bounded: samples for the next frame, the last inputs of convolutions, and keys and values of
one window.
"""

from collections.abc import Iterable

import msgspec
import torch

from ...layers.audio.log_mel import HOP, WINDOW, mel_filters
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.linear import Linear
from ...layers.linear.weights import WeightMap
from ...layers.norm import RMSNorm
from ...model_config.speech.voxtral_realtime import HALF_WINDOW, VoxtralRealtimeConfig

_FLOOR = 1e-10
_LOUDEST = 1.5
"""Assumed power of ten of the loudest point of any speech, since that of the whole audio is unknown."""
_RANGE = 8.0


class StreamState(msgspec.Struct):
    """The state of one stream between two pieces."""

    samples: torch.Tensor
    """float32: samples that later frames need, beginning with number ``start``."""
    start: int = 0
    position: int = 0
    """Decoder positions encoded so far."""
    ended: bool = False
    before: list[torch.Tensor] = msgspec.field(default_factory=list)
    """The last inputs of each convolution, [channels, steps]."""
    keys: list[torch.Tensor] = msgspec.field(default_factory=list)
    """By layer, [positions, heads, head_dim]; at most as many as a position sees besides itself."""
    values: list[torch.Tensor] = msgspec.field(default_factory=list)

    @property
    def end(self) -> int:
        """Number of the next sample."""
        return self.start + len(self.samples)


class _Features:
    """Log-mel frames of a stream."""

    def __init__(self, bins: int, device: torch.device) -> None:
        self._window = torch.hann_window(WINDOW, device=device)
        self._filters = mel_filters(bins).to(device)

    def __call__(self, samples: torch.Tensor) -> torch.Tensor:
        """float32 [WINDOW + (frames - 1) * HOP] → [bins, frames]"""
        spectrum = torch.fft.rfft(samples.unfold(0, WINDOW, HOP) * self._window)
        mel = torch.view_as_real(spectrum).square().sum(-1) @ self._filters
        return mel.clamp_(min=_FLOOR).log10_().clamp_(min=_LOUDEST - _RANGE).add_(4.0).div_(4.0).T


class _CausalConvolution:
    """A causal convolution of width 3, padded with zeros before the first step."""

    WIDTH = 3

    def __init__(
        self, weights: WeightMap, name: str, inputs: int, outputs: int, context: LayerContext, *, stride: int = 1
    ) -> None:
        self._weight, self._bias = context.empty(outputs, inputs, self.WIDTH), context.empty(outputs)
        weights.add(f"{name}.weight", self._weight)
        weights.add(f"{name}.bias", self._bias)
        self._stride = stride
        self.kept = self.WIDTH - stride
        """Input steps kept for the next piece."""
        self.inputs = inputs

    def __call__(self, x: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [inputs, steps] behind ``before`` → [outputs, steps / stride], and ``before`` for the next piece."""
        x = torch.cat((before, x), dim=1)
        out = torch.nn.functional.conv1d(x.unsqueeze(0), self._weight, self._bias, stride=self._stride)[0]
        return torch.nn.functional.gelu(out), x[:, x.shape[1] - self.kept :].clone()


class _Layer:
    def __init__(self, weights: WeightMap, prefix: str, config: VoxtralRealtimeConfig, context: LayerContext) -> None:
        encoder = config.encoder
        hidden, inner = encoder.hidden_size, encoder.intermediate_size
        self._heads, self._head_dim, self._reach = encoder.num_heads, encoder.head_dim, encoder.window - 1
        width = self._heads * self._head_dim
        attention = f"{prefix}.self_attn"
        names = [f"{attention}.{which}_proj" for which in ("q", "k", "v")]
        self._attention_norm = RMSNorm(weights, f"{prefix}.self_attn_layer_norm", hidden, encoder.rms_eps, context)
        self._qkv = Linear(weights, dict.fromkeys(names, width), hidden, context, bias=(names[0], names[2]))
        self._out = Linear(weights, {f"{attention}.o_proj": hidden}, width, context, bias=True)
        self._mlp_norm = RMSNorm(weights, f"{prefix}.final_layer_norm", hidden, encoder.rms_eps, context)
        gates = {f"{prefix}.mlp.gate_proj": inner, f"{prefix}.mlp.up_proj": inner}
        self._gate_up = Linear(weights, gates, hidden, context)
        self._down = Linear(weights, {f"{prefix}.mlp.down_proj": hidden}, inner, context, bias=True)

    def __call__(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        seen: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [positions, hidden] behind cached ``keys`` and ``values`` → the same shape, and the new caches.

        ``seen``: bool [positions, all positions], which sees which.
        """
        count = len(x)
        qkv = self._qkv(self._attention_norm.plain(x)).view(count, 3, self._heads, self._head_dim)
        q, k, v = qkv.unbind(1)
        q, keys = _rotated(q, *rotary), torch.cat((keys, _rotated(k, *rotary)))
        values = torch.cat((values, v))
        attended = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1), attn_mask=seen
        )
        x = x + self._out(attended.transpose(0, 1).reshape(count, -1))
        gate, up = self._gate_up(self._mlp_norm.plain(x)).chunk(2, dim=1)
        x = x + self._down(torch.nn.functional.silu(gate) * up)
        kept = max(0, len(keys) - self._reach)
        return x, keys[kept:].clone(), values[kept:].clone()


class StreamEncoder:
    """Samples of a stream in, one embedding a decoder position out."""

    def __init__(self, weights: WeightMap, config: VoxtralRealtimeConfig, context: LayerContext) -> None:
        encoder = config.encoder
        hidden, tower, projector = encoder.hidden_size, "audio_tower", "multi_modal_projector"
        self._weights, self._config, self._context = weights, config, context
        self._convolutions = (
            _CausalConvolution(weights, f"{tower}.embedder.conv1", encoder.mel_bins, hidden, context),
            _CausalConvolution(weights, f"{tower}.embedder.conv2", hidden, hidden, context, stride=2),
        )
        self._layers = [
            _Layer(weights, f"{tower}.layers.{layer}", config, context) for layer in range(encoder.num_layers)
        ]
        self._norm = RMSNorm(weights, f"{tower}.norm", hidden, encoder.rms_eps, context)
        inputs, outputs = hidden * config.downsample, config.decoder.hidden_size
        self._projector_in = Linear(weights, {f"{projector}.linear_1": outputs}, inputs, context)
        self._projector_out = Linear(weights, {f"{projector}.linear_2": outputs}, outputs, context)
        self._features: _Features | None = None

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the encoder's tensors. Raises :class:`...layers.linear.weights.WeightError`."""
        self._weights.load(tensors)

    @property
    def stream_bytes(self) -> int:
        """Bytes of a long stream's keys and values, nearly all of its state."""
        encoder = self._config.encoder
        width = encoder.num_heads * encoder.head_dim
        return 2 * encoder.num_layers * (encoder.window - 1) * width * self._context.dtype.itemsize

    def begin(self) -> StreamState:
        """The state of a new stream."""
        encoder, context = self._config.encoder, self._context

        def nothing() -> torch.Tensor:
            return torch.zeros(0, encoder.num_heads, encoder.head_dim, dtype=context.dtype, device=context.device)

        return StreamState(
            samples=torch.zeros(0, device=context.device),
            before=[
                torch.zeros(convolution.inputs, convolution.kept, dtype=context.dtype, device=context.device)
                for convolution in self._convolutions
            ],
            keys=[nothing() for _ in self._layers],
            values=[nothing() for _ in self._layers],
        )

    def feed(self, stream: StreamState, pcm: bytes, *, ended: bool) -> None:
        """Add samples (s16le, 16 kHz, mono); silence follows the end."""
        if pcm:
            more = torch.frombuffer(bytearray(pcm), dtype=torch.int16).to(self._context.device).float() / 32768.0
            stream.samples = torch.cat((stream.samples, more))
        stream.ended = ended

    def listen(self, stream: StreamState, count: int) -> torch.Tensor:
        """The embeddings of the next ``count`` positions, [count, the decoder's hidden size]; mutates the stream.

        Raises ValueError if their samples have not come.
        """
        x = self._frames(stream, count * self._config.frames).to(self._context.dtype)
        for number, convolution in enumerate(self._convolutions):
            x, stream.before[number] = convolution(x, stream.before[number])
        x = x.T.contiguous()
        rotary, seen = self._positions(stream, len(x))
        for number, layer in enumerate(self._layers):
            x, stream.keys[number], stream.values[number] = layer(
                x, rotary, seen, stream.keys[number], stream.values[number]
            )
        stream.position += count
        grouped = self._norm.plain(x).reshape(count, -1)
        return self._projector_out(torch.nn.functional.gelu(self._projector_in(grouped)))

    def _frames(self, stream: StreamState, count: int) -> torch.Tensor:
        """The next frames, [bins, count]; drops samples that no later frame needs."""
        first = stream.position * self._config.frames
        needed = (first + count - 1) * HOP + HALF_WINDOW
        if (lacking := needed - stream.end) > 0:
            if not stream.ended:
                raise ValueError(f"position {stream.position} needs {lacking} samples that have yet to come")
            stream.samples = torch.nn.functional.pad(stream.samples, (0, lacking))
        samples = stream.samples[: needed - stream.start]
        if not first:
            samples = torch.cat((samples[1 : HALF_WINDOW + 1].flip(0), samples))  # mirrored, as in training
        if self._features is None:
            self._features = _Features(self._config.encoder.mel_bins, self._context.device)
        found = self._features(samples)
        begin = (first + count) * HOP - HALF_WINDOW
        stream.samples = stream.samples[begin - stream.start :].clone()
        stream.start = begin
        return found

    def _positions(self, stream: StreamState, count: int) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Rotary factors of the next encoder positions, float32 [count, 1, head_dim / 2] each, and the attention
        mask."""
        encoder, device = self._config.encoder, self._context.device
        start = stream.position * self._config.downsample
        at = torch.arange(start, start + count, device=device)
        half = torch.arange(0, encoder.head_dim, 2, dtype=torch.float32, device=device) / encoder.head_dim
        angles = (at.unsqueeze(1).float() * encoder.rope_theta**-half).unsqueeze(1)
        before = start - min(start, encoder.window - 1)
        back = at.unsqueeze(1) - torch.arange(before, start + count, device=device)
        return (angles.cos(), angles.sin()), (back >= 0) & (back < encoder.window)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [positions, heads, head_dim], with its halves as pairs."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
