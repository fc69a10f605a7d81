"""Queries that are made of a latent of the layer's input (multi-matrix factorisation attention, arXiv:2412.19255)."""

from typing import Any

import torch

from stentor.kernels.forward import Traced

from ...model_config.spec.attention import AttentionSpec
from ...model_config.spec.attention_parts import QueryLatentSpec
from ...model_config.spec.model import Backbone
from ..forward_batch import ForwardBatch
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear
from ..linear.quantized import Stream
from ..linear.weights import WeightMap
from ..norm import RMSNorm


class QueriesOfLatent:
    """Between the products and the heads of a layer: the norm of the latent, and its product with the queries'
    matrix."""

    def __init__(
        self,
        weights: WeightMap,
        at: str,
        model: Backbone,
        spec: AttentionSpec,
        latent: QueryLatentSpec,
        context: LayerContext,
    ) -> None:
        """``at``: prefix of the layer."""
        self._dtype = context.dtype
        self._rest = 2 * spec.kv_size
        self._width = spec.q_size + self._rest
        queries = spec.projections(model.hidden_size)[2]
        self._queries = Linear.of(weights, at, queries, context, adaptable=True, dtype=context.dtype)
        norm = f"{at}.{spec.name}.{latent.norm}"
        self._norm = RMSNorm(
            weights, norm, latent.size, model.norm_eps, context, plus_one=model.norm_plus_one, before=self._queries
        )

    def made(self, products: Stream, batch: ForwardBatch) -> Stream:
        """Products [tokens, latent, keys, values] → [tokens, queries, keys, values]"""
        if isinstance(products, Traced):
            return products.call("queries of a latent", self._made, self._width)
        return self._made(products, batch)

    def found(self, heads: Stream, _products: Stream) -> Stream:
        """Outputs of heads, as they are."""
        return heads

    def _made(self, products: torch.Tensor, batch: Any) -> torch.Tensor:
        """As :meth:`made`; ``batch`` has the adapters of rows."""
        products = products.to(self._dtype)
        latent, rest = products.split_with_sizes((products.shape[1] - self._rest, self._rest), dim=1)
        queries = self._queries(self._norm(latent.contiguous()), batch.adapter_rows)
        assert isinstance(queries, torch.Tensor)
        return torch.cat((queries, rest), dim=1)
