"""Residual streams side by side, [tokens, streams · hidden]: those kept before blocks of layers, and the one that parts
add to. Parts take a mix of them (attention residuals, arXiv:2603.15031)."""

from copy import copy
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace

from stentor.kernels.forward import Traced

from ...model_config.spec.layer import LayerSpec
from ...model_config.spec.model import Backbone
from ...model_config.spec.streams import BlockResidualSpec
from ..forward_batch import ForwardBatch
from ..layer import Layer
from ..linear.layer_context import LayerContext
from ..linear.quantized import Delta, Stream
from ..linear.weights import WeightMap
from ..rotary import RotaryTables
from .block_loop import GatedMix, LoopQueries
from .mixes import AlikeMixes, Last, Mix, QueriedMix

AnyMix = Mix | QueriedMix | AlikeMixes | Last | GatedMix


def _mix_of(
    weights: WeightMap, name: str, spec: BlockResidualSpec, model: Backbone, context: LayerContext, inputs: int = 1
) -> Mix | QueriedMix:
    """The mix stored as ``name``, of which there are as many side by side as ``inputs``."""
    if spec.query:
        return QueriedMix(weights, name, inputs, model, context)
    return Mix(weights, name, model, context)


class BlockResiduals:
    """Widens embeddings to the stream behind empty places for kept ones, and narrows all of them to a mix."""

    def __init__(self, weights: WeightMap, spec: BlockResidualSpec, model: Backbone, context: LayerContext) -> None:
        self._spec, self._hidden, self._stream = spec, model.hidden_size, context.stream
        self._mix = _mix_of(weights, spec.last, spec, model, context)
        self.queries = None if spec.loop is None else LoopQueries(weights, spec.loop, model.hidden_size, context)

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
        return torch.cat((x.new_zeros(len(x), (self._spec.streams - 1) * self._hidden), x), dim=1)

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
        queries: LoopQueries | None,
    ) -> None:
        """``queries``: those of layers that run several times, if some do."""
        self._hidden, self._stream = model.hidden_size, context.stream
        self._spec, stored = spec, model.stored(layer)
        whole, prefix = model.layers[layer], model.layer_prefix(layer)
        norms, kept, (of_mixer, of_network) = whole.norms, spec.kept(stored), whole.out_convs
        parts: tuple[LayerSpec, ...] = (
            replace(whole, mlp=None, norms=replace(norms, mlp_in="", mlp_out=""), out_convs=(of_mixer, None)),
            replace(whole, mixer=None, norms=replace(norms, mixer_in="", mixer_out=""), out_convs=(None, of_network)),
        )
        names = [f"{prefix}.{name}" for name in spec.parts]
        inputs = spec.inputs_of(stored)
        mixes: list[AnyMix] = [Last(model.hidden_size, inputs)]
        if kept:
            mixes = [_mix_of(weights, names[0], spec, model, context, inputs)]
        else:
            weights.pass_over(*(f"{names[0]}_{part}.weight" for part in ("norm", "proj")))  # in files of Kimi K3
        mixes.append(_mix_of(weights, names[1], spec, model, context))
        if inputs < (sides := max(1, len(norms.inputs))) and isinstance(mixes[0], QueriedMix):
            mixes[0] = AlikeMixes(mixes[0], sides)
        first, second = (
            (mix, Layer(weights, layer, model, rotary, context, spec=part))
            for mix, part in zip(mixes, parts, strict=True)
        )
        begins = spec.begins(stored)
        self._parts: tuple[tuple[AnyMix, Layer, int, bool], ...]
        self._parts = (*first, kept, begins), (*second, kept + begins, False)
        self._restarts = False
        self._gated: tuple[AnyMix, ...] = ()
        if queries is not None and spec.loop is not None and spec.loop.repeats(stored):
            own = queries, stored - spec.loop.first, spec, prefix, model
            self._gated = (
                GatedMix(weights, mixes[0], *own, range(3), context),
                GatedMix(weights, mixes[1], *own, range(3, 4), context),
            )

    def again(
        self, weights: WeightMap, layer: int, model: Backbone, rotary: RotaryTables, context: LayerContext
    ) -> "BlockResidualLayer":
        """The layer numbered ``layer``, a later run of this one: each part's inputs are gated, and the first layer
        begins from the streams before the loop."""
        assert self._spec.loop is not None
        found = copy(self)
        found._restarts = model.stored(layer) == self._spec.loop.first
        found._parts = tuple(
            (mix, part.again(weights, layer, model, rotary, context), kept, begins)
            for mix, (_, part, kept, begins) in zip(self._gated, self._parts, strict=True)
        )
        return found

    def __call__(self, delta: Delta | None, residual: Stream, batch: ForwardBatch) -> tuple[None, Stream]:
        """Run the layer over the streams ``residual``; returns no output to add, and the streams. ``delta`` is None."""
        assert delta is None
        if self._restarts:
            if isinstance(residual, Traced):
                residual = residual.call("streams of a further loop", self._restarted, residual.width)
            else:
                residual = self._restarted(residual)
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

    def _restarted(self, x: torch.Tensor, _batch: Any = None) -> torch.Tensor:
        """The streams before the loop, and what each of its blocks has made: the stream kept before the next block, or
        the last one."""
        spec, streams = self._spec, x.unflatten(1, (-1, self._hidden))
        assert spec.loop is not None
        first, end = spec.loop.first // spec.block, spec.loop.end // spec.block
        parts = streams[:, : spec.blocks], streams[:, first + 1 : end], streams[:, -1:], streams[:, first : first + 1]
        return torch.cat(parts, dim=1).flatten(1)

    def _added(self, x: torch.Tensor, out: torch.Tensor, _batch: Any = None) -> torch.Tensor:
        """The streams with a part's output [tokens, hidden] added to the last."""
        return torch.cat((x[:, : -self._hidden], x[:, -self._hidden :] + out), dim=1)

    def _begun(self, kept: int, x: torch.Tensor, out: torch.Tensor, _batch: Any = None) -> torch.Tensor:
        """The streams with the last one kept as number ``kept``, and a part's output in its place."""
        before, behind = x[:, : kept * self._hidden], x[:, (kept + 1) * self._hidden : -self._hidden]
        return torch.cat((before, x[:, -self._hidden :], behind, out.to(x.dtype)), dim=1)


def _mixed(mix: AnyMix, kept: int, x: torch.Tensor, _batch: Any) -> torch.Tensor:
    return mix(x, kept)
