"""Residual streams side by side, [tokens, streams · hidden], of which parts take a mix (hyper-connections)."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import silu

from stentor.kernels.forward import Traced

from ...model_config.spec.model import Backbone
from ...model_config.spec.streams import StreamMixSpec
from ..elementwise import elementwise
from ..forward_batch import ForwardBatch
from ..layer import make_feed_forward, make_mixer
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear
from ..linear.quantized import Delta, Stream
from ..linear.weights import WeightMap
from ..norm import added_
from ..rotary import RotaryTables
from .ngrams import NGrams, grouped_norm


class _Mix:
    """Σ over streams of sigmoid(up(silu(down(normed)))) · normed, and by what an output is added to each stream."""

    def __init__(
        self, weights: WeightMap, name: str, spec: StreamMixSpec, model: Backbone, context: LayerContext, *, adds: bool
    ) -> None:
        self._streams, self._hidden, self._dtype = spec.streams, model.hidden_size, context.dtype
        self._norm = grouped_norm(weights, f"{name}.hc_norm.weight", spec.streams, model, context)
        wide, down, up = (
            spec.streams * model.hidden_size,
            f"{name}.input_mix_weight_down",
            f"{name}.input_mix_weight_up",
        )
        self._down = Linear(weights, {down: spec.rank}, wide, context)
        self._up = Linear(weights, {up: wide}, spec.rank, context)
        self._adds: Linear | None = None
        if adds:
            part = f"{name}.block_inject_weight"
            self._adds = Linear(weights, {part: spec.streams}, wide, context.exact(part))

    def __call__(self, x: torch.Tensor, _batch: Any) -> torch.Tensor:
        """x [tokens, streams · hidden] → the mix and a factor for each stream, float32 [tokens, hidden + streams]; the
        mix alone without factors."""
        normed = self._norm(x)
        low = elementwise(silu, self._down(normed.to(self._dtype)).float() / self._streams)
        shares = elementwise(torch.sigmoid, self._up(low.to(self._dtype)).float())
        first, *others = (shares * normed).view(-1, self._streams, self._hidden).unbind(1)
        mix = sum(others, start=first) / self._streams
        if self._adds is None:
            return mix
        return torch.cat((mix, 2 * elementwise(torch.sigmoid, self._adds(normed) / self._streams)), dim=1)


class MixedStreams:
    """Widens embeddings to several equal residual streams, and narrows the streams to one."""

    def __init__(self, weights: WeightMap, spec: StreamMixSpec, model: Backbone, context: LayerContext) -> None:
        self._streams, self._hidden, self._stream = spec.streams, model.hidden_size, context.stream
        self._mix = _Mix(weights, spec.last, spec, model, context, adds=False)

    def widened(self, x: Stream) -> Stream:
        """Embeddings [tokens, hidden] → [tokens, streams · hidden]"""
        if isinstance(x, Traced):
            return x.call("streams of embeddings", self._widen, self._streams * self._hidden)
        return self._widen(x, None)

    def narrowed(self, x: Stream, _mix: Stream | None = None) -> Stream:
        """[tokens, streams · hidden] → [tokens, hidden]"""
        if isinstance(x, Traced):
            return x.call("the mix of streams", self._mix, self._hidden)
        return self._mix(x, None).to(self._stream)

    def _widen(self, x: torch.Tensor, _batch: Any) -> torch.Tensor:
        return x.repeat(1, self._streams)


class MixedLayer:
    """A mixer and a network, each with a mix of its own, and embeddings of n-grams before both."""

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, rotary: RotaryTables, context: LayerContext
    ) -> None:
        spec, streams, prefix = model.layers[layer], model.streams, model.layer_prefix(layer)
        assert isinstance(streams, StreamMixSpec)
        assert spec.mixer is not None
        assert spec.mlp is not None
        self._streams, self._hidden, self._stream = streams.streams, model.hidden_size, context.stream
        self._ngrams = None if spec.ngrams is None else NGrams(weights, layer, model, spec.ngrams, context)
        mixer = make_mixer(weights, layer, model, spec.mixer, rotary, context)
        network = make_feed_forward(weights, layer, model, spec.mlp, context)
        of_mixer, of_network = (
            _Mix(weights, f"{prefix}.{name}", streams, model, context, adds=True) for name in streams.parts
        )
        self._parts: tuple[tuple[_Mix, Callable[[Stream, ForwardBatch], Stream]], ...]
        self._parts = (of_mixer, mixer), (of_network, network)

    def __call__(self, delta: Delta | None, residual: Stream, batch: ForwardBatch) -> tuple[None, Stream]:
        """Run the layer over the streams ``residual``; returns no output to add, and the streams. ``delta`` is None."""
        assert delta is None
        if self._ngrams is not None:
            residual = added_(residual, self._ngrams(residual, batch))
        for mix, part in self._parts:
            if isinstance(residual, Traced):
                mixed = residual.call("a mix of streams", mix, self._hidden + self._streams)
                made = part(mixed.call("the mix of a part", self._taken, self._hidden), batch)
                assert isinstance(made, Traced)
                given = mixed.call("an output for all streams", self._given, self._streams * self._hidden, made)
                residual = added_(residual, given)
            else:
                found = mix(residual, batch)
                made = part(self._taken(found, batch).to(self._stream), batch)
                assert isinstance(made, torch.Tensor)
                residual = added_(residual, self._given(found, made, batch).to(self._stream))
        return None, residual

    def _taken(self, mixed: torch.Tensor, _batch: Any) -> torch.Tensor:
        """The result of a mix → the part's input [tokens, hidden], a copy that may be overwritten."""
        return mixed[:, : self._hidden].clone()

    def _given(self, mixed: torch.Tensor, made: torch.Tensor, _batch: Any) -> torch.Tensor:
        """The result of a mix, and the part's output [tokens, hidden] → the addition to the streams, [tokens, streams ·
        hidden]."""
        return (mixed[:, self._hidden :, None] * made.float()[:, None]).flatten(1)
