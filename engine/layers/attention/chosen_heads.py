"""What stands between the products of an attention and its heads: heads that are chosen (JetMoe) or subtracted
(Differential Transformer)."""

from typing import Any

import torch

from stentor import kernels
from stentor.kernels.forward import Traced

from ...model_config.spec.attention import AttentionSpec
from ...model_config.spec.attention_parts import ChosenHeadsSpec, DifferenceSpec
from ..forward_batch import ForwardBatch
from ..linear.layer_context import LayerContext
from ..linear.quantized import Stream
from ..linear.weights import WeightMap


class ChosenHeads:
    """Queries of the experts that a token chooses, and their outputs in the places of these (JetMoe,
    arXiv:2404.07413).

    Products with the matrices of all experts are made, so that nothing waits for the choice.
    """

    def __init__(self, spec: AttentionSpec, chosen: ChosenHeadsSpec) -> None:
        self._spec, self._chosen = spec, chosen
        self._rule = kernels.Router(top_k=chosen.top_k, renormalize=True)

    def made(self, products: Stream, _batch: ForwardBatch) -> Stream:
        """Products [tokens, queries of all experts, keys, values, scores of experts] → [tokens, queries, keys,
        values]"""
        if isinstance(products, Traced):
            return products.call("queries of chosen experts", self._taken, self._spec.q_size + 2 * self._spec.kv_size)
        return self._taken(products)

    def found(self, heads: Stream, products: Stream) -> Stream:
        """Outputs of heads [tokens, heads · head_dim] → [tokens, outputs of all experts], 0 for those not chosen;
        ``products`` are those that :meth:`made` took."""
        width = self._chosen.experts * self._spec.kv_size
        if isinstance(heads, Traced):
            assert isinstance(products, Traced)
            return heads.call("outputs of chosen experts", self._given, width, products)
        assert isinstance(products, torch.Tensor)
        return self._given(heads, products)

    def _taken(self, products: torch.Tensor, _batch: Any = None) -> torch.Tensor:
        spec, experts = self._spec, self._chosen.experts
        chosen = self._routing(products).experts.long()
        queries, rest, _ = products.split_with_sizes((experts * spec.kv_size, 2 * spec.kv_size, experts), dim=1)
        queries = queries.view(-1, experts, spec.kv_size)
        queries = queries.gather(1, chosen[:, :, None].expand(-1, -1, spec.kv_size))
        # the heads of one key, one of each chosen expert, lie side by side
        by_key = queries.view(-1, self._chosen.top_k, spec.kv_heads, spec.head_dim).transpose(1, 2)
        return torch.cat((by_key.flatten(1), rest), dim=1)

    def _given(self, heads: torch.Tensor, products: torch.Tensor, _batch: Any = None) -> torch.Tensor:
        spec, routing = self._spec, self._routing(products)
        by_expert = heads.view(-1, spec.kv_heads, self._chosen.top_k, spec.head_dim).transpose(1, 2).flatten(2)
        weighted = by_expert * routing.weights[:, :, None].to(heads.dtype)
        out = heads.new_zeros(len(heads), self._chosen.experts, spec.kv_size)
        return out.scatter_(1, routing.experts.long()[:, :, None].expand_as(weighted), weighted).flatten(1)

    def _routing(self, products: torch.Tensor) -> kernels.Routing:
        return kernels.route(products[:, -self._chosen.experts :].float().contiguous(), self._rule)


class Difference:
    """Outputs of half of the heads less a learned multiple of those of the others, each over the values of two heads
    (Differential Transformer, arXiv:2410.05258; DiffLlama).

    Each key is attended to twice, with the values of either half of the heads.
    """

    def __init__(
        self,
        weights: WeightMap,
        prefix: str,
        spec: AttentionSpec,
        difference: DifferenceSpec,
        eps: float,
        context: LayerContext,
    ) -> None:
        """``prefix``: of the attention."""
        self._spec, self._first, self._eps = spec, difference.first, eps
        self._vectors = context.empty(4, spec.head_dim, dtype=torch.float32)
        for name, vector in zip(difference.names, self._vectors, strict=True):
            weights.add(f"{prefix}.{name}", vector)

    def made(self, products: Stream, _batch: ForwardBatch) -> Stream:
        """Products [tokens, queries, keys, values] → the same of twice as many heads"""
        if isinstance(products, Traced):
            return products.call("heads of two values", self._doubled, 2 * products.width)
        return self._doubled(products)

    def found(self, heads: Stream, _products: Stream) -> Stream:
        """Outputs of heads [tokens, heads · head_dim] → [tokens, heads / 2 · head_dim]"""
        if isinstance(heads, Traced):
            return heads.call("a difference of heads", self._subtracted, heads.width // 2)
        return self._subtracted(heads).to(heads.dtype)

    def _doubled(self, products: torch.Tensor, _batch: Any = None) -> torch.Tensor:
        spec, keys = self._spec, self._spec.kv_heads // 2
        sizes = (spec.q_size // 2, spec.kv_size // 2, spec.kv_size // 2)
        queries, key, value = products.split_with_sizes(sizes, dim=1)
        queries, key = queries.reshape(len(products), keys, -1), key.reshape(len(products), keys, -1)
        halves = value.view(len(products), 2, keys // 2, spec.head_dim).transpose(1, 2)  # [tokens, key / 2, 2, dim]
        twice = [part.unsqueeze(2).expand(-1, -1, 2, -1).flatten(1) for part in (queries, key)]
        return torch.cat((*twice, halves.repeat(1, 2, 1, 1).flatten(1)), dim=1)

    def _subtracted(self, heads: torch.Tensor, _batch: Any = None) -> torch.Tensor:
        """Computed in float32."""
        spec, (of_query, of_key, of_query_2, of_key_2) = self._spec, self._vectors
        factor = (of_query * of_key).sum().exp() - (of_query_2 * of_key_2).sum().exp() + self._first
        by_key = heads.float().view(len(heads), spec.kv_heads // 2, 2, -1, spec.head_dim)
        both = by_key.transpose(2, 3).flatten(3).flatten(1, 2)  # [tokens, heads / 2, 2 · head_dim]
        one, other = both.chunk(2, dim=1)
        made = torch.nn.functional.rms_norm(one - factor * other, (2 * spec.head_dim,), eps=self._eps)
        return (made * (1 - self._first)).flatten(1)
