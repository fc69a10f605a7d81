"""The feed-forward network of a layer, the same for all tokens."""

import math
from collections.abc import Callable, Mapping
from typing import overload

import torch
from msgspec.structs import replace
from torch.nn import functional

from stentor import kernels
from stentor.kernels.forward import Traced
from stentor.kernels.moe.reference import ALPHA, LIMITS, SITU_BOUNDS
from stentor.kernels.quantize import Quantized

from ..model_config.spec.mlp import OWN_ACTIVATIONS, Activation, MLPSpec
from ..model_config.spec.model import TaskAdapters
from .elementwise import elementwise
from .forward_batch import ForwardBatch
from .learned_factors import LearnedFactors
from .linear.layer_context import LayerContext
from .linear.linear import Linear, check_arranged
from .linear.quantized import Delta, Input, Stream, Unnormed, changed, multiplied
from .linear.weights import WeightMap
from .moments import row_mean
from .rank_norm import SplitNorm

_XIELU_BETA, _XIELU_EPS = 0.5, -1e-6
"""The slope at zero, and the largest input below it; checkpoints store both beside the learned values."""


def kernel_kind(activation: Activation) -> kernels.ActivationKind:
    """The kernels' activation of this name, which all but :data:`OWN_ACTIVATIONS` have."""
    assert activation != "xielu"
    assert activation != "swiglu_oai"
    assert activation != "situ"
    return activation


class XIELU:
    """xIELU (arXiv:2411.13010): quadratic above zero, an integrated exponential below, both with learned strengths.

    p x² + x / 2 above zero, n (eˣ - 1 - x) + x / 2 below, where p and n - 1 / 2 are softplus of the stored values.
    """

    def __init__(self, weights: WeightMap, name: str, context: LayerContext) -> None:
        self._stored = tuple(context.empty(1, dtype=torch.float32) for _ in range(2))
        for which, target in zip(("alpha_p", "alpha_n"), self._stored, strict=True):
            weights.add(f"{name}.{which}", target)
        weights.pass_over(f"{name}.beta", f"{name}.eps")

    def __call__(self, x: Stream) -> Stream:
        """Elementwise. A program calls it, since there is no instruction for it."""
        if isinstance(x, Traced):
            return x.call("xIELU", lambda rows, _: self._apply(rows), x.width)
        return self._apply(x.float()).to(x.dtype)

    def _apply(self, x: torch.Tensor) -> torch.Tensor:
        above, below = (functional.softplus(stored) for stored in self._stored)
        negative = (elementwise(torch.expm1, x.clamp(max=_XIELU_EPS)) - x) * (_XIELU_BETA + below)
        return torch.where(x > 0, above * x * x, negative) + _XIELU_BETA * x


class MLP:
    """down(act(gate(x)) * up(x)), or without a gate down(act(up(x)))."""

    def __init__(
        self,
        weights: WeightMap,
        prefix: str,
        spec: MLPSpec,
        hidden: int,
        context: LayerContext,
        adapters: TaskAdapters | None = None,
        *,
        summed: bool = True,
        eps: float = 1e-6,
    ) -> None:
        """
        Args:
            prefix: of the layer.
            eps: of its norm, if it has one.
            summed: whether the outputs of workers that split the model are added up.
        """
        into, out = spec.projections(hidden)
        self._gated, self._activation = spec.gated, spec.activation
        self._gate_scale, self._gate_cutoff, self._limit = spec.gate_scale, spec.gate_cutoff, spec.limit
        self._gate_limit = _before_silu(spec.limit) if spec.limits_active else spec.limit
        self._invariant, self._ranks = context.invariant, context.ranks
        self._inner = spec.inner
        self._kind = kind = None if spec.activation in OWN_ACTIVATIONS else kernel_kind(spec.activation)
        self._own_gate = _OWN_GATES.get(spec.activation)
        fused = None if spec.gated else kind
        # the activation's input is rounded as the next product would, which takes no float32 where nothing is packed
        dtype = context.dtype if fused or not context.packed else context.stream
        self.input = Linear.of(
            weights,
            prefix,
            into,
            context,
            adapters=adapters,
            adaptable=not spec.gate_last,  # an adapter's B has its rows in the order of the stored weights
            activation=fused,
            dtype=dtype,
        )
        if spec.gate_last:
            check_arranged(f"{prefix}.{spec.into[0]}", context)
            for name, shape in into.shapes(prefix):
                weights.arrange(name, shape, _gate_first)
        self.out = Linear.of(
            weights, prefix, out, context, adapters=adapters, adaptable=True, dtype=context.stream, summed=summed
        )
        plain = spec.gate_scale == 1.0 and spec.gate_cutoff is None and not spec.limit and spec.scales is None
        gated = spec.gated and plain and self.out.input_scheme is None
        if gated and kind is not None and kind != "relu":
            self.input.gate = kind
        if spec.also:
            for name in (*spec.into, spec.out):
                if (other := name.replace(*spec.also, 1)) != name:
                    weights.alias(f"{prefix}.{other}.weight", f"{prefix}.{name}.weight")
        self._norm: SplitNorm | None = None
        if spec.norm:
            # it norms what has the stream's dtype
            own = replace(context, dtype=context.stream)
            stored = f"{prefix}.{spec.norm}" if spec.norm_weighted else None
            self._norm = SplitNorm(weights, stored, spec.inner, eps, own)
        self._scales: LearnedFactors | None = None
        if spec.scales is not None:
            names = tuple(f"{prefix}.{name}" for name in spec.scales)
            self._scales = LearnedFactors.of(weights, names, spec.inner, context, rate=1.0, power=1)
        self._factor: torch.Tensor | None = None
        if spec.factor:
            self._factor = context.empty(1, dtype=torch.float32)
            weights.add(f"{prefix}.{spec.factor}", self._factor)
        self._xielu = XIELU(weights, f"{prefix}.{spec.act}", context) if spec.activation == "xielu" else None

    @overload
    def __call__(self, x: Input, batch: ForwardBatch) -> Stream: ...

    @overload
    def __call__(self, x: Input, batch: ForwardBatch, *, late: bool) -> Delta: ...

    def __call__(self, x: Input, batch: ForwardBatch, *, late: bool = False) -> Delta:
        """x [tokens, hidden], plain, quantised or unnormed → [tokens, hidden]

        ``late``: the last product may be left to the next norm.
        """
        up = self.input(x, batch.adapter_rows)
        gated = isinstance(x, Unnormed) and self.input.gate is not None
        out = self.out.late if late and self._factor is None else self.out
        found = up if gated else self._activated(up)
        if self._norm is not None:
            assert not isinstance(found, Quantized | Unnormed), "quantised behind its norm"
            found = self._norm(found)
        made = out(found, batch.adapter_rows)
        if (factor := self._factor) is None:
            return made
        return changed(multiplied(made), "a learned factor", lambda rows: rows.mul_(factor))

    def _activated(self, up: Stream) -> Input:
        """The input of the last product; ``up`` may begin with gates."""
        if self._activation == "xielu":
            assert self._xielu is not None
            return self._xielu(up)
        if self._own_gate is not None:
            what, gate = self._own_gate
            return up.call(what, lambda rows, _: gate(rows), self._inner) if isinstance(up, Traced) else gate(up)
        if not self._gated:
            return up
        if self._scales is not None:
            up = changed(up, "learned factors", self._scales)
        if self._gate_scale != 1.0:
            up = changed(up, "a gate with a factor", self._scale_)
        if self._gate_cutoff is not None:
            up = changed(up, "gates that are cut off", self._cut_off_)
        if self._limit:
            up = changed(up, "gates with a limit", self._limit_)
        kind = self._kind
        assert kind is not None, "those without a kernel's are above"
        if isinstance(up, Traced):
            return up.gated(kind) if self._norm is None else up.call("gates", self._gate, up.width // 2)
        if self._norm is not None or (scheme := self.out.input_scheme) is None:
            return kernels.gated_activation(up, kind)
        return kernels.gated_activation_quantized(up, kind, scheme, self.out.input_scale)

    def _gate(self, up: torch.Tensor, _batch: object) -> torch.Tensor:
        """Gate before a norm, as a call: the program's gating instruction writes only the input of a product."""
        assert self._kind is not None
        return kernels.gated_activation(up, self._kind)

    def _scale_(self, up: torch.Tensor) -> torch.Tensor:
        up[:, : up.shape[1] // 2] *= self._gate_scale
        return up

    def _limit_(self, up: torch.Tensor) -> torch.Tensor:
        gate, up_ = up.chunk(2, dim=1)
        gate.clamp_(max=self._gate_limit)
        up_.clamp_(-self._limit, self._limit)
        return up

    def _cut_off_(self, up: torch.Tensor) -> torch.Tensor:
        assert self._gate_cutoff is not None
        gate = up[:, : up.shape[1] // 2]
        centred = gate.float() - self._mean(gate.float())
        deviation = self._mean(centred * centred).sqrt()
        gate.copy_((centred - deviation * self._gate_cutoff).relu_())
        return up

    def _mean(self, gates: torch.Tensor) -> torch.Tensor:
        """The mean of each token's gates over all workers; float32 [tokens, gates] → [tokens, 1]."""
        if self._ranks is None:
            return row_mean(gates, invariant=self._invariant)
        sums = torch.cat([gates.sum(1, keepdim=True), gates.new_full((len(gates), 1), gates.shape[1])], dim=1)
        sums = self._ranks.sum_(sums)
        return sums[:, :1] / sums[:, 1:]


def _before_silu(limit: float) -> float:
    """The gate above 0 whose silu is ``limit``. From there on silu grows, so a limit of gates is one of their silu."""
    gate = limit
    for _ in range(50):
        gate = limit * (1 + math.exp(-gate))
    return gate


def _gate_first(stored: torch.Tensor) -> torch.Tensor:
    """Reorder rows stored as up and gate."""
    return torch.cat([*reversed(stored.chunk(2))])


def _swiglu_oai(up: torch.Tensor) -> torch.Tensor:
    """[tokens, 2 * inner], gates first → [tokens, inner]; computed in float32 and rounded once."""
    gates, ups = up.float().chunk(2, dim=1)
    limit = LIMITS["swiglu_oai"]
    gates, ups = gates.clamp(max=limit), ups.clamp(-limit, limit)
    return (gates * elementwise(torch.sigmoid, ALPHA * gates) * (ups + 1)).to(up.dtype)


def _situ(up: torch.Tensor) -> torch.Tensor:
    """As :func:`_swiglu_oai`, with Kimi K3's smooth bounds."""
    gates, ups = up.float().chunk(2, dim=1)
    bound, up_bound = SITU_BOUNDS
    bounded = elementwise(torch.tanh, gates / bound) * bound
    return (bounded * elementwise(torch.sigmoid, gates) * (elementwise(torch.tanh, ups / up_bound) * up_bound)).to(
        up.dtype
    )


_OWN_GATES: Mapping[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "swiglu_oai": ("clamped gates", _swiglu_oai),
    "situ": ("bounded gates", _situ),
}
"""Names of calls of a CPU's program, and what they do, by activation."""
