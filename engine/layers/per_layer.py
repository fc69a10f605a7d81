"""Per-layer inputs of tokens (Gemma 3n, Gemma 4, EmbeddingGemma 2), and their use in a layer."""

from collections.abc import Callable
from typing import Any

import torch

from stentor.kernels.forward import Traced

from ..model_config.spec.layer import PerLayerSpec
from ..model_config.spec.model import Backbone
from ..model_config.spec.projection import Projection
from .elementwise import elementwise
from .forward_batch import ForwardBatch, MediaBatch
from .linear.layer_context import LayerContext
from .linear.linear import Linear, PlainLinear, plain_weight
from .linear.quantized import Stream
from .linear.weights import WeightMap
from .norm import RMSNorm


class PerLayerInputs:
    """For each layer: (norm(projection of the token's embedding) + the layer's own embedding of it) / √2; without such
    embeddings, the norm alone."""

    def __init__(
        self,
        weights: WeightMap,
        spec: PerLayerSpec,
        model: Backbone,
        embed: Callable[[torch.Tensor], torch.Tensor],
        context: LayerContext,
    ) -> None:
        """``embed``: ids → input of the first layer."""
        self._embed, self._dim, self._invariant = embed, spec.dim, context.invariant
        self._named = spec.vocab_size if spec.vocab_size < model.vocab_size else 0
        columns = spec.dim * len(model.layers)
        self._table: torch.Tensor | None = None
        if spec.vocab_size:
            self._table = context.empty(spec.vocab_size, columns)
            weights.add(f"{spec.name}.embed_tokens_per_layer.weight", self._table)
        projection = Projection((("per_layer_model_projection", columns),), model.hidden_size, False)
        self._projection = plain_weight(weights, spec.name, projection, context)
        self._norm = RMSNorm(weights, f"{spec.name}.per_layer_projection_norm", spec.dim, model.norm_eps, context)
        self._media_token = spec.media_token
        self._scale = torch.tensor(spec.dim**0.5, dtype=context.dtype).item()
        self._projected_scale = model.hidden_size**-0.5

    def of(self, layer: int, tokens: torch.Tensor, media: MediaBatch | None = None) -> torch.Tensor:
        """int64 [tokens] → [tokens, dim]; media embeddings are projected, and use the embedding of a special token.

        Tokens behind those that have an embedding for every layer use that of the first token.
        """
        columns = slice(layer * self._dim, (layer + 1) * self._dim)
        product = PlainLinear(self._projection[columns], None, invariant=self._invariant)
        embedded = self._embed(tokens)
        if media is not None:
            embedded, tokens = media.put(embedded), media.named(tokens, self._media_token)
        projected: torch.Tensor = self._norm.plain(product(embedded) * self._projected_scale)
        if self._table is None:
            return projected
        if self._named:
            tokens = tokens.where(tokens < self._named, 0)
        inputs: torch.Tensor = (projected + self._table[:, columns][tokens] * self._scale) * 2**-0.5
        return inputs


class PerLayer:
    """norm(projection(gelu(gate(x)) · the layer's input)), to be added to the stream x."""

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, inputs: PerLayerInputs, context: LayerContext
    ) -> None:
        assert model.per_layer is not None
        hidden, dim = model.hidden_size, model.per_layer.dim
        prefix = f"{model.layer_prefix(layer)}.{model.per_layer.block}"
        self._layer, self._inputs, self._hidden = layer, inputs, hidden
        self._dtype, self._stream = context.dtype, context.stream
        gate, out = {f"{prefix}per_layer_input_gate": dim}, {f"{prefix}per_layer_projection": hidden}
        self._gate = Linear(weights, gate, hidden, context, adapted=context.adapted(gate, hidden))
        self._out = Linear(weights, out, dim, context, adapted=context.adapted(out, dim))
        self._norm = RMSNorm(weights, f"{prefix}post_per_layer_input_norm", hidden, model.norm_eps, context)

    def __call__(self, x: Stream, batch: ForwardBatch) -> Stream:
        """x [tokens, hidden] → [tokens, hidden]"""
        if isinstance(x, Traced):
            return x.call("a layer's own inputs", self.made, self._hidden)
        return self.made(x, batch).to(self._stream)

    def made(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        """The layer's addition to the stream x [tokens, hidden], float32."""
        rows = batch.adapter_rows
        gate = elementwise(_gelu, self._gate(x.to(self._dtype), rows))
        return self._norm.exact(self._out(gate * self._inputs.of(self._layer, batch.tokens, batch.media), rows))


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


def scaled_(stream: Stream, factor: torch.Tensor | float) -> Stream:
    """Multiply the stream in place by a number, which may be learned, float32 [1]."""
    if isinstance(stream, Traced):
        return stream.add_(stream * (float(factor) - 1))
    return stream.mul_(factor.to(stream.dtype) if isinstance(factor, torch.Tensor) else factor)
