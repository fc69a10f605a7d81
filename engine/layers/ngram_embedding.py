"""The last tokens of each row, and embeddings of the n-grams that they form (LongCat Flash Lite)."""

from collections.abc import Callable
from typing import Any

import torch

from stentor import kernels

from ..model_config.spec.model import Backbone
from ..model_config.spec.streams import DIGITS
from ..model_config.spec.token_input import NGramInputSpec
from .forward_batch import ForwardBatch, StateBatch
from .linear.layer_context import LayerContext
from .linear.weights import WeightMap


class LastTokens:
    """The tokens before each token of a pass.

    They are the last state of a layer, that of a convolution which returns them one by one: so a state's copies, its
    reuse for other prompts and its repetition behind rejected drafts are those of all recurrent layers.
    """

    def __init__(self, before: int, layer: int, context: LayerContext) -> None:
        self._count, self._layer, self._dtype = before, layer, context.dtype
        shifts = torch.eye(before + 1, dtype=context.dtype, device=context.place)[:-1].flip(0)
        self._shifts = shifts.repeat_interleave(DIGITS, 0).contiguous()
        self._places = 256 ** torch.arange(DIGITS, device=context.place)

    def __call__(self, tokens: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """int64 tokens [tokens] of a batch, or -1 → [tokens, before]: the last one, that before it, and so on; -1
        before the first."""
        # nothing is 0 in a state, so that a token is one more than its number
        digits = ((tokens[:, None] + 1) // self._places % 256).to(self._dtype)
        before = self._before(digits.repeat(1, self._count), batch).long()
        return (before.view(-1, self._count, DIGITS) * self._places).sum(2) - 1

    def _before(self, digits: torch.Tensor, batch: Any) -> torch.Tensor:
        """Digits of tokens, once for each token that is seen before → those of the last one, of that before it, and so
        on; zeros before the first."""
        states = noted(self._before, digits, batch)
        *_, state = states.of_layer[self._layer]
        return kernels.causal_conv(digits, self._shifts, None, state, states.rows, activation="none")


def noted(mix: Callable[[torch.Tensor, ForwardBatch], torch.Tensor], parts: torch.Tensor, batch: Any) -> StateBatch:
    """The batch's states, which record the inputs of what changes them."""
    states: StateBatch = batch.states
    states.note(mix, parts)
    return states


class NGramEmbedding:
    """The mean of a token's embedding and of projected embeddings of the n-grams that end at it."""

    def __init__(self, weights: WeightMap, spec: NGramInputSpec, model: Backbone, context: LayerContext) -> None:
        self._spec, self._invariant, self._dtype, self._stream = spec, context.invariant, context.dtype, context.stream
        self._last = LastTokens(spec.before, 0, context)
        sizes, name = spec.sizes, spec.name
        self._table = context.empty(sum(sizes), spec.dim(model.hidden_size))
        self._out = context.empty(spec.count, model.hidden_size, spec.dim(model.hidden_size))
        for number, part in enumerate(self._table.split_with_sizes(list(sizes))):
            weights.add(f"{name}.embedders.{number}.weight", part)
            weights.add(f"{name}.post_projs.{number}.weight", self._out[number])
        self._powers = torch.tensor(spec.powers, device=context.place)
        self._sizes = torch.tensor(sizes, device=context.place)
        self._firsts = self._sizes.cumsum(0) - self._sizes

    def __call__(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """Embeddings of tokens x [tokens, hidden] → the mean, of the same shape."""
        assert isinstance(batch.tokens, torch.Tensor)
        hashes = hashed(batch.tokens, self._last(batch.tokens, batch), self._powers, self._sizes, self._spec.eos)
        embedded = self._table[hashes + self._firsts]  # [tokens, embeddings, dim]
        found = x.float()
        for number, matrix in enumerate(self._out):
            made = kernels.linear(embedded[:, number].contiguous(), matrix, invariant=self._invariant)
            found = found + made.float()
        return (found / (1 + self._spec.count)).to(x.dtype)


def hashed(
    tokens: torch.Tensor, before: torch.Tensor, powers: torch.Tensor, sizes: torch.Tensor, eos: int
) -> torch.Tensor:
    """(token + Σ over tokens before it of power · token) modulo the size, of each table, int64 [tokens, tables].

    Args:
        tokens: int64 [tokens]; ``before``: those before each, the last first, int64 [tokens, before]; -1: none.
        powers: int64 [tables, before]: of a token before; 0 if the table's n-grams do not reach it.
        sizes: int64 [tables]: rows.
        eos: a token that ends a text: it, and those before it, are no part of n-grams that end behind it.
    """
    seen = ((before >= 0) & (before != eos)).long().cumprod(1).bool()
    terms = before.where(seen, 0)[:, None] * powers % sizes[:, None]  # [tokens, tables, before]
    return (tokens[:, None] + terms.sum(2)) % sizes
