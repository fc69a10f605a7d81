"""The feed-forward network of a layer: one for all tokens."""

import torch
from torch.nn import functional

from stentor import kernels
from stentor.kernels.forward import Traced

from ..model_config.mlp_spec import MLPSpec
from ..model_config.model_spec import TaskAdapters
from .elementwise import elementwise
from .forward_batch import ForwardBatch
from .layer_context import LayerContext
from .linear import Linear
from .quantized import Input, Stream, Unnormed
from .weights import WeightMap

_XIELU_BETA, _XIELU_EPS = 0.5, -1e-6
"""The slope at zero, and the largest input below it; checkpoints store both beside what is learned."""


class XIELU:
    """xIELU (arXiv:2411.13010): quadratic above zero, an integrated exponential below, both with learned strengths.

    p x² + x / 2 above zero, n (eˣ - 1 - x) + x / 2 below, where p and n - 1 / 2 are softplus of what is stored.
    """

    def __init__(self, weights: WeightMap, name: str, context: LayerContext) -> None:
        self._stored = tuple(context.empty(1, dtype=torch.float32) for _ in range(2))
        for which, target in zip(("alpha_p", "alpha_n"), self._stored, strict=True):
            weights.add(f"{name}.{which}", target)
        weights.pass_over(f"{name}.beta", f"{name}.eps")

    def __call__(self, x: Stream) -> Stream:
        """Elementwise. In a program it is called: it has no instruction."""
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
    ) -> None:
        """``prefix`` is that of the layer. ``summed``: where workers split the model, what each makes is added up."""
        into, out = spec.projections(hidden)
        self._gated, self._activation, self._gate_scale = spec.gated, spec.activation, spec.gate_scale
        fused = None if spec.gated or spec.activation == "xielu" else spec.activation
        dtype = context.dtype if fused else context.stream  # what is activated is rounded as the next product would
        self.input = Linear.of(
            weights, prefix, into, context, adapters=adapters, adaptable=True, activation=fused, dtype=dtype
        )
        self._down = Linear.of(
            weights, prefix, out, context, adapters=adapters, adaptable=True, dtype=context.stream, summed=summed
        )
        gated = spec.gated and spec.gate_scale == 1.0 and self._down.input_scheme is None
        if gated and spec.activation != "relu" and spec.activation != "xielu":
            self.input.gate = spec.activation
        if spec.also:
            for name in (*spec.into, spec.out):
                other = name.replace("mlp", spec.also, 1)
                weights.alias(f"{prefix}.{other}.weight", f"{prefix}.{name}.weight")
        self._xielu = XIELU(weights, f"{prefix}.{spec.act}", context) if spec.activation == "xielu" else None

    def __call__(self, x: Input, batch: ForwardBatch) -> Stream:
        """x [tokens, hidden], plain, quantised or unnormed → [tokens, hidden]"""
        up = self.input(x, batch.adapter_rows)
        gated = isinstance(x, Unnormed) and self.input.gate is not None
        return self._down(up if gated else self._activated(up), batch.adapter_rows)

    def _activated(self, up: Stream) -> Input:
        """As the last product takes it; ``up`` may begin with gates."""
        if self._activation == "xielu":
            assert self._xielu is not None
            return self._xielu(up)
        if not self._gated:
            return up
        if self._gate_scale != 1.0:
            up = self._scaled(up)
        if isinstance(up, Traced):
            return up.gated(self._activation)
        if (scheme := self._down.input_scheme) is None:
            return kernels.gated_activation(up, self._activation)
        return kernels.gated_activation_quantized(up, self._activation, scheme, self._down.input_scale)

    def _scaled(self, up: Stream) -> Stream:
        """The same with gates multiplied by their factor, in place."""
        if isinstance(up, Traced):
            return up.call("a gate with a factor", lambda rows, _: self._scale_(rows), up.width)
        return self._scale_(up)

    def _scale_(self, up: torch.Tensor) -> torch.Tensor:
        up[:, : up.shape[1] // 2] *= self._gate_scale
        return up
