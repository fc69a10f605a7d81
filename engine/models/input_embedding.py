"""What a decoder's first layer gets: embeddings of tokens, with positions, norms, adapters and media."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from stentor import kernels
from stentor.kernels.forward import Traced, TracedTokens

from ..layers.forward_batch import ForwardBatch
from ..layers.linear.adapters import AdaptedLinear, AdapterRows
from ..layers.linear.layer_context import LayerContext
from ..layers.linear.packed import PackedTable
from ..layers.linear.quantized import Stream
from ..layers.linear.weights import WeightMap
from ..layers.norm import Norm, RMSNorm, make_norm
from ..layers.scaled_sum import ScaledStream
from ..layers.sinusoids import sinusoid_table
from ..model_config.spec.model import ModelSpec


class InputEmbedding:
    """Its tables, and the stream that they begin."""

    def __init__(self, weights: WeightMap, config: ModelSpec, context: LayerContext) -> None:
        self._config, self._context = config, context
        self.words = _table(weights, config.embedding, config.vocab_size, config, context)
        if config.embedding == "embed":
            weights.alias("embed_tokens.weight", "embed.weight")  # as transformers saves them
        self._positions: torch.Tensor | PackedTable | None = None
        if config.positions:
            first, rows = config.positions_before, config.max_position
            self._positions = _table(weights, config.positions, rows, config, context)
            stored = first + rows, config.hidden_size
            weights.arrange(f"{config.positions}.weight", stored, lambda table: table[first:])
        elif config.sinusoids is not None:
            self._positions = _computed_positions(weights, config.sinusoids.first, config, context)
        self._adapted: AdaptedLinear | None = None
        if config.per_layer is None:
            self._adapted = context.adapted({config.embedding: config.hidden_size}, config.vocab_size, plain=True)
        # transformers rounds the factor to the model's dtype before multiplying
        self._scale: float = torch.tensor(config.embedding_scale, dtype=context.dtype).item()
        self._norm: Norm | None = None
        if name := config.embedding_norm_name:
            self._norm = make_norm(weights, name, config.layers[0].norms, config, context)
        elif config.embedding_norm:
            self._norm = RMSNorm(weights, None, config.hidden_size, config.norm_eps, context)
        self._sum: ScaledStream | None = None
        if config.embedding_sum:
            self._sum = ScaledStream(weights, config.embedding_sum, config.hidden_size, context)

    def __call__(self, batch: ForwardBatch, *, adds_words: bool) -> Stream:
        """The stream [tokens, hidden] before the first layer. ``adds_words``: as :meth:`adds_words` says of the
        batch."""
        stream = self._embedded(batch.tokens, batch.positions)
        if adds_words:
            stream = changed(stream, "what adapters add to embeddings", self._add_words, batch)
        if self._norm is not None:
            normed = self._norm.plain(stream)
            stream = normed.settled() if isinstance(normed, Traced) else normed
        if self._sum is not None:
            stream = self._sum(stream)
        if batch.media is not None:
            stream = changed(stream, "media in place of tokens", self._put_media, batch)
        if batch.added is not None:
            assert isinstance(stream, torch.Tensor)
            stream = stream + batch.added
        return stream

    def of(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [tokens] → their embeddings [tokens, hidden], which are what the first layer gets of them where no norm
        stands before it and no position is learned."""
        return self._rows(self.words, tokens, self._scale)

    def adds_words(self, rows: AdapterRows | None) -> bool:
        """Whether an adapter of these rows changes embeddings."""
        return rows is not None and self.adapted_in(rows.adapters)

    def adapted_in(self, slots: Iterable[int]) -> bool:
        """Whether an adapter in one of these slots changes embeddings."""
        return self._adapted is not None and any(self._adapted.get(slot) is not None for slot in slots)

    def _embedded(self, tokens: torch.Tensor | TracedTokens, positions: torch.Tensor) -> Stream:
        if isinstance(tokens, TracedTokens):
            assert isinstance(self.words, PackedTable)
            learned = self._positions.weight if isinstance(self._positions, PackedTable) else None
            return tokens.embed(self.words.weight, self._scale, learned)
        rows = self.of(tokens)
        return rows if self._positions is None else rows + self._rows(self._positions, positions)

    def _put_media(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """x [tokens, hidden] with media in place of their tokens, at the learned positions of these."""
        media = batch.media
        assert media is not None
        x = media.put(x, self._scale if self._config.scales_media else 1.0)
        if self._positions is None or media.places is None or media.embeddings is None:
            return x
        return x.index_add(0, media.places, self._rows(self._positions, batch.positions[media.places]).to(x.dtype))

    def _rows(self, table: torch.Tensor | PackedTable, numbers: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        if isinstance(table, torch.Tensor):
            return kernels.embedding(numbers, table, scale)
        return (table.rows(numbers) * scale).to(self._context.dtype)

    def _add_words(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        assert self._adapted is not None
        for slot, own in batch.adapter_rows:
            what = self._adapted.get(slot)
            for part in () if what is None else what.parts:
                low = part.down[:, batch.tokens[own]].T @ part.up.T
                x.index_add_(0, own, low.to(x.dtype), alpha=part.scale * self._scale)
        return x


def changed(x: Stream, what: str, change: Callable[[torch.Tensor, Any], torch.Tensor], batch: ForwardBatch) -> Stream:
    """``change(x, batch)`` for x [tokens, hidden]; recorded as a call, named ``what``, if x is traced."""
    if isinstance(x, Traced):
        return x.call(what, change, x.width)
    assert isinstance(x, torch.Tensor)
    return change(x, batch)


def _table(
    weights: WeightMap, part: str, rows: int, config: ModelSpec, context: LayerContext
) -> torch.Tensor | PackedTable:
    if context.packed:
        return PackedTable(weights, part, rows, config.hidden_size, context)
    table = context.empty(rows, config.hidden_size)
    weights.add(f"{part}.weight", table)
    return table


def _computed_positions(
    weights: WeightMap, first: int, config: ModelSpec, context: LayerContext
) -> torch.Tensor | PackedTable:
    """The table of sinusoidal positions, of which the first counts as ``first``."""
    rows, columns = config.max_position, config.hidden_size
    values = sinusoid_table(first, rows, columns)
    if context.packed:
        return PackedTable(weights, "", rows, columns, context, values)
    table = context.empty(rows, columns)
    return table if context.filled else table.copy_(values)
