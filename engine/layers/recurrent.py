"""Mixers with a recurrent state: short convolutions, the gated delta rule, Mamba-2, Mamba, RG-LRU.

Their structure is in :mod:`..model_config.spec.recurrent`; the recurrences are operations of :mod:`stentor.kernels`. A
CPU's program calls them between stretches.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final

import torch
from msgspec.structs import replace
from torch.nn.functional import gelu, softplus

from stentor import kernels
from stentor.kernels.forward import Traced

from ..model_config.spec.layer import RecurrentSpec
from ..model_config.spec.model import Backbone
from ..model_config.spec.recurrent import GatedDeltaSpec, Mamba2Spec, MambaSpec, RGLRUSpec, ShortConvSpec
from .causal_convolution import CausalConvolution
from .elementwise import elementwise
from .forward_batch import ForwardBatch, StateBatch
from .linear.layer_context import LayerContext
from .linear.linear import Linear
from .linear.quantized import Input, Stream
from .linear.weights import WeightMap
from .mamba_heads import arrange_heads
from .rank_norm import rms_over_ranks

_LEAST_STEP: Final = 1e-30
"""Of RG-LRU: what is added to a state is divided by its step."""


class Recurrent(ABC):
    """A mixer with a recurrent state: a projection, :meth:`_mix`, which alone reads and writes states, and a projection
    to the stream."""

    what: ClassVar[str]
    """Its name among the calls of a CPU's program."""

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, spec: RecurrentSpec, context: LayerContext
    ) -> None:
        prefix, adapters = model.layer_prefix(layer), model.adapters
        into, out, *_ = spec.projections(model.hidden_size)
        self._layer, self._columns = layer, out.inputs
        self.into = Linear.of(weights, prefix, into, context, adapters=adapters, adaptable=True, dtype=context.dtype)
        self._out = Linear.of(
            weights, prefix, out, context, adapters=adapters, adaptable=True, dtype=context.stream, summed=True
        )

    def __call__(self, x: Input, batch: ForwardBatch) -> Stream:
        """x [tokens, hidden] → the same"""
        parts = self.into(x, batch.adapter_rows)
        if isinstance(parts, Traced):
            return self._out(parts.call(self.what, self._mix, self._columns), batch.adapter_rows)
        return self._out(self._mix(parts, batch), batch.adapter_rows)

    @abstractmethod
    def _mix(self, parts: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """The input projection's parts [tokens, all parts] → the output projection's input [tokens, columns]."""


class ShortConv(Recurrent):
    """out(c * conv(b * x))"""

    what = "a short convolution"

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, spec: ShortConvSpec, context: LayerContext
    ) -> None:
        super().__init__(weights, layer, model, spec, context)
        prefix = f"{model.layer_prefix(layer)}.{spec.name}.conv"
        self._conv = CausalConvolution(weights, {prefix: spec.channels}, spec.width, spec.bias, context)
        self._centered = spec.centered

    def _mix(self, parts: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, 3 * channels] → [tokens, channels]"""
        b, c, x = parts.chunk(3, dim=1)
        if self._centered:
            return c * self._conv.centered(b * x, batch.positions)
        states = states_of(batch)
        states.note(self._mix, parts)
        (state,) = states.of_layer[self._layer]
        return c * self._conv(b * x, state, states, "none")


class GatedDelta(Recurrent):
    """The gated delta rule between a convolution and a gated norm."""

    what = "a gated delta rule"

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, spec: GatedDeltaSpec, context: LayerContext
    ) -> None:
        super().__init__(weights, layer, model, spec, context)
        self._spec = spec
        self._eps = model.norm_eps if spec.norm_eps is None else spec.norm_eps
        prefix = model.layer_prefix(layer)
        if spec.tiled and context.adapters is not None:
            (out, _), *_ = spec.projections(model.hidden_size)[1].parts
            places, tiles = context.adapters.by_name, (spec.k_heads, spec.v_heads // spec.k_heads)
            place = places[f"{prefix}.{out}"]
            cut = place.cut
            if cut is not None and context.ranks is not None:
                cut = replace(cut, ranges=((context.ranks.rank * spec.values, spec.values),))
            places[f"{prefix}.{out}"] = replace(place, tiles=tiles, cut=cut)
        convolutions = {f"{prefix}.{name}": channels for name, channels in spec.convolutions}
        self._conv = CausalConvolution(weights, convolutions, spec.width, False, context)
        self._dtype = context.dtype
        low = [
            Linear.of(weights, prefix, each, context, dtype=context.dtype)
            for each in spec.projections(model.hidden_size)[2:]
        ]
        self._low_gates = low[0] if len(low) > 1 else None
        self._low_decays = low[-1] if low else None
        """Projections for gates, and for decays, of a few columns each."""
        self._step_bias, self._a_log = (context.empty(n, dtype=torch.float32) for n in (spec.decays, spec.v_heads))
        self._norm = context.empty(spec.v_dim, dtype=torch.float32)
        weights.add(f"{prefix}.{spec.name}.dt_bias", self._step_bias)
        weights.add(f"{prefix}.{spec.name}.A_log", self._a_log, shape=spec.rates, read=torch.flatten)
        weights.alias(f"{prefix}.{spec.name}.a_log_bias", f"{prefix}.{spec.name}.A_log")  # in files of AliceAI
        if len(spec.rates) == 1:
            workers = 1 if context.ranks is None else context.ranks.size
            weights.shorten(f"{prefix}.{spec.name}.A_log", spec.v_heads * workers)
        weights.add(f"{prefix}.{spec.norm}.weight", self._norm)

    def _mix(self, parts: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, all projected parts] → [tokens, values]"""
        spec, states = self._spec, states_of(batch)
        states.note(self._mix, parts)
        conv_state, recurrent, *_ = states.of_layer[self._layer]  # those of n-grams follow
        mixed, z, b, a = self._split(parts)
        mixed = self._conv(mixed, conv_state, states, "silu")
        q, k, v = mixed.split_with_sizes((spec.keys, spec.keys, spec.values), dim=1)
        found = kernels.gated_delta(
            q.view(-1, spec.k_heads, spec.k_dim),
            k.view(-1, spec.k_heads, spec.k_dim),
            v.view(-1, spec.v_heads, spec.v_dim),
            self._decay(a),
            spec.beta_scale * elementwise(torch.sigmoid, b.float()),
            recurrent,
            states.rows,
            scale=spec.k_dim**-0.5,
        ).float()
        normed = kernels.rms_norm(found.view(-1, spec.v_dim), self._norm, self._eps)
        z = z.reshape(-1, spec.v_dim).float()
        if spec.by_channel or spec.sigmoid_gate:
            gated = elementwise(torch.sigmoid, z) * normed
        else:
            gated = kernels.gated_activation(torch.cat((z, normed), dim=1), "silu")
        if spec.tiled:
            gated = gated.view(-1, spec.k_heads, spec.v_heads // spec.k_heads, spec.v_dim).transpose(1, 2)
        return gated.reshape(-1, spec.values).to(parts.dtype)

    def _decay(self, a: torch.Tensor) -> torch.Tensor:
        """Logarithms of decay factors: of each state [tokens, v_heads], or of its channels [tokens, v_heads, k_dim]."""
        steps, bound = a.float() + self._step_bias, self._spec.least_decay
        if bound:
            by_head = steps.view(-1, self._spec.v_heads, self._spec.k_dim)
            return bound * elementwise(torch.sigmoid, self._a_log.exp()[:, None] * by_head)
        steps = elementwise(softplus, steps)
        rates = -self._a_log.exp()
        if self._spec.by_channel:
            return rates[:, None] * steps.view(-1, self._spec.v_heads, self._spec.k_dim)
        return rates * steps

    def _split(self, parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Split into convolved channels [tokens, channels], gates [tokens, v_heads, v_dim], and two numbers a value
        head, [tokens, v_heads] each; the last is [tokens, decays] if channels of a state decay separately."""
        spec = self._spec
        if spec.stored != "by_head":
            mixed, z, b, a = parts.split_with_sizes(spec.split, dim=1)
            if self._low_gates is not None:
                z = _made(self._low_gates, z.to(self._dtype))
            if self._low_decays is not None:
                a = _made(self._low_decays, a.to(self._dtype))
            return mixed, z.view(-1, spec.v_heads, spec.v_dim), b, a
        each = spec.v_heads // spec.k_heads
        by_head, numbers = parts.split_with_sizes((spec.channels + spec.values, 2 * spec.v_heads), dim=1)
        sizes = (spec.k_dim, spec.k_dim, each * spec.v_dim, each * spec.v_dim)
        q, k, v, z = by_head.view(-1, spec.k_heads, sum(sizes)).split_with_sizes(sizes, dim=2)
        b, a = numbers.view(-1, spec.k_heads, 2 * each).split_with_sizes((each, each), dim=2)
        mixed = torch.cat([part.flatten(1) for part in (q, k, v)], dim=1)
        return mixed, z.reshape(-1, spec.v_heads, spec.v_dim), b.flatten(1), a.flatten(1)


class Mamba2(Recurrent):
    """A state space between a convolution and a gated norm."""

    what = "a state space"

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, spec: Mamba2Spec, context: LayerContext
    ) -> None:
        super().__init__(weights, layer, model, spec, context)
        self._spec, self._eps, self._ranks = spec, model.norm_eps, context.ranks
        prefix = f"{model.layer_prefix(layer)}.{spec.name}"
        self._conv = CausalConvolution(
            weights, {f"{prefix}.conv1d": spec.channels}, spec.width, spec.conv_bias, context
        )
        self._step_bias, self._a_log, self._d = (context.empty(spec.heads, dtype=torch.float32) for _ in range(3))
        for which, tensor in (("dt_bias", self._step_bias), ("A_log", self._a_log), ("D", self._d)):
            weights.add(f"{prefix}.{which}", tensor)
            weights.alias(f"{prefix}._fp32_params.{which}", f"{prefix}.{which}")  # in files of NeMo
        self._norm: torch.Tensor | None = None
        if spec.norm != "none":
            self._norm = context.empty(spec.inner, dtype=torch.float32)
            weights.add(f"{prefix}.norm.weight", self._norm)
        self._scales: torch.Tensor | None = None
        if spec.scales is not None:
            shared = spec.groups * spec.state_dim
            counts = (spec.inner, spec.inner, shared, shared, spec.heads)
            self._scales = torch.empty(sum(counts), device=context.place)
            for part, scale in zip(self._scales.split(counts), spec.scales, strict=True):
                part.fill_(scale)

    def _mix(self, parts: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, all projected parts] → [tokens, inner]"""
        spec, states = self._spec, states_of(batch)
        states.note(self._mix, parts)
        conv_state, recurrent = states.of_layer[self._layer]
        if self._scales is not None:
            parts = (parts * self._scales).to(parts.dtype)
        gate, mixed, steps = parts.split_with_sizes((spec.inner, spec.channels, spec.heads), dim=1)
        mixed = self._conv(mixed, conv_state, states, "silu")
        shared = spec.groups * spec.state_dim
        x, b, c = mixed.split_with_sizes((spec.inner, shared, shared), dim=1)
        found = kernels.mamba2(
            x.view(-1, spec.heads, spec.head_dim),
            elementwise(softplus, steps.float() + self._step_bias).clamp(spec.least_step, spec.most_step),
            -self._a_log.exp(),
            b.view(-1, spec.groups, spec.state_dim),
            c.view(-1, spec.groups, spec.state_dim),
            self._d,
            recurrent,
            states.rows,
        )
        made = found.flatten(1).float()
        if spec.norm == "ungated":
            made = self._normed(made)
        made = kernels.gated_activation(torch.cat((gate.float(), made), dim=1), "silu")
        return (self._normed(made) if spec.norm == "gated" else made).to(parts.dtype)

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise each group of channels; x float32 [tokens, inner] → the same."""
        assert self._norm is not None
        if (workers := self._spec.norm_workers) > 1:
            assert self._ranks is not None
            (normed,) = rms_over_ranks([x], self._eps, self._ranks, workers)
        else:
            groups = x.view(-1, self._spec.inner // self._spec.norm_groups)
            normed = kernels.rms_norm(groups, groups.new_ones(groups.shape[1]), self._eps)
        return normed.view(x.shape) * self._norm


class Mamba(Recurrent):
    """A state space model of each channel between a convolution and a gate. A CPU's program makes one call for all of
    it."""

    what = "a selective scan"

    def __init__(self, weights: WeightMap, layer: int, model: Backbone, spec: MambaSpec, context: LayerContext) -> None:
        super().__init__(weights, layer, model, spec, context)
        self._spec = spec
        self._eps = model.norm_eps if spec.norm_eps is None else spec.norm_eps
        prefix = model.layer_prefix(layer)
        low, steps = spec.projections(model.hidden_size)[2:]
        self._low, self._steps = (
            Linear.of(
                weights,
                prefix,
                projection,
                context,
                adapters=model.adapters,
                adaptable=True,
                dtype=context.dtype,
                summed=projection is low,
            )
            for projection in (low, steps)
        )
        own = f"{prefix}.{spec.name}"
        if spec.heads > 1:
            arrange_heads(weights, own, spec, model.hidden_size, context)
        self._conv = CausalConvolution(weights, {f"{own}.conv1d": spec.inner}, spec.width, spec.conv_bias, context)
        self._step_bias, self._d = (context.empty(spec.inner, dtype=torch.float32) for _ in range(2))
        self._rates = context.empty(spec.state_dim, spec.inner, dtype=torch.float32)
        weights.add(f"{own}.dt_proj.bias", self._step_bias)
        weights.add(f"{own}.D", self._d)
        weights.add(f"{own}.A_log", self._rates, shape=(spec.inner, spec.state_dim), read=_rates)
        self._norms: list[torch.Tensor] = []
        for name, size in spec.norms:
            if spec.norm == "weighted":
                self._norms.append(context.empty(size, dtype=torch.float32))
                weights.add(f"{prefix}.{name}.weight", self._norms[-1])
            else:
                self._norms.append(torch.ones(size, device=context.place))

    def _mix(self, parts: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, 2 * inner] → [tokens, inner]"""
        spec, states = self._spec, states_of(batch)
        states.note(self._mix, parts)
        conv_state, *recurrent = states.of_layer[self._layer]
        x, gate = parts.chunk(2, dim=1)
        x = self._conv(x, conv_state, states, "silu")
        if spec.heads > 1:
            return self._mix_heads(x, gate.to(x.dtype), recurrent, states, batch).to(parts.dtype)
        found = self._low(x, batch.adapter_rows).split_with_sizes((spec.rank, spec.state_dim, spec.state_dim), dim=1)
        if self._norms:
            found = tuple(
                kernels.rms_norm(part.float().contiguous(), weight, self._eps).to(x.dtype)
                for part, weight in zip(found, self._norms, strict=True)
            )
        low, b, c = found
        return kernels.selective_scan(
            x,
            gate.to(x.dtype),
            self._steps(low.contiguous(), batch.adapter_rows),
            self._step_bias,
            self._rates,
            b,
            c,
            self._d,
            recurrent[0],
            states.rows,
        ).to(parts.dtype)

    def _mix_heads(
        self,
        x: torch.Tensor,
        gate: torch.Tensor,
        recurrent: Sequence[torch.Tensor],
        states: StateBatch,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """Convolved channels and gates [tokens, inner] → [tokens, inner], with the state of each head."""
        spec, size = self._spec, self._spec.inner // self._spec.heads
        low = self._low(x, batch.adapter_rows).view(len(x), spec.heads, spec.low)
        steps = self._steps(low[:, :, : spec.rank].reshape(len(x), -1), batch.adapter_rows)
        found = []
        for head, state in enumerate(recurrent):
            own = slice(head * size, (head + 1) * size)
            b, c = low[:, head, spec.rank :].chunk(2, dim=1)
            rates = self._rates[:, own].contiguous()
            of_head = x[:, own], gate[:, own], steps[:, own], self._step_bias[own], rates, b, c, self._d[own]
            found.append(kernels.selective_scan(*of_head, state, states.rows))
        return torch.cat(found, dim=1)


def _rates(stored: torch.Tensor) -> torch.Tensor:
    """A_log [inner, state_dim] → A [state_dim, inner], as the scan takes it."""
    return -stored.float().exp().t()


class RGLRU(Recurrent):
    """A gated linear recurrence of each channel behind a convolution, beside a gate. It is Mamba-2's recurrence of
    heads of one dimension, with states of one number."""

    what = "a gated linear recurrence"

    _STRENGTH: Final = 8.0

    def __init__(self, weights: WeightMap, layer: int, model: Backbone, spec: RGLRUSpec, context: LayerContext) -> None:
        super().__init__(weights, layer, model, spec, context)
        self._spec, self._dtype, self._invariant = spec, context.dtype, context.invariant
        prefix = model.layer_prefix(layer)
        own = f"{prefix}.{spec.name}"
        self._conv = CausalConvolution(weights, {f"{own}.conv_1d": spec.channels}, spec.width, True, context)
        self._gates = [
            (context.empty(spec.blocks, spec.block, spec.block), context.empty(spec.blocks, spec.block)) for _ in "ri"
        ]
        for name, (weight, bias) in zip(spec.gates, self._gates, strict=True):
            weights.add(f"{prefix}.{name}_weight", weight, shape=tuple(weight.shape), read=lambda w: w.transpose(1, 2))
            weights.add(f"{prefix}.{name}_bias", bias)
        self._param = context.empty(spec.channels, dtype=torch.float32)
        weights.add(f"{own}.rg_lru.recurrent_param", self._param)
        self._rates = torch.full((spec.channels,), -1.0, device=context.place)
        self._skipped = torch.zeros(spec.channels, device=context.place)

    def _mix(self, parts: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, 2 * channels] → [tokens, channels]"""
        first = (batch.positions == 0).to(parts.dtype).unsqueeze(1)
        return self._run(torch.cat([parts, first], dim=1), batch)

    def _run(self, parts: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, 2 * channels, and whether it is a text's first token] → [tokens, channels]"""
        spec, states = self._spec, states_of(batch)
        states.note(self._run, parts)
        conv_state, recurrent = states.of_layer[self._layer]
        y, x, first = parts.split_with_sizes((spec.channels, spec.channels, 1), dim=1)
        x = self._conv(x, conv_state, states, "none")
        again, taken = (self._gate(x, *gate) for gate in self._gates)
        steps = (self._STRENGTH * elementwise(softplus, self._param) * again).clamp_min(_LEAST_STEP)
        kept = elementwise(torch.sqrt, -elementwise(torch.expm1, -2 * steps))
        # what is added to the state is divided by the step that the recurrence multiplies it by
        added = x.float() * taken * torch.where(first > 0, 1.0, kept) / steps
        ones = added.new_ones(len(parts), 1, 1)
        found = kernels.mamba2(
            added.unsqueeze(2), steps, self._rates, ones, ones, self._skipped, recurrent, states.rows
        ).squeeze(2)
        return (found * elementwise(_gelu_tanh, y.float())).to(parts.dtype)

    def _gate(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """A sigmoid for each channel, float32; x [tokens, channels] → the same."""
        spec = self._spec
        blocks = x.view(-1, spec.blocks, spec.block).to(self._dtype)
        made = kernels.linear_heads(blocks, weight, invariant=self._invariant).float() + bias.float()
        return elementwise(torch.sigmoid, made).flatten(1)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return gelu(x, approximate="tanh")


def _made(linear: Linear, x: torch.Tensor) -> torch.Tensor:
    """The product for some columns [tokens, inputs]."""
    product = linear(x.contiguous())
    assert isinstance(product, torch.Tensor)
    return product


def states_of(batch: ForwardBatch) -> StateBatch:
    assert batch.states is not None, "the rows of the batch have no recurrent states"
    return batch.states
