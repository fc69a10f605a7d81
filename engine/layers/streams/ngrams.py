"""Embeddings of n-grams of tokens, added to several residual streams (Qwen4, DeepSeek V4.1)."""

from collections.abc import Callable
from typing import Any

import torch

from stentor import kernels
from stentor.kernels.forward import Traced

from ...model_config.spec.model import Backbone
from ...model_config.spec.streams import NGramSpec
from ..elementwise import elementwise
from ..forward_batch import ForwardBatch
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear
from ..linear.quantized import Stream
from ..linear.weights import WeightMap
from ..ngram_embedding import LastTokens, noted
from .ngram_table import NGramTable

_LEAST = 1e-6
"""The magnitude of a score is taken to be no less."""


def grouped_norm(
    weights: WeightMap, name: str, streams: int, model: Backbone, context: LayerContext, *, flat: bool = True
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A norm of each stream, with (1 + weight) of its own, or the weight itself if they are not stored ``flat``:
    [tokens, streams · hidden] → the same, float32."""
    weight = context.empty(streams * model.hidden_size, dtype=torch.float32)
    weights.add(name, weight if flat else weight.view(streams, -1))
    ones = torch.ones(model.hidden_size, device=context.place)

    def normed(x: torch.Tensor) -> torch.Tensor:
        factors = 1 + weight if flat else weight
        return kernels.rms_norm(x.float().view(-1, len(ones)), ones, model.norm_eps).view(x.shape) * factors

    return normed


class NGrams:
    """sigmoid(√(key · query)) · value of each stream, plus a convolution over these, if there is one.

    Keys and values are products with the embeddings of the n-grams that end at a token, queries are the normed streams.
    """

    def __init__(self, weights: WeightMap, layer: int, model: Backbone, spec: NGramSpec, context: LayerContext) -> None:
        self._layer, self._spec, self._hidden = layer, spec, model.hidden_size
        self._dtype, self._stream = context.dtype, context.stream
        prefix, wide = model.layer_prefix(layer), spec.streams * model.hidden_size
        self._table = NGramTable(weights, prefix, spec, context)
        own = f"{prefix}.{spec.name}"
        derived = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
        weights.pass_over(*(f"{own}.ple_embedding.{each}" for each in derived))
        self._made_of = [
            Linear.of(weights, prefix, each, context, adaptable=True) for each in spec.projections(model.hidden_size)
        ]
        self._of_key, self._of_query = (
            grouped_norm(weights, f"{own}.{name}", spec.streams, model, context, flat=spec.form.flat)
            for name in spec.form.norms
        )
        self._conv: torch.Tensor | None = None
        if spec.width:
            self._of_conv = grouped_norm(weights, f"{own}.norm_conv.weight", spec.streams, model, context)
            self._conv = context.empty(wide, spec.reach)
            weights.add(f"{own}.conv1d.weight", self._conv, shape=(wide, 1, spec.width), read=self._spread)
        self._folded: torch.Tensor | None = None
        if spec.folded:
            self._folded = context.empty(spec.vocab_size, dtype=torch.int64)
            weights.add(f"{prefix}.{spec.numbers}", self._folded)
        self._multipliers = spec.multipliers
        per_order = len(spec.sizes) // spec.before
        sizes = torch.tensor(spec.sizes, device=context.place)
        self._sizes = sizes.view(spec.before, per_order)
        self._firsts = (sizes.cumsum(0) - sizes).view(spec.before, per_order)
        self._last = LastTokens(spec.before, layer, context)

    def __call__(self, x: Stream, batch: ForwardBatch) -> Stream:
        """The streams x [tokens, streams · hidden] → the addition to them, of the same shape."""
        if isinstance(x, Traced):
            return x.call("n-grams", self._made, x.width)
        return self._made(x, batch).to(self._stream)

    def _made(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """The addition to the streams x, float32 [tokens, streams · hidden]."""
        rows, (streams, hidden) = batch.adapter_rows, (self._spec.streams, self._hidden)
        embedded = self._table(self._hashes(batch)).flatten(1)
        made = torch.cat([linear(embedded, rows) for linear in self._made_of], dim=1).float()
        key, value = made.split_with_sizes((streams * hidden, hidden), dim=1)
        product = (self._of_key(key.contiguous()) * self._of_query(x)).view(-1, hidden)
        score = kernels.linear(product, product.new_full((1, hidden), hidden**-0.5), invariant=True)
        score = score.abs().clamp_min(_LEAST).sqrt() * score.sign()
        gates = elementwise(torch.sigmoid, score).view(-1, streams, 1)
        if self._spec.silent is not None:
            assert isinstance(batch.tokens, torch.Tensor)
            gates = gates * (batch.tokens != self._spec.silent)[:, None, None]
        gated = (gates * value[:, None]).flatten(1)
        if self._conv is None:
            return gated
        return gated + self._convolved(self._of_conv(gated).to(self._dtype), batch).float()

    def _hashes(self, batch: ForwardBatch) -> torch.Tensor:
        """Rows of the tables, int64 [tokens, embeddings]."""
        tokens, eos = batch.tokens, self._spec.eos
        assert isinstance(tokens, torch.Tensor)
        if self._spec.silent is None:
            before = self._last(tokens, batch)
        else:
            before = self._last(tokens.masked_fill(tokens == self._spec.silent, -1), batch)
            before = before.masked_fill((before < 0).cumsum(1) > 0, -1)  # nothing is seen across a silent one
        if self._folded is not None:
            before = self._folded[before.where(before >= 0, eos)]
            tokens = self._folded[tokens]
        last: torch.Tensor | None = None
        found: list[torch.Tensor] = []
        mixed = tokens * self._multipliers[0]
        for order, multiplier in enumerate(self._multipliers[1:]):
            seen = before[:, order]
            ended = seen < 0 if last is None or not self._spec.ends else (seen < 0) | (last == eos)
            last = seen.masked_fill(ended, eos)
            mixed = mixed ^ (last * multiplier)
            found.append(mixed[:, None] % self._sizes[order] + self._firsts[order])
        return torch.cat(found, dim=1)

    def _convolved(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        """[tokens, streams · hidden] → the same"""
        assert self._conv is not None
        states = noted(self._convolved, x, batch)
        *_, state, _ = states.of_layer[self._layer]
        return kernels.causal_conv(x, self._conv, None, state, states.rows, activation="silu")

    def _spread(self, stored: torch.Tensor) -> torch.Tensor:
        """[channels, 1, width] → [channels, reach], with zeros for tokens that the convolution passes by."""
        wide = stored.new_zeros(len(stored), self._spec.reach)
        wide[:, :: len(self._multipliers)] = stored[:, 0]
        return wide
