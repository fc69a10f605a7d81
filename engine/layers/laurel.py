"""LAuReL: a low-rank product beside attention, whose outputs are combined (Gemma 3n)."""

from typing import Any

import torch

from stentor.kernels.forward import Traced

from ..model_config.spec.model import Backbone
from ..model_config.spec.streams import LaurelSpec
from .forward_batch import ForwardBatch
from .linear.layer_context import LayerContext
from .linear.linear import Linear
from .linear.quantized import Input, Stream
from .linear.weights import WeightMap
from .norm import RMSNorm


class Laurel:
    """x + norm(right(left(x)))"""

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, spec: LaurelSpec, context: LayerContext
    ) -> None:
        prefix, self._hidden = model.layer_prefix(layer), model.hidden_size
        self._dtype, self._stream = context.dtype, context.stream
        self._left, self._right = (
            Linear.of(weights, prefix, each, context, adaptable=True, dtype=context.dtype)
            for each in spec.projections(model.hidden_size)
        )
        name = f"{prefix}.{spec.name}.post_laurel_norm"
        self._norm = RMSNorm(weights, name, model.hidden_size, model.norm_eps, context)

    def __call__(self, x: Input, batch: ForwardBatch) -> Stream:
        """x [tokens, hidden], plain → the same"""
        if isinstance(x, Traced):
            return x.call("LAuReL", self._made, self._hidden)
        assert isinstance(x, torch.Tensor)
        return self._made(x, batch).to(self._stream)

    def _made(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        """float32 or the stream's dtype → float32"""
        rows = batch.adapter_rows
        return x.float() + self._norm.exact(self._right(self._left(x.to(self._dtype), rows), rows))
