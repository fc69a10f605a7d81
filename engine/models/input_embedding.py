"""What the first layer gets: embeddings of tokens, with positions, norms, adapters and media."""

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
from ..layers.ngram_embedding import NGramEmbedding
from ..layers.norm import Norm, RMSNorm, make_norm
from ..layers.scaled_sum import ScaledStream
from ..layers.sinusoids import sinusoid_angles, sinusoid_table
from ..model_config.spec.model import Backbone, ModelSpec
from ..model_config.spec.token_input import TokenInputSpec


class InputEmbedding:
    """Tables of tokens and positions, and the stream that they begin: see
    :class:`..model_config.spec.token_input.TokenInputSpec`."""

    def __init__(
        self,
        weights: WeightMap,
        words: torch.Tensor | PackedTable,
        spec: TokenInputSpec,
        model: Backbone,
        context: LayerContext,
        *,
        adapted: AdaptedLinear | None = None,
        scales_media: bool = False,
    ) -> None:
        """``words``: :func:`word_table`, which several may share. ``adapted``: what adapters add to it."""
        self.words, self._adapted, self._context = words, adapted, context
        self._positions = _position_table(weights, spec, model, context)
        # transformers rounds the factor to the model's dtype before multiplying
        self._scale: float = torch.tensor(spec.scale, dtype=context.stream).item()
        self._media_scale = self._scale if scales_media else 1.0
        self._norm_first = spec.norm_first
        self._apart: tuple[int, torch.Tensor] | None = None
        if spec.apart is not None:
            token, name = spec.apart
            own = context.zeros(model.hidden_size).to(context.stream)
            self._apart = token, own
            weights.offer(name, own)  # both stacks of an encoder-decoder may have it
        self._norm: Norm | None = None
        if spec.norm:
            self._norm = make_norm(weights, spec.norm, model.layers[0].norms, model, context)
        elif spec.norm is not None:
            self._norm = RMSNorm(weights, None, model.hidden_size, model.norm_eps, context)
        self._ngrams = None if spec.ngrams is None else NGramEmbedding(weights, spec.ngrams, model, context)
        self._sum: ScaledStream | None = None
        if spec.sum:
            self._sum = ScaledStream(weights, spec.sum, model.hidden_size, context)

    def __call__(
        self,
        batch: ForwardBatch,
        *,
        adds_words: bool = False,
        given: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> Stream:
        """The stream [tokens, hidden] before the first layer. ``adds_words``: as :meth:`adds_words` says of the
        batch. ``given``: places of tokens, int64 [n], with what stands for their embeddings, [n, hidden]."""
        stream = self._embedded(batch.tokens, batch.positions, given)
        if self._ngrams is not None:
            stream = changed(stream, "embeddings of n-grams", self._ngrams, batch)
        if adds_words:
            stream = changed(stream, "what adapters add to embeddings", self._add_words, batch)
        if not self._norm_first:
            stream = self._normed(stream)
        if batch.media is not None:
            stream = changed(stream, "media in place of tokens", self._put_media, batch)
        if batch.added is not None:
            assert isinstance(stream, torch.Tensor)
            stream = stream + batch.added
        return stream

    def given(self, rows: torch.Tensor) -> torch.Tensor:
        """Embeddings [tokens, hidden] that a prompt brings, as what stands in place of its tokens.

        They are what ``get_input_embeddings()`` of the model in transformers returns, which scales them unless media
        are scaled too.
        """
        stream = self._normed(rows.to(self._context.stream))
        assert isinstance(stream, torch.Tensor)
        return stream

    def _normed(self, stream: Stream) -> Stream:
        if self._norm is not None:
            normed = self._norm.plain(stream)
            stream = normed.settled() if isinstance(normed, Traced) else normed
        return stream if self._sum is None else self._sum(stream)

    def of(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [tokens] → their embeddings [tokens, hidden], which are what the first layer gets of them where no norm
        stands before it and no position is learned."""
        rows = self._rows(self.words, tokens, self._scale)
        if self._apart is None:
            return rows
        token, own = self._apart
        return torch.where((tokens == token)[:, None], own, rows)

    def adds_words(self, rows: AdapterRows | None) -> bool:
        """Whether an adapter of these rows changes embeddings."""
        return rows is not None and self.adapted_in(rows.adapters)

    def adapted_in(self, slots: Iterable[int]) -> bool:
        """Whether an adapter in one of these slots changes embeddings."""
        return self._adapted is not None and any(self._adapted.get(slot) is not None for slot in slots)

    def _embedded(
        self,
        tokens: torch.Tensor | TracedTokens,
        positions: torch.Tensor,
        given: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> Stream:
        if isinstance(tokens, TracedTokens):
            assert not self._norm_first, "encoder-decoders are not recorded"
            assert self._apart is None, "encoder-decoders are not recorded"
            assert isinstance(self.words, PackedTable)
            learned = self._positions.weight if isinstance(self._positions, PackedTable) else None
            return tokens.embed(self.words.weight, self._scale, learned)
        rows = self.of(tokens)
        if given is not None:
            places, embeddings = given
            rows = rows.index_copy(0, places, embeddings.to(rows.dtype))
        if self._norm_first:
            normed = self._normed(rows)
            assert isinstance(normed, torch.Tensor)
            rows = normed
        return rows if self._positions is None else rows + self._rows(self._positions, positions)

    def _put_media(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """x [tokens, hidden] with media in place of their tokens, at the learned positions of these."""
        media = batch.media
        assert media is not None
        x = media.put(x, self._media_scale)
        if self._positions is None or media.places is None or media.embeddings is None:
            return x
        return x.index_add(0, media.places, self._rows(self._positions, batch.positions[media.places]).to(x.dtype))

    def _rows(self, table: torch.Tensor | PackedTable, numbers: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        if isinstance(table, torch.Tensor):
            return kernels.embedding(numbers, table, scale)
        return (table.rows(numbers) * scale).to(self._context.stream)

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


def word_table(weights: WeightMap, name: str, model: Backbone, context: LayerContext) -> torch.Tensor | PackedTable:
    """The embeddings of tokens, [vocabulary, hidden], stored as ``name``."""
    if context.packed:
        return PackedTable(weights, name, model.vocab_size, model.hidden_size, context)
    table = context.empty(model.vocab_size, model.hidden_size, dtype=context.stream)
    weights.add(f"{name}.weight", table)
    return table


def decoder_input(weights: WeightMap, config: ModelSpec, context: LayerContext) -> InputEmbedding:
    """Of a decoder alone, whose embeddings adapters may change."""
    words = word_table(weights, config.embedding, config, context)
    if config.embedding == "embed":
        weights.alias("embed_tokens.weight", "embed.weight")  # as transformers saves them
    if (ngrams := config.input.ngrams) is not None:
        weights.alias(f"{ngrams.name}.word_embeddings.weight", f"{config.embedding}.weight")
    adapted: AdaptedLinear | None = None
    if config.per_layer is None:
        adapted = context.adapted({config.embedding: config.hidden_size}, config.vocab_size, plain=True)
    return InputEmbedding(
        weights, words, config.input, config, context, adapted=adapted, scales_media=config.scales_media
    )


def _position_table(
    weights: WeightMap, spec: TokenInputSpec, model: Backbone, context: LayerContext
) -> torch.Tensor | PackedTable | None:
    """[positions, hidden] from the first on; None if nothing is added by position."""
    columns, first = model.hidden_size, spec.first
    packed = context.packed and not context.float32_stream
    if spec.positions:
        stored = spec.table_rows(model.max_position)
        weights.arrange(f"{spec.positions}.weight", (stored, columns), lambda table: table[first:])
        if packed:
            return PackedTable(weights, spec.positions, stored - first, columns, context)
        table = context.empty(stored - first, columns, dtype=context.stream)
        weights.add(f"{spec.positions}.weight", table)
        return table
    if not spec.sinusoids:
        return None
    rows = model.max_position
    if packed:
        return PackedTable(weights, "", rows, columns, context, _sinusoids(spec, rows, columns))
    table = context.empty(rows, columns, dtype=context.stream)
    return table if context.filled or context.shapes_only else table.copy_(_sinusoids(spec, rows, columns))


def _sinusoids(spec: TokenInputSpec, rows: int, columns: int) -> torch.Tensor:
    """float32 [rows, columns]"""
    if spec.sinusoids == "closed":
        return sinusoid_table(spec.first, rows, columns) * spec.sinusoid_scale
    angles = sinusoid_angles(torch.arange(spec.first, spec.first + rows), columns)
    return torch.cat([angles.sin(), angles.cos()], 1) * spec.sinusoid_scale
