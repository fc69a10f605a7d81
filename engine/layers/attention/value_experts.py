"""Values that are made by matrices that each token chooses (K2 Horizon)."""

from typing import Any

import torch

from stentor import kernels
from stentor.kernels.forward import Traced

from ...model_config.spec.attention import AttentionSpec
from ...model_config.spec.attention_parts import ValueExpertsSpec
from ..elementwise import elementwise
from ..forward_batch import ForwardBatch
from ..linear.layer_context import LayerContext
from ..linear.quantized import Stream
from ..linear.weights import WeightMap


class ValueExperts:
    """Between the products and the heads of a layer. Products with all matrices are made, so that nothing waits for the
    choice."""

    def __init__(
        self, weights: WeightMap, prefix: str, spec: AttentionSpec, experts: ValueExpertsSpec, context: LayerContext
    ) -> None:
        """``prefix``: of the attention."""
        self._experts, self._dtype, self._kv = experts.experts, context.dtype, spec.kv_size
        self._first = spec.q_size + spec.gates + spec.kv_size
        self._rule = kernels.Router(
            top_k=experts.top_k, score=experts.score, renormalize=experts.top_k > 1, scale=experts.scale
        )
        self._correction: torch.Tensor | None = None
        if experts.correction:
            self._correction = context.empty(experts.experts, dtype=torch.float32)
            weights.add(f"{prefix}.{experts.router}.bias", self._correction)

    def made(self, products: Stream, _batch: ForwardBatch) -> Stream:
        """Products [tokens, queries, keys, outputs of all matrices, scores] → [tokens, queries, keys, values]"""
        if isinstance(products, Traced):
            return products.call("values of chosen experts", self._made, self._first + self._kv)
        return self._made(products)

    def found(self, heads: Stream, _products: Stream) -> Stream:
        """Outputs of heads, as they are."""
        return heads

    def _made(self, products: torch.Tensor, _batch: Any = None) -> torch.Tensor:
        """Values are summed in float32, in the order of the matrices' numbers."""
        sizes = (self._first, self._experts * self._kv, self._experts)
        others, outputs, scores = products.to(self._dtype).split_with_sizes(sizes, dim=1)
        routing = kernels.route(scores.float().contiguous(), self._rule, self._correction)
        weights = scores.new_zeros(scores.shape, dtype=torch.float32)
        weights.scatter_(1, routing.experts.long(), routing.weights)
        opened = elementwise(torch.nn.functional.silu, outputs.float()).view(len(outputs), self._experts, self._kv)
        values = opened[:, 0] * weights[:, :1]
        for number in range(1, self._experts):
            values = values + opened[:, number] * weights[:, number : number + 1]
        return torch.cat((others, values.to(others.dtype)), dim=1)
