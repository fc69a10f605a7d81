"""The head of a decoder: from normed hidden states to logits."""

from collections.abc import Callable
from functools import partial
from typing import overload

import torch
from torch.nn.functional import normalize

from stentor import kernels

from ..layers.linear.layer_context import LayerContext
from ..layers.linear.linear import Linear, PlainLinear, check_arranged
from ..layers.linear.packed import PackedTable
from ..layers.linear.quantized import Stream, changed
from ..layers.linear.weights import WeightMap
from ..layers.norm import Norm, make_norm
from ..model_config.spec.model import HEADS, ModelSpec


class Head:
    """A product with a matrix of its own or with the embedding, behind what :class:`HeadTransformSpec` describes."""

    def __init__(
        self, weights: WeightMap, config: ModelSpec, embedding: torch.Tensor | PackedTable, context: LayerContext
    ) -> None:
        self._product = _product(weights, config, embedding, context)
        self._transform: tuple[Linear, Norm] | None = None
        if (spec := config.head_transform) is None:
            return
        activation, part, size = spec.activation, {spec.dense: config.hidden_size}, config.hidden_size
        assert activation != "xielu"
        assert activation != "swiglu_oai"
        dense = Linear(weights, part, size, context, bias=spec.bias, dtype=context.stream)
        self._activate = partial(kernels.activate_, kind=activation)
        self._transform = dense, make_norm(weights, spec.norm, config.layers[-1].norms, config, context)

    @overload
    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    @overload
    def __call__(self, x: Stream) -> Stream: ...

    def __call__(self, x: Stream) -> Stream:
        """x [rows, hidden], behind the last norm → [rows, tokens]"""
        if self._transform is None:
            return self._product(x)
        dense, norm = self._transform
        return self._product(norm.plain(changed(dense(x), "an activation before the head", self._activate)))


def _product(
    weights: WeightMap, config: ModelSpec, embedding: torch.Tensor | PackedTable, context: LayerContext
) -> Callable[[Stream], Stream]:
    for head in HEADS[1:]:
        weights.alias(head, HEADS[0])
    weights.alias("decoder.bias", "lm_head.bias")  # ModernBERT's
    if config.tie_embeddings and config.head_bias:  # the embedding is kept a second time
        weights.share(config.embedding, "lm_head")
    if not config.tie_embeddings or config.head_bias:
        part = {"lm_head": config.vocab_size - config.unsaid}
        if config.head_norm is not None:
            check_arranged("lm_head", context)
            normed = normalize if config.head_norm == "rows" else _normed_columns
            weights.arrange(HEADS[0], (part["lm_head"], config.hidden_size), normed)
        return Linear(weights, part, config.hidden_size, context, bias=config.head_bias)
    if isinstance(embedding, PackedTable):
        return embedding
    return PlainLinear(embedding, None, invariant=context.invariant)


def _normed_columns(head: torch.Tensor) -> torch.Tensor:
    """Each column divided by its length, which is never 0."""
    lengths: torch.Tensor = torch.linalg.vector_norm(head, dim=0, dtype=torch.float32)
    return head / (lengths + 1e-7)
