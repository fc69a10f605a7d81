"""Several residual streams, [tokens, streams · hidden], of which parts of layers take sums and to which they add
multiples (manifold-constrained hyper-connections, arXiv:2512.24880; without a mixing matrix, Hy4; with sums by weights
of the part before, DeepSeek V4.1)."""

from functools import partial
from typing import Any

import torch
from msgspec.structs import replace

from stentor import kernels
from stentor.kernels.forward import Traced

from ...model_config.spec.layer import LayerSpec
from ...model_config.spec.model import Backbone
from ...model_config.spec.streams import HyperSpec
from ..elementwise import elementwise
from ..forward_batch import ForwardBatch
from ..layer import Layer
from ..linear.layer_context import LayerContext
from ..linear.quantized import Delta, Stream
from ..linear.weights import WeightMap
from ..norm import RMSNorm, added_
from ..rotary import RotaryTables
from .ngrams import NGrams


class _Weights:
    """float32 numbers from all streams of a token: a product of the normed streams."""

    def __init__(
        self, weights: WeightMap, name: str, saved: str, count: int, scales: int, model: Backbone, context: LayerContext
    ) -> None:
        """``name``, ``saved``: beginnings of its stored names, and of those that transformers saves; "": the same."""
        assert model.streams is not None
        width = model.streams.streams * model.hidden_size
        self._invariant = context.invariant
        self._norm = RMSNorm(weights, None, width, model.norm_eps, context)
        self._product, self.base, self.scale = (
            context.empty(*shape, dtype=torch.float32) for shape in ((count, width), (count,), (scales,))
        )
        for part, target in (("fn", self._product), ("base", self.base), ("scale", self.scale)):
            weights.add(f"{name}_{part}", target)
            if saved:
                weights.alias(f"{saved}_{part}", f"{name}_{part}")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, streams · hidden] → float32 [tokens, count], without scale and base"""
        return kernels.linear(self._norm.exact(x), self._product, invariant=self._invariant)


class HyperStreams:
    """Widens embeddings to several equal residual streams, and narrows the streams to a weighted sum or their mean."""

    def __init__(self, weights: WeightMap, spec: HyperSpec, model: Backbone, context: LayerContext) -> None:
        self._spec, self._hidden, self._stream = spec, model.hidden_size, context.stream
        self._weights: _Weights | None = None
        if spec.head:
            saved = spec.saved[2] if spec.saved else f"{spec.head}.hc"
            self._weights = _Weights(weights, spec.head, saved, spec.streams, 1, model, context)

    def widened(self, x: Stream) -> Stream:
        """Embeddings [tokens, hidden] → [tokens, streams · hidden]"""
        if isinstance(x, Traced):
            return x.call("streams of embeddings", lambda rows, _: self._widen(rows), self._spec.streams * self._hidden)
        return self._widen(x).to(self._stream)

    def narrowed(self, x: Stream, mix: Stream | None = None) -> Stream:
        """[tokens, streams · hidden] → [tokens, hidden]; ``mix``: weights that the last part has made."""
        if self._spec.delayed:
            return _taken(x, mix, self._spec.streams, self._hidden, self._stream)
        if isinstance(x, Traced):
            return x.call("the sum of streams", lambda rows, _: self._narrow(rows), self._hidden)
        return self._narrow(x).to(self._stream)

    def _widen(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat(1, self._spec.streams)

    def _narrow(self, x: torch.Tensor) -> torch.Tensor:
        if self._weights is None:
            count = self._spec.streams
            return _sum_of(x, torch.full((len(x), count), 1.0 / count, device=x.device))
        made = self._weights(x) * self._weights.scale + self._weights.base
        return _sum_of(x, elementwise(torch.sigmoid, made) + self._spec.eps)


class HyperConnected:
    """A layer whose mixer and network each take a sum of the streams."""

    def __init__(
        self,
        weights: WeightMap,
        layer: int,
        spec: HyperSpec,
        model: Backbone,
        rotary: RotaryTables,
        context: LayerContext,
    ) -> None:
        self._spec, self._hidden, self._stream = spec, model.hidden_size, context.stream
        whole, prefix = model.layers[layer], model.layer_prefix(layer)
        self._ngrams = None if whole.ngrams is None else NGrams(weights, layer, model, whole.ngrams, context)
        norms = whole.norms
        parts: tuple[LayerSpec, ...] = (
            replace(whole, mlp=None, norms=replace(norms, mlp_in="", mlp_out="")),
            replace(whole, mixer=None, norms=replace(norms, mixer_in="", mixer_out="")),
        )
        saves = tuple(f"{prefix}.{name}" for name in spec.saved[:2]) if spec.saved else ("", "")
        self._parts = [
            (
                _Weights(weights, f"{prefix}.{name}", saved, spec.weights, spec.scales, model, context),
                Layer(weights, layer, model, rotary, context, spec=part),
            )
            for name, saved, part in zip(spec.parts, saves, parts, strict=True)
        ]

    def __call__(self, delta: Delta | None, residual: Stream, batch: ForwardBatch) -> tuple[None, Stream]:
        """Run the layer over the streams ``residual``; returns no output to add, and the streams. ``delta`` is None."""
        assert delta is None
        if self._ngrams is not None:
            residual = added_(residual, self._ngrams(residual, batch))
        for weights, part in self._parts:
            residual = self._connected(weights, part, residual, batch)
        return None, residual

    def keep(self, x: torch.Tensor, batch: ForwardBatch) -> None:
        """See :meth:`..layer.Layer.keep`."""
        (_, mixer), _ = self._parts
        mixer.keep(x, batch)

    def _connected(self, weights: _Weights, part: Layer, x: Stream, batch: ForwardBatch) -> Stream:
        """The streams [tokens, streams · hidden] behind a part."""
        delayed, former = self._spec.delayed, batch.carried.mix
        if isinstance(x, Traced):
            traced = x.call("weights of streams", partial(self._weights, weights), self._spec.weights)
            given = self._taken(x, former if delayed else traced)
            batch.carried.mix = traced
            out, _ = part(None, given, batch)
            assert isinstance(out, Traced)
            kept = x.call("streams mixed", self._mixed, x.width, traced) if self._spec.mixes else x
            # what is added to each stream is its weight times the output
            spread = out.call("an output for each stream", self._spread, x.width, traced)
            return kept.add_(spread)
        made = self._weights(weights, x, batch)
        batch.carried.mix = made
        found, _ = part(None, self._taken(x, former if delayed else made), batch)
        assert isinstance(found, torch.Tensor)
        mixed = self._mixed(x, made, batch) if self._spec.mixes else x.float()
        return (mixed + self._spread(found, made, batch)).to(self._stream)

    def _weights(self, weights: _Weights, x: torch.Tensor, _batch: Any) -> torch.Tensor:
        """float32 [tokens, weights]: of the sum, of the output, and of the mixing matrix, by rows"""
        spec = self._spec
        if not spec.mixes:
            factors = weights.scale.repeat_interleave(spec.streams)
            before, after = elementwise(torch.sigmoid, weights(x) * factors + weights.base).chunk(2, dim=1)
            return torch.cat([before, after * spec.most], dim=1) + spec.eps
        return kernels.stream_weights(
            weights(x), weights.base, weights.scale, streams=spec.streams, iterations=spec.iterations, eps=spec.eps
        )

    def _taken(self, x: Stream, made: Stream | None) -> Stream:
        """A part's input [tokens, hidden]: the sum by weights that were ``made``, or the first stream."""
        return _taken(x, made, self._spec.streams, self._hidden, self._stream)

    def _mixed(self, x: torch.Tensor, made: torch.Tensor, _batch: Any) -> torch.Tensor:
        """float32 [tokens, streams · hidden]: stream k is the sum over j of stream j times element (j, k)"""
        count = self._spec.streams
        matrix = made[:, 2 * count :].view(-1, count, count)
        return torch.cat([_sum_of(x, matrix[:, :, k]) for k in range(count)], dim=1)

    def _spread(self, found: torch.Tensor, made: torch.Tensor, _batch: Any) -> torch.Tensor:
        """[tokens, hidden] → float32 [tokens, streams · hidden]"""
        count = self._spec.streams
        return (made[:, count : 2 * count, None] * found.float()[:, None]).flatten(1)


def _taken(x: Stream, made: Stream | None, streams: int, hidden: int, dtype: torch.dtype) -> Stream:
    """The sum of the streams x [tokens, streams · hidden] by the first numbers of ``made`` [tokens, weights]; without,
    a copy of the first stream."""
    if isinstance(x, Traced):
        if made is None:
            return x.call("the first stream", lambda rows, _: rows[:, :hidden].clone(), hidden)
        assert isinstance(made, Traced)
        return x.call("a sum of streams", lambda rows, by, _: _sum_of(rows, by[:, :streams]), hidden, made)
    if made is None:
        return x[:, :hidden].clone()
    assert isinstance(made, torch.Tensor)
    return _sum_of(x, made[:, :streams]).to(dtype)


def _sum_of(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """x [tokens, streams · hidden] and float32 [tokens, streams] → float32 [tokens, hidden], summed in order"""
    first, *others = x.float().view(len(x), weights.shape[1], -1).unbind(1)
    total = first * weights[:, :1]
    for at, each in enumerate(others, 1):
        total = total + each * weights[:, at : at + 1]
    return total
