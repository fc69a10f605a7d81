"""Several residual streams side by side, [tokens, streams · hidden], of which a layer computes one (Gemma 3n)."""

from typing import Any, Final

import torch

from stentor import kernels
from stentor.kernels.forward import Traced

from ...model_config.spec.model import Backbone
from ...model_config.spec.projection import Projection
from ...model_config.spec.streams import AltUpSpec
from ..elementwise import elementwise
from ..forward_batch import ForwardBatch
from ..layer import Layer
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear, plain_weight
from ..linear.quantized import Delta, Stream
from ..linear.weights import WeightMap
from ..moments import row_mean
from ..norm import RMSNorm, added_
from ..per_layer import PerLayer, PerLayerInputs
from ..rotary import RotaryTables

_LEAST_SQUARES: Final = 1e-5
"""The mean of squares of what is brought to another magnitude is taken to be no less."""


class Streams:
    """Widens embeddings to several residual streams, and narrows the streams to one behind the last layer.

    Both are products whose results are scaled to the magnitude of the first stream.
    """

    def __init__(self, weights: WeightMap, spec: AltUpSpec, model: Backbone, context: LayerContext) -> None:
        self._streams, self._hidden = spec.streams, model.hidden_size
        self._dtype, self._stream, self._invariant = context.dtype, context.stream, context.invariant
        others, hidden = range(spec.streams - 1), model.hidden_size
        into = {f"model.altup_projections.{at}": hidden for at in others}
        self._into = Linear(weights, into, hidden, context)
        self._back = [
            Linear(weights, {f"model.altup_unembed_projections.{at}": hidden}, hidden, context) for at in others
        ]

    def widened(self, x: Stream) -> Stream:
        """Embeddings [tokens, hidden] → [tokens, streams · hidden]"""
        if isinstance(x, Traced):
            return x.call("streams of embeddings", lambda rows, _: self._widen(rows), self._streams * self._hidden)
        return self._widen(x).to(self._stream)

    def narrowed(self, x: Stream, _mix: Stream | None = None) -> Stream:
        """[tokens, streams · hidden] → their mean [tokens, hidden]"""
        if isinstance(x, Traced):
            return x.call("the mean of streams", lambda rows, _: self._narrow(rows), self._hidden)
        return self._narrow(x).to(self._stream)

    def _widen(self, x: torch.Tensor) -> torch.Tensor:
        made = self._into(x.to(self._dtype)).float().split(self._hidden, dim=1)
        return torch.cat([x.float(), *(self._as_large_as(x.float(), each) for each in made)], dim=1)

    def _narrow(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = x.float().view(-1, self._streams, self._hidden).unbind(1)
        total = first.clone()
        for back, each in zip(self._back, others, strict=True):
            total += self._as_large_as(first, back(each.to(self._dtype).contiguous()).float())
        return total / self._streams

    def _as_large_as(self, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """x with the root mean square of ``first``, by row."""
        wanted = row_mean(first * first, invariant=self._invariant).sqrt()
        squares = row_mean(x * x, invariant=self._invariant)
        return x * (wanted / squares.clamp(min=_LEAST_SQUARES).sqrt())


class AltUp:
    """A layer over the stream that it computes: what that will be is predicted from all streams, and by what has come
    of it all predictions are corrected."""

    def __init__(
        self,
        weights: WeightMap,
        layer: int,
        model: Backbone,
        rotary: RotaryTables,
        context: LayerContext,
        inputs: PerLayerInputs,
    ) -> None:
        assert isinstance(model.streams, AltUpSpec)
        self._spec, self._hidden = model.streams, model.hidden_size
        self._invariant, self._stream = context.invariant, context.stream
        prefix, count = model.layer_prefix(layer), self._spec.streams
        self._layer = Layer(weights, layer, model, rotary, context)
        self._own = PerLayer(weights, layer, model, inputs, context)
        router = f"{prefix}.altup.modality_router"
        exact = context.exact(router)
        self._router = Linear(weights, {router: count}, model.hidden_size, exact)
        self._router_norm = RMSNorm(weights, f"{prefix}.altup.router_norm", model.hidden_size, model.norm_eps, context)
        self._prediction, self._correction = (
            plain_weight(weights, prefix, Projection(((f"altup.{name}", outputs),), count, bias=False), exact)
            for name, outputs in (("prediction_coefs", count**2), ("correction_coefs", count))
        )
        self._scale = context.empty(model.hidden_size, dtype=torch.float32)
        weights.add(f"{prefix}.altup.correct_output_scale", self._scale)

    def __call__(self, delta: Delta | None, residual: Stream, batch: ForwardBatch) -> tuple[None, Stream]:
        """Run the layer over the streams ``residual``; returns no output to add, and the streams. ``delta`` is None."""
        assert delta is None
        if isinstance(residual, Traced):
            predicted = residual.call("streams predicted", lambda rows, _: self._predicted(rows), residual.width)
            read = predicted.call("the stream of a layer", lambda rows, _: self._active(rows), self._hidden)
            active = self._computed(read, batch)
            assert isinstance(active, Traced)
            return None, predicted.call("streams corrected", self._corrected, residual.width, active)
        predictions = self._predicted(residual).to(self._stream)
        computed = self._computed(self._active(predictions), batch)
        assert isinstance(computed, torch.Tensor)
        return None, self._corrected(predictions, computed, batch).to(self._stream)

    def _computed(self, active: Stream, batch: ForwardBatch) -> Stream:
        delta, active = self._layer(None, active, batch)
        return active if delta is None else added_(active, delta)

    def _active(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, streams · hidden] → [tokens, hidden], which may be written"""
        first = self._spec.active * self._hidden
        return x[:, first : first + self._hidden].clone()

    def _predicted(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, streams · hidden] → the same, float32"""
        count = self._spec.streams
        streams = x.float().view(-1, count, self._hidden)
        chosen = self._modalities(streams[:, self._spec.active])
        coefs = kernels.linear(chosen, self._prediction, invariant=self._invariant).view(-1, count, count)
        predicted = streams.clone()
        for at in range(count):
            predicted += coefs[:, :, at, None] * streams[:, at, None]
        return predicted.view(x.shape)

    def _corrected(self, predictions: torch.Tensor, active: torch.Tensor, batch: Any) -> torch.Tensor:
        """[tokens, streams · hidden] and what has come of one of them, [tokens, hidden] → as the first, float32"""
        at, predicted = self._spec.active, predictions.float().view(-1, self._spec.streams, self._hidden)
        chosen = self._modalities(active.float())
        coefs = kernels.linear(chosen, self._correction, invariant=self._invariant) + 1
        corrected = predicted + coefs[:, :, None] * (active.float() - predicted[:, at])[:, None]
        own = corrected[:, at] * self._scale if self._spec.scaled else corrected[:, at]
        corrected[:, 1:] += self._own.made(own, batch)[:, None]
        return corrected.view(predictions.shape)

    def _modalities(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] → what coefficients are made of, [tokens, streams]; float32"""
        return elementwise(torch.tanh, self._router(self._router_norm.exact(x) / self._hidden))
