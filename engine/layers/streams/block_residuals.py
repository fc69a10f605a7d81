"""Residual streams side by side, [tokens, streams · hidden]: those kept before blocks of layers, and the one that parts
add to. Parts take a mix of them (attention residuals, arXiv:2603.15031)."""

from functools import partial
from typing import Any, Final

import torch
from msgspec.structs import replace

from stentor import kernels
from stentor.kernels.forward import Traced

from ...model_config.spec.layer import LayerSpec
from ...model_config.spec.model import Backbone
from ...model_config.spec.streams import BlockResidualSpec
from ..forward_batch import ForwardBatch
from ..layer import Layer
from ..linear.layer_context import LayerContext
from ..linear.quantized import Delta, Stream
from ..linear.weights import WeightMap
from ..norm import RMSNorm
from ..rotary import RotaryTables

_EPS: Final = 1e-6
"""Of the norms of streams without weights, whatever the model's is."""


class _Last:
    """The last stream, where none is kept, for each of some inputs."""

    def __init__(self, hidden: int, inputs: int) -> None:
        self._hidden, self._inputs = hidden, inputs
        self.width = inputs * hidden

    def __call__(self, x: torch.Tensor, kept: int) -> torch.Tensor:
        """x [tokens, streams · hidden] → [tokens, inputs · hidden], float32"""
        return x[:, -self._hidden :].float().repeat(1, self._inputs)


class _Mix:
    """Σ over streams s of softmax(score · norm(s)) · s, in float32."""

    def __init__(self, weights: WeightMap, name: str, model: Backbone, context: LayerContext) -> None:
        self._hidden, self._invariant = model.hidden_size, context.invariant
        self.width = model.hidden_size
        exact = replace(context, dtype=torch.float32)
        self._norm = RMSNorm(weights, f"{name}_norm", model.hidden_size, model.norm_eps, exact)
        self._score = context.empty(1, model.hidden_size, dtype=torch.float32)
        weights.add(f"{name}_proj.weight", self._score)
        weights.alias(f"{name}_norm_weight", f"{name}_norm.weight")  # in files of AliceAI

    def __call__(self, x: torch.Tensor, kept: int) -> torch.Tensor:
        """x [tokens, streams · hidden], of which the first ``kept`` streams and the last take part → [tokens,
        hidden], float32"""
        seen = _seen(x, kept, self._hidden)
        normed = self._norm.exact(seen.flatten(0, 1))
        scores = kernels.linear(normed, self._score, invariant=self._invariant).view(len(x), kept + 1)
        return _weighted(seen, scores.softmax(1))


class _QueriedMix:
    """Of each query, Σ over streams s of softmax(query · n · hidden ** -0.5) · n with n = s / rms(s), in float32."""

    def __init__(self, weights: WeightMap, name: str, inputs: int, model: Backbone, context: LayerContext) -> None:
        self._hidden, self._invariant = model.hidden_size, context.invariant
        self.width = inputs * model.hidden_size
        self._norm = RMSNorm(weights, None, model.hidden_size, _EPS, replace(context, dtype=torch.float32))
        self._queries = context.empty(inputs, model.hidden_size, dtype=torch.float32)
        weights.add(f"{name}.query", self._queries[0] if inputs == 1 else self._queries)

    def __call__(self, x: torch.Tensor, kept: int) -> torch.Tensor:
        """x [tokens, streams · hidden], of which the first ``kept`` streams and the last take part → [tokens, queries ·
        hidden], float32"""
        normed = self._norm.exact(_seen(x, kept, self._hidden).flatten(0, 1))
        scores = kernels.linear(normed, self._queries, invariant=self._invariant) * self._hidden**-0.5
        seen = normed.view(len(x), kept + 1, self._hidden)
        by_query = scores.view(len(x), kept + 1, -1).unbind(2)
        return torch.cat([_weighted(seen, each.contiguous().softmax(1)) for each in by_query], dim=1)


def _seen(x: torch.Tensor, kept: int, hidden: int) -> torch.Tensor:
    """The first ``kept`` streams of x [tokens, streams · hidden], and the last → float32 [tokens, kept + 1, hidden]"""
    streams = x.unflatten(1, (-1, hidden))
    return torch.cat((streams[:, :kept], streams[:, -1:]), dim=1).float()


def _weighted(streams: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The sum of streams [tokens, streams, hidden], times shares [tokens, streams], in order → [tokens, hidden]"""
    first, *others = ((each * share[:, None]) for each, share in zip(streams.unbind(1), shares.unbind(1), strict=True))
    return sum(others, start=first)


def _mix_of(
    weights: WeightMap, name: str, spec: BlockResidualSpec, model: Backbone, context: LayerContext, inputs: int = 1
) -> _Mix | _QueriedMix:
    """The mix stored as ``name``, of which there are as many side by side as ``inputs``."""
    if spec.query:
        return _QueriedMix(weights, name, inputs, model, context)
    return _Mix(weights, name, model, context)


class BlockResiduals:
    """Widens embeddings to the stream behind empty places for kept ones, and narrows all of them to a mix."""

    def __init__(self, weights: WeightMap, spec: BlockResidualSpec, model: Backbone, context: LayerContext) -> None:
        self._spec, self._hidden, self._stream = spec, model.hidden_size, context.stream
        self._mix = _mix_of(weights, spec.last, spec, model, context)

    def widened(self, x: Stream) -> Stream:
        """Embeddings [tokens, hidden] → [tokens, streams · hidden]"""
        if isinstance(x, Traced):
            return x.call("streams of embeddings", self._widen, self._spec.streams * self._hidden)
        return self._widen(x, None)

    def narrowed(self, x: Stream, _mix: Stream | None = None) -> Stream:
        """[tokens, streams · hidden] → [tokens, hidden]"""
        if isinstance(x, Traced):
            return x.call("the mix of streams", self._narrow, self._hidden)
        return self._narrow(x, None).to(self._stream)

    def _widen(self, x: torch.Tensor, _batch: Any) -> torch.Tensor:
        return torch.cat((x.new_zeros(len(x), self._spec.blocks * self._hidden), x), dim=1)

    def _narrow(self, x: torch.Tensor, _batch: Any) -> torch.Tensor:
        return self._mix(x, self._spec.blocks)


class BlockResidualLayer:
    """A layer whose mixer and network each take a mix of the streams. That of the first layer of a block keeps the
    stream, which begins anew with the mixer's output."""

    def __init__(
        self,
        weights: WeightMap,
        layer: int,
        spec: BlockResidualSpec,
        model: Backbone,
        rotary: RotaryTables,
        context: LayerContext,
    ) -> None:
        self._hidden, self._stream = model.hidden_size, context.stream
        whole, prefix = model.layers[layer], model.layer_prefix(layer)
        norms, kept, (of_mixer, of_network) = whole.norms, spec.kept(layer), whole.out_convs
        parts: tuple[LayerSpec, ...] = (
            replace(whole, mlp=None, norms=replace(norms, mlp_in="", mlp_out=""), out_convs=(of_mixer, None)),
            replace(whole, mixer=None, norms=replace(norms, mixer_in="", mixer_out=""), out_convs=(None, of_network)),
        )
        names = [f"{prefix}.{name}" for name in spec.parts]
        inputs = spec.inputs_of(layer)
        mixes: list[_Mix | _QueriedMix | _Last] = [_Last(model.hidden_size, inputs)]
        if kept:
            mixes = [_mix_of(weights, names[0], spec, model, context, inputs)]
        else:
            weights.pass_over(*(f"{names[0]}_{part}.weight" for part in ("norm", "proj")))  # in files of Kimi K3
        mixes.append(_mix_of(weights, names[1], spec, model, context))
        first, second = (
            (mix, Layer(weights, layer, model, rotary, context, spec=part))
            for mix, part in zip(mixes, parts, strict=True)
        )
        begins = spec.begins(layer)
        self._parts = (*first, kept, begins), (*second, kept + begins, False)

    def __call__(self, delta: Delta | None, residual: Stream, batch: ForwardBatch) -> tuple[None, Stream]:
        """Run the layer over the streams ``residual``; returns no output to add, and the streams. ``delta`` is None."""
        assert delta is None
        for mix, part, kept, begins in self._parts:
            add = partial(self._begun, kept) if begins else self._added
            if isinstance(residual, Traced):
                given = residual.call("a mix of streams", partial(_mixed, mix, kept), mix.width)
                out, _ = part(None, given, batch)
                assert isinstance(out, Traced)
                residual = residual.call("an output for the stream", add, residual.width, out)
            else:
                found, _ = part(None, mix(residual, kept).to(self._stream), batch)
                assert isinstance(found, torch.Tensor)
                residual = add(residual, found)
        return None, residual

    def _added(self, x: torch.Tensor, out: torch.Tensor, _batch: Any = None) -> torch.Tensor:
        """The streams with a part's output [tokens, hidden] added to the last."""
        return torch.cat((x[:, : -self._hidden], x[:, -self._hidden :] + out), dim=1)

    def _begun(self, kept: int, x: torch.Tensor, out: torch.Tensor, _batch: Any = None) -> torch.Tensor:
        """The streams with the last one kept as number ``kept``, and a part's output in its place."""
        before, behind = x[:, : kept * self._hidden], x[:, (kept + 1) * self._hidden : -self._hidden]
        return torch.cat((before, x[:, -self._hidden :], behind, out.to(x.dtype)), dim=1)


def _mixed(mix: _Mix | _QueriedMix | _Last, kept: int, x: torch.Tensor, _batch: Any) -> torch.Tensor:
    return mix(x, kept)
