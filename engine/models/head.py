"""A decoder's head: from hidden states to logits."""

from collections.abc import Iterable
from functools import partial

import torch
from torch.nn.functional import normalize

from stentor import kernels

from ..layers.linear.adapters import AdaptedLinear, AdapterRows
from ..layers.linear.layer_context import LayerContext
from ..layers.linear.linear import Linear, PlainLinear, check_arranged
from ..layers.linear.packed import PackedTable
from ..layers.linear.quantized import Stream, changed
from ..layers.linear.weights import WeightMap
from ..layers.mlp import kernel_kind
from ..layers.norm import Norm, Unnormalised, make_norm, normed_columns
from ..model_config.spec.model import HEADS, Backbone, HeadTransformSpec, ModelSpec


class HeadTransform:
    """What :class:`..model_config.spec.model.HeadTransformSpec` describes."""

    def __init__(self, weights: WeightMap, spec: HeadTransformSpec, model: Backbone, context: LayerContext) -> None:
        part, size = {spec.dense: model.hidden_size}, model.hidden_size
        self._dense = Linear(weights, part, size, context, bias=spec.bias, dtype=context.stream)
        self._activate = partial(kernels.activate_, kind=kernel_kind(spec.activation))
        self._norm = make_norm(weights, spec.norm, model.layers[-1].norms, model, context)

    def __call__(self, hidden: Stream) -> Stream:
        """[rows, hidden] → the same shape."""
        return self._norm.plain(changed(self._dense(hidden), "an activation before the head", self._activate))


class Head:
    """The last norm, what :class:`..model_config.spec.model.HeadTransformSpec` describes, and the product with the
    vocabulary, whose table may be that of the embeddings."""

    def __init__(
        self, weights: WeightMap, config: ModelSpec, context: LayerContext, words: torch.Tensor | PackedTable
    ) -> None:
        """``words``: the table of embeddings."""
        self._config = config
        self.norm: Norm | Unnormalised = Unnormalised()
        if config.final_norm:
            self.norm = make_norm(weights, config.final_norm, config.layers[-1].norms, config, context)
        self._scales: torch.Tensor | None = None
        """Factors on the logit of each token, float32 [vocabulary]."""
        if config.logit_scales:
            self._scales = context.empty(config.vocab_size, dtype=torch.float32)
            weights.add(config.logit_scales, self._scales)
        self._adapted: AdaptedLinear | None = None
        if not config.unsaid and config.head_transform is None:
            self._adapted = context.adapted({"lm_head": config.vocab_size}, config.hidden_size)
        self._product = _product(weights, config, context, words)
        self._transform: HeadTransform | None = None
        if (spec := config.head_transform) is not None:
            self._transform = HeadTransform(weights, spec, config, context)

    def product(self, hidden: Stream) -> Stream:
        """Hidden states [rows, hidden] before the last norm → [rows, tokens of the head], neither scaled nor capped."""
        return self._of(self.norm.plain(hidden))

    def logits(self, product: Stream, out: torch.Tensor | None = None) -> torch.Tensor:
        """The product as logits, without the last factors: float32 [rows, vocabulary], in ``out`` if given; -inf for
        tokens without a row in the head."""
        assert isinstance(product, torch.Tensor)
        unsaid = self._config.unsaid
        if not unsaid:
            return product.float() if out is None else out.copy_(product)
        if out is None:
            out = product.new_empty(len(product), self._config.vocab_size, dtype=torch.float32)
        out[:, :-unsaid].copy_(product)
        out[:, -unsaid:].fill_(-torch.inf)
        return out

    def of_normed(self, normed: torch.Tensor) -> torch.Tensor:
        """Finished logits of normed hidden states."""
        return self.finished(self.logits(self._of(normed)))

    def _of(self, normed: Stream) -> Stream:
        return self._product(normed if self._transform is None else self._transform(normed))

    def add_adapters_(self, logits: torch.Tensor, hidden: torch.Tensor, rows: AdapterRows) -> None:
        """Adds to logits what the rows' adapters change of the head."""
        if self._adapted is not None:
            self._adapted.add_(logits, self.norm.exact(hidden), rows)

    def adapted_in(self, slots: Iterable[int]) -> bool:
        """Whether an adapter in one of these slots changes the head."""
        return self._adapted is not None and any(self._adapted.get(slot) is not None for slot in slots)

    @property
    def finishes(self) -> bool:
        """Whether :meth:`finished` changes anything."""
        config = self._config
        return config.logits_divisor != 1.0 or bool(config.logits_softcap or config.silent or config.logit_scales)

    def finished(self, logits: torch.Tensor) -> torch.Tensor:
        """Scaled, capped and silenced in place, as the model asks."""
        if self._scales is not None:
            logits.mul_(self._scales)
        if self._config.logits_divisor != 1.0:
            logits.div_(self._config.logits_divisor)
        if cap := self._config.logits_softcap:
            logits.div_(cap).tanh_().mul_(cap)
            if unsaid := self._config.unsaid:
                logits[:, -unsaid:].fill_(-torch.inf)  # which the cap has made finite
        for first, end in self._config.silent:
            logits[:, first:end].fill_(-torch.inf)
        return logits


def _product(
    weights: WeightMap, config: ModelSpec, context: LayerContext, words: torch.Tensor | PackedTable
) -> Linear | PlainLinear | PackedTable:
    for head in HEADS[1:]:
        weights.alias(head, HEADS[0])
    weights.alias("decoder.bias", "lm_head.bias")  # ModernBERT's
    if config.tie_embeddings and config.head_bias:  # the embedding is kept a second time
        weights.share(config.embedding, "lm_head")
    if not config.tie_embeddings or config.head_bias:
        part = {"lm_head": config.vocab_size - config.unsaid}
        _arrange(weights, config, context)
        return Linear(weights, part, config.hidden_size, context, bias=config.head_bias)
    return words if isinstance(words, PackedTable) else PlainLinear(words, None, invariant=context.invariant)


def _arrange(weights: WeightMap, config: ModelSpec, context: LayerContext) -> None:
    """Divide the stored head's rows or columns by their lengths, or leave out rows that stand for no token, if the
    model asks for it. Raises :class:`..layers.linear.weights.WeightError` if the head is quantised."""
    unread = config.unsaid if config.padded_head else 0
    if config.head_norm is None and not unread:
        return
    check_arranged("lm_head", context)
    used = config.vocab_size - config.unsaid

    def arrange(head: torch.Tensor) -> torch.Tensor:
        head = head[:used]
        if config.head_norm is None:
            return head
        return normalize(head) if config.head_norm == "rows" else normed_columns(head)

    weights.arrange(HEADS[0], (used + unread, config.hidden_size), arrange)
