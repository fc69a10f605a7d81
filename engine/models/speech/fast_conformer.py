"""A Fast Conformer encoder (arXiv:2305.05084).

Windows of any lengths share the products of a layer, as rows one after another. Attention and convolutions are computed
of each window by itself, so that nothing is padded.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import torch
from msgspec.structs import replace
from torch.nn.functional import batch_norm, conv1d, conv2d, glu, pad, scaled_dot_product_attention

from stentor import kernels

from ...layers.audio.convolution import Convolution
from ...layers.audio.log_mel import samples_of
from ...layers.audio.preemphasized_mel import PreemphasizedMel
from ...layers.forward_batch import ForwardBatch
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.linear import Linear
from ...layers.linear.weights import WeightMap
from ...layers.mlp import MLP, kernel_kind
from ...layers.norm import LayerNorm
from ...layers.sinusoids import sinusoid_angles
from ...layers.varlen_batch import VarlenBatch
from ...model_config.spec.mlp import MLPSpec
from ...model_config.speech.fast_conformer import (
    FEWEST_SAMPLES,
    MOST_SAMPLES,
    CausalSpec,
    ConformerSpec,
    FastConformerSpec,
)
from ..encoder_stack import EncodedWindows, Windows, embed_windows, go_on
from .conformer_stream import BlockState, ConformerStream

_EPS = 1e-5
_TAPS = 3
"""Frames that a convolution over them sees."""
_QUERIES = 256
"""Those whose scores with all positions of a window are made at once."""


def _stored(weights: WeightMap, name: str, context: LayerContext, *shape: int) -> torch.Tensor:
    """A tensor that torch's own operations take."""
    made = context.empty(*shape, dtype=context.stream)
    weights.add(name, made)
    return made


_CONVOLUTIONS = ("layers.0", "layers.2", "layers.3", "layers.5", "layers.6")
_CAUSAL_CONVOLUTIONS = (
    "conv_in",
    *(f"layers.{place}.{kind}_conv" for place in (0, 1) for kind in ("depthwise", "pointwise")),
)
"""Names of the convolutions over frames."""


class _Subsampling:
    """Convolutions over frames and bins, each of which halves both; the last result is projected."""

    def __init__(self, weights: WeightMap, prefix: str, spec: FastConformerSpec, context: LayerContext) -> None:
        channels = spec.channels
        sizes = ((1, 3), (1, 3), (channels, 1), (1, 3), (channels, 1))
        names = _CONVOLUTIONS if spec.causal is None else _CAUSAL_CONVOLUTIONS
        self._convolutions = [
            (
                _stored(weights, f"{prefix}.{name}.weight", context, channels, inputs, width, width),
                _stored(weights, f"{prefix}.{name}.bias", context, channels),
            )
            for name, (inputs, width) in zip(names, sizes, strict=True)
        ]
        parts = {f"{prefix}.linear": spec.hidden_size}
        inputs = channels * spec.sampled_bins
        self._project = Linear(weights, parts, inputs, context, bias=True, dtype=context.stream)
        self._channels = channels
        self._causal = spec.causal is not None

    def __call__(
        self, frames: torch.Tensor, before: list[torch.Tensor] | None = None, *, ends: bool = True
    ) -> torch.Tensor:
        """[frames, bins] → [positions, hidden]

        ``before``: of causal convolutions, the last inputs of each, which later frames follow; mutated. None: there is
        nothing before. ``ends``: no frames follow.
        """
        first, *pairs = self._convolutions
        x = conv2d(self._joined(frames[None, None], before, 0, ends=ends), *first, stride=2).relu_()
        for place, (deep, point) in enumerate(zip(pairs[::2], pairs[1::2], strict=True), 1):
            x = conv2d(self._joined(x, before, place, ends=ends), *deep, stride=2, groups=self._channels)
            x = conv2d(x, *point).relu_()
        return self._project(x[0].transpose(0, 1).flatten(1))

    def _joined(self, x: torch.Tensor, before: list[torch.Tensor] | None, place: int, *, ends: bool) -> torch.Tensor:
        """[1, channels, frames, bins] behind what came before, with zeros around all: a causal convolution has two
        before the first frame and bin."""
        begin = 2 if self._causal else 1
        if before is None:
            return pad(x, (begin, 1, begin, 1))
        if not before[place : place + 1]:
            before.append(pad(x[:, :, :0], (0, 0, begin, 0)))
        x = torch.cat([before[place], x], dim=2)
        made = max(0, (x.shape[2] + ends - _TAPS) // 2 + 1)
        before[place] = x[:, :, 2 * made :]
        return pad(x, (begin, 1, 0, int(ends)))


class _Far(NamedTuple):
    """What queries are multiplied by for each distance of two positions."""

    products: torch.Tensor
    """[heads, dim, distances], from the greatest to an earlier position down to the greatest to a later one."""
    most: int
    """The first distance."""


class _Attention:
    """Attention whose scores depend on the distance of positions (arXiv:1901.02860)."""

    def __init__(self, weights: WeightMap, prefix: str, spec: ConformerSpec, context: LayerContext) -> None:
        hidden, self._heads, self._dim = spec.hidden_size, spec.heads, spec.head_dim
        parts = {f"{prefix}.{name}_proj": hidden for name in "qkv"}
        self._into = Linear(weights, parts, hidden, context, bias=spec.bias, dtype=context.stream)
        parts = {f"{prefix}.relative_k_proj": hidden}
        self._relative = Linear(weights, parts, hidden, context, dtype=context.stream)
        self._out = Linear(weights, {f"{prefix}.o_proj": hidden}, hidden, context, bias=spec.bias, dtype=context.stream)
        self._content, self._distance = (
            _stored(weights, f"{prefix}.bias_{which}", context, spec.heads, spec.head_dim) for which in "uv"
        )
        self._causal = spec.causal

    def far(self, distances: torch.Tensor, most: int) -> _Far:
        """Of the sinusoids of distances [distances, hidden]."""
        return _Far(self._relative(distances).view(-1, self._heads, self._dim).permute(1, 2, 0), most)

    def __call__(
        self, x: torch.Tensor, far: _Far, lengths: Sequence[int], before: Sequence[BlockState] = ()
    ) -> torch.Tensor:
        """x [positions of all windows, hidden] → the same. ``before``: what of each window was encoded earlier, which
        is mutated."""
        rows = self._into(x).view(len(x), 3, self._heads, self._dim)
        found = []
        for number, window in enumerate(rows.split(list(lengths))):
            q, k, v = window.unbind(1)
            if before:
                k, v = before[number].seen(k, v)
            spare = far.most - (len(k) - 1)
            found.append(self._attended(q, k, v, far.products[..., spare : spare + len(k) + len(q) - 1]))
        return self._out(torch.cat(found))

    def _attended(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        """[positions, heads, dim] of one window, of which queries are the last → [queries, hidden]"""
        queries, count = len(q), len(k)
        q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)  # [heads, positions, dim]
        scores = (q + self._distance.unsqueeze(1)) @ far
        # a row's own distance moves to the left by one in each row
        shifted = pad(scores, (1, 0)).view(self._heads, -1, queries)[:, 1:].reshape(scores.shape)[..., :count]
        if self._causal is not None:
            shifted = shifted.masked_fill(_unseen(queries, count, self._causal, q.device), -math.inf)
        scale = self._dim**-0.5
        found = scaled_dot_product_attention(
            (q + self._content.unsqueeze(1))[None], k[None], v[None], attn_mask=(shifted * scale)[None], scale=scale
        )
        return found[0].transpose(0, 1).flatten(1)


def _unseen(queries: int, count: int, causal: CausalSpec, device: torch.device) -> torch.Tensor:
    """[queries, positions]: whether the first, which are the last positions, do not see the second. Positions begin
    with a chunk."""
    chunks = torch.arange(count, device=device) // causal.chunk
    behind = chunks[count - queries :].unsqueeze(1) - chunks
    return (behind < 0) | (behind > causal.earlier)


class _KeyDistanceAttention:
    """Attention whose scores get the products of queries and vectors for distances, each stored; of whole windows."""

    def __init__(self, weights: WeightMap, prefix: str, spec: ConformerSpec, context: LayerContext) -> None:
        hidden, self._heads, self._dim = spec.hidden_size, spec.heads, spec.head_dim
        assert spec.keys is not None
        self._limits = spec.keys
        parts = {f"{prefix}.{name}_proj": hidden for name in "qkv"}
        self._into = Linear(weights, parts, hidden, context, bias=spec.bias, dtype=context.stream)
        self._out = Linear(weights, {f"{prefix}.o_proj": hidden}, hidden, context, bias=spec.bias, dtype=context.stream)
        count = spec.keys.earlier + spec.keys.later + 1
        self._vectors = _stored(weights, f"{prefix}.distance_embedding.weight", context, count, spec.head_dim)

    def far(self, distances: torch.Tensor, most: int) -> _Far:
        """As of :class:`_Attention`: sinusoids have no effect."""
        return _Far(distances, most)

    def __call__(
        self, x: torch.Tensor, far: _Far, lengths: Sequence[int], before: Sequence[BlockState] = ()
    ) -> torch.Tensor:
        """x [positions of all windows, hidden] → the same"""
        assert not before
        rows = self._into(x).view(len(x), 3, self._heads, self._dim)
        return self._out(torch.cat([self._attended(*each.unbind(1)) for each in rows.split(list(lengths))]))

    def _attended(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """[positions, heads, dim] of one window → [positions, hidden]; some queries at a time, for the memory."""
        q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)  # [heads, positions, dim]
        limits, count, scale, found = self._limits, k.shape[1], self._dim**-0.5, []
        places = torch.arange(count, device=q.device)
        for first in range(0, count, _QUERIES):
            some = q[:, first : first + _QUERIES]
            distances = places - places[first : first + _QUERIES].unsqueeze(1)  # [queries, positions]
            index = distances.clamp_(-limits.earlier, limits.later).add_(limits.earlier)
            bias = (some @ self._vectors.t()).mul_(scale).gather(2, index.expand(self._heads, -1, -1))
            found.append(scaled_dot_product_attention(some[None], k[None], v[None], attn_mask=bias[None], scale=scale))
        return torch.cat(found, dim=2)[0].transpose(0, 1).flatten(1)


class _Module:
    """A gated convolution over positions, of each channel by itself."""

    def __init__(self, weights: WeightMap, prefix: str, spec: ConformerSpec, context: LayerContext) -> None:
        hidden, bias = spec.hidden_size, spec.convolution_bias
        points = [
            Convolution(weights, f"{prefix}.pointwise_conv{n}", hidden, size, context, width=1, pad=(0, 0), bias=bias)
            for n, size in ((1, 2 * hidden), (2, hidden))
        ]
        self._first, self._last = points
        self._weight = _stored(weights, f"{prefix}.depthwise_conv.weight", context, hidden, 1, spec.width)
        self._bias = _stored(weights, f"{prefix}.depthwise_conv.bias", context, hidden) if bias else None
        self._norm: LayerNorm | None = None
        self._pad = spec.width // 2, spec.width // 2
        if spec.convolves_back:
            self._norm, self._pad = LayerNorm(weights, f"{prefix}.norm", hidden, _EPS, context), (spec.width - 1, 0)
        else:
            self._mean, self._variance, self._factor, self._shift = (
                _stored(weights, f"{prefix}.norm.{name}", context, hidden)
                for name in ("running_mean", "running_var", "weight", "bias")
            )
        self._activation = spec.activation

    def __call__(self, x: torch.Tensor, lengths: Sequence[int], before: Sequence[BlockState] = ()) -> torch.Tensor:
        """[positions of all windows, hidden] → the same; ``before``: as for :class:`_Attention`."""
        opened = glu(self._first(x.unsqueeze(0)), dim=2).transpose(1, 2)
        windows = [
            before[number].convolved(window) if before else pad(window, self._pad)
            for number, window in enumerate(opened.split(list(lengths), dim=2))
        ]
        seen = torch.cat(
            [conv1d(window, self._weight, self._bias, groups=x.shape[1]) for window in windows],
            dim=2,
        )
        if self._norm is None:
            seen = batch_norm(seen, self._mean, self._variance, self._factor, self._shift, eps=_EPS)
        rows = seen.transpose(1, 2).contiguous()  # [1, positions, hidden]
        if self._norm is not None:
            rows = self._norm(rows[0])[None]
        return self._last(kernels.activate_(rows, kernel_kind(self._activation)))[0]


def _network(spec: ConformerSpec, name: str) -> MLPSpec:
    inner, into, out = spec.intermediate_size, (f"{name}.linear1",), f"{name}.linear2"
    return MLPSpec(inner, spec.activation, spec.bias, into, out, gated=False)


class _Block:
    def __init__(self, weights: WeightMap, prefix: str, spec: ConformerSpec, context: LayerContext) -> None:
        hidden = spec.hidden_size
        self._norms = [
            LayerNorm(weights, f"{prefix}.norm_{name}", hidden, _EPS, context)
            for name in ("feed_forward1", "self_att", "conv", "feed_forward2", "out")
        ]
        self._networks = [
            MLP(weights, prefix, _network(spec, f"feed_forward{number}"), hidden, replace(context, adapters=None))
            for number in (1, 2)
        ]
        self.attention: _Attention | _KeyDistanceAttention
        kind = _Attention if spec.keys is None else _KeyDistanceAttention
        self.attention = kind(weights, f"{prefix}.self_attn", spec, context)
        self._module = _Module(weights, f"{prefix}.conv", spec, context)

    def __call__(
        self,
        x: torch.Tensor,
        far: _Far,
        lengths: Sequence[int],
        batch: ForwardBatch,
        before: Sequence[BlockState] = (),
    ) -> torch.Tensor:
        first, attended, convolved, second, last = self._norms
        one, other = self._networks
        x = x + 0.5 * fed(one, first(x), batch)
        x = x + self.attention(attended(x), far, lengths, before)
        x = x + self._module(convolved(x), lengths, before)
        return last(x + 0.5 * fed(other, second(x), batch))


def fed(network: MLP, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
    """[positions, hidden] → the same"""
    found = network(x, batch)
    assert isinstance(found, torch.Tensor)
    return found


class Conformer:
    """Layers over whole windows of any lengths."""

    def __init__(self, weights: WeightMap, prefix: str, spec: ConformerSpec, context: LayerContext) -> None:
        self._size = spec.hidden_size
        self.blocks = [_Block(weights, f"{prefix}.layers.{n}", spec, context) for n in range(spec.layers)]

    def __call__(self, x: torch.Tensor, lengths: Sequence[int], pause: Callable[[], None]) -> torch.Tensor:
        """x [positions of all windows, hidden] → the same; ``pause``: called behind every layer."""
        longest, batch = max(lengths), batch_of(lengths, x.device)
        distances = self.distances(longest - 1, longest, x)
        for block in self.blocks:
            x = block(x, block.attention.far(distances, longest - 1), lengths, batch)
            pause()
        return x

    def distances(self, most: int, later: int, like: torch.Tensor) -> torch.Tensor:
        """The sinusoids of distances from ``most`` down to ``1 - later``, [distances, hidden]."""
        steps = torch.arange(most, -later, -1, device=like.device)
        angles = sinusoid_angles(steps, self._size)
        return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1).to(like.dtype)


class Projection(msgspec.Struct, frozen=True):
    """A product behind the encoder's last layer."""

    name: str
    size: int


class FastConformer:
    """Encodes windows of audio by convolutions and attention by distance. No adapter changes it."""

    def __init__(
        self,
        weights: WeightMap,
        prefix: str,
        spec: FastConformerSpec,
        context: LayerContext,
        projection: Projection | None = None,
        dither: float = 0.0,
    ) -> None:
        """``dither``: deviation of noise that is added to samples."""
        self._spec, self._context, self._dither = spec, context, dither
        self._scale = math.sqrt(spec.hidden_size) if spec.scaled else 1.0
        self._subsampling = _Subsampling(weights, f"{prefix}.subsampling", spec, context)
        self._layers = Conformer(weights, prefix, spec, context)
        self._project: Linear | None = None
        if projection is not None:
            parts = {projection.name: projection.size}
            self._project = Linear(weights, parts, spec.hidden_size, context, bias=True, dtype=context.stream)
        self._mel: PreemphasizedMel | None = None
        self._far_of: dict[int, _Far] = {}
        """By layer."""

    def __call__(
        self, windows: Windows, after_layer: Callable[[], None] | None = None, adapters: Sequence[int] = ()
    ) -> EncodedWindows:
        embedded = embed_windows(windows, self._embedded, after_layer)
        x = self._layers(embedded.rows, embedded.lengths, after_layer or go_on)
        return EncodedWindows(x if self._project is None else self._project(x), embedded.lengths)

    def begin(self) -> ConformerStream:
        """The state of a new stream, of a causal encoder."""
        spec, device, dtype = self._spec, self._context.device, self._context.stream
        assert spec.causal is not None
        keys = torch.zeros(0, spec.heads, spec.head_dim, device=device, dtype=dtype)
        inputs = torch.zeros(1, spec.hidden_size, spec.width - 1, device=device, dtype=dtype)
        most = spec.causal.chunk * spec.causal.earlier
        blocks = [BlockState(keys, keys, inputs, most) for _ in self._layers.blocks]
        return ConformerStream(spec.causal, blocks, torch.zeros(0, device=device))

    @property
    def stream_bytes(self) -> int:
        """Bytes of a long stream's state, without its samples and frames."""
        spec = self._spec
        assert spec.causal is not None
        values = 2 * spec.causal.chunk * spec.causal.earlier + spec.width - 1
        return spec.layers * values * spec.hidden_size * self._context.stream.itemsize

    def advance(
        self, streams: Sequence[ConformerStream], last: Sequence[bool], after_layer: Callable[[], None] | None = None
    ) -> EncodedWindows:
        """Encode the next chunk of each stream, or all that is left of those that are at their ``last``; mutates them.

        Raises ValueError if audio of a chunk has not come.
        """
        pause, embedded = after_layer or go_on, []
        for stream, ends in zip(streams, last, strict=True):
            frames = stream.next_frames(self._features(), last=ends).to(self._context.stream)
            embedded.append(self._subsampling(frames, stream.subsampled, ends=ends) * self._scale)
        lengths, x = [len(each) for each in embedded], torch.cat(embedded)
        batch = batch_of(lengths, x.device)
        for number, block in enumerate(self._layers.blocks):
            before = [stream.blocks[number] for stream in streams]
            x = block(x, self._stream_far(number, max(lengths)), lengths, batch, before)
            pause()
        for stream, length in zip(streams, lengths, strict=True):
            stream.position += length
        return EncodedWindows(x if self._project is None else self._project(x), lengths)

    def _stream_far(self, number: int, longest: int) -> _Far:
        """Of a layer, for chunks of streams; made once."""
        causal = self._spec.causal
        assert causal is not None
        found = self._far_of.get(number)
        if found is None or found.products.shape[2] < found.most + longest:
            later = max(longest, causal.chunk)
            most = causal.chunk * causal.earlier + later - 1
            like = torch.empty(0, device=self._context.device, dtype=self._context.stream)
            found = self._far_of[number] = self._layers.blocks[number].attention.far(
                self._layers.distances(most, later, like), most
            )
        return found

    def _features(self) -> PreemphasizedMel:
        if self._mel is None:
            normed = self._spec.causal is None
            self._mel = PreemphasizedMel(self._spec.mel_bins, self._dither, self._context.device, normed=normed)
        return self._mel

    def _embedded(self, window: bytes | memoryview) -> torch.Tensor:
        """[positions, hidden]"""
        count = max(len(window) // 2, FEWEST_SAMPLES) if len(window) else MOST_SAMPLES
        frames = self._features()(samples_of([window], count, self._context.device)[0])
        return self._subsampling(frames.to(self._context.stream)) * self._scale


def batch_of(lengths: Sequence[int], device: torch.device) -> ForwardBatch:
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    return ForwardBatch.whole(torch.empty(0, dtype=torch.int64, device=device), VarlenBatch(starts, max(lengths)))
