"""Encoders of whole texts: BERT, ELECTRA, ERNIE, RoBERTa, DistilBERT, MPNet, ModernBERT, NomicBERT, GTE, Jina's, and
those of CLIP and SigLIP.

They differ in their :class:`..model_config.spec.encoder.EncoderConfig`, not in code. Texts are concatenated without
padding.
"""

from functools import partial

import torch
from msgspec.structs import replace

from stentor import kernels

from ..layers.forward_batch import ForwardBatch
from ..layers.layer import Layer
from ..layers.linear.adapters import AdapterRows
from ..layers.linear.layer_context import LayerContext
from ..layers.linear.linear import Linear
from ..layers.linear.packed import PackedTable
from ..layers.linear.quantized import Delta, Stream
from ..layers.linear.task_adapters import AdaptedTable
from ..layers.linear.weights import WeightMap
from ..layers.norm import LayerNorm, joined
from ..layers.rotary import RotaryTables, distance_buckets
from ..model_config.spec.encoder import EncoderConfig
from .encoder_names import parts_of


class Encoder:
    """Token ids in, hidden states out; stateless between batches."""

    def __init__(self, config: EncoderConfig, context: LayerContext, max_model_len: int) -> None:
        """``max_model_len``: the longest text, for rotary tables."""
        self.config = config
        self.weights = WeightMap(context.part)
        self.context = context
        self._context = context = replace(context, float32_stream=context.packed)
        if context.adapters is not None:
            context.adapters.begin(config, context.part)
            context.adapters.parts_of = partial(parts_of, config.family)
        hidden, embedded = config.hidden_size, config.embedding_size or config.hidden_size
        self._embedded = embedded
        word = "embeddings.word"
        self._words = (
            PackedTable(self.weights, word, config.vocab_size, embedded, context)
            if context.packed
            else self._table(word, config.vocab_size)
        )
        rows = config.max_position + config.position_offset
        self._positions = self._table("embeddings.position", rows) if config.learned_positions else None
        self._types = self._table("embeddings.token_type", config.token_types) if config.token_types else None
        self._task_types = self._table("embeddings.task_type", config.task_types) if config.task_types else None
        self._adapted_words = self._adapted_types = None
        if config.adapters is not None:
            sizes = hidden, config.adapters, context
            self._adapted_words = AdaptedTable(self.weights, word, config.vocab_size, *sizes)
            if config.token_types:
                self._adapted_types = AdaptedTable(self.weights, "embeddings.token_type", config.token_types, *sizes)
        self._embedding_norm = self._norm("embeddings.norm", embedded) if config.embedding_norm else None
        self._project: Linear | None = None
        if config.embedding_size:
            parts = {"embeddings.project": hidden}
            self._project = Linear(self.weights, parts, embedded, context, bias=True, dtype=context.stream)
        self._relative = (
            self._table("relative", config.relative_buckets, config.layers[0].attention.heads)
            if config.relative_buckets
            else None
        )
        rotary = RotaryTables(config.max_position, max_model_len, context)
        self._layers = [Layer(self.weights, layer, config, rotary, context) for layer in range(len(config.layers))]
        self._final_norm = self._norm("final_norm") if config.pre_norm else None
        self._projection: Linear | None = None
        if config.projection:
            parts = {"projection": config.projection}
            bias, dtype = config.projection_bias, context.stream
            self._projection = Linear(self.weights, parts, hidden, context, bias=bias, dtype=dtype)

    def _table(self, name: str, rows: int, columns: int | None = None) -> torch.Tensor:
        table = self._context.empty(rows, columns or self._embedded, dtype=self._context.stream)
        self.weights.add(f"{name}.weight", table)
        return table

    def _norm(self, name: str, size: int = 0) -> LayerNorm:
        config, size = self.config, size or self.config.hidden_size
        return LayerNorm(self.weights, name, size, config.norm_eps, self._context, bias=config.norm_bias)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Whole texts → hidden states [tokens, hidden]. Media replace the embeddings of their tokens, or the hidden
        states."""
        tokens, positions, texts, token_types = batch.tokens, batch.positions, batch.texts, batch.token_types
        assert isinstance(tokens, torch.Tensor)
        assert texts is not None
        varlen, words = texts.varlen, self._words
        x = words.rows(tokens) if isinstance(words, PackedTable) else kernels.embedding(tokens, words)
        if batch.media is not None and self.config.embeds_media:
            x = batch.media.put(x)
        if self._positions is not None:
            x = x + self._positions[positions + self.config.position_offset]
        if self._types is not None:
            x = x + (self._types[0] if token_types is None else self._types[token_types])
        if self._task_types is not None:
            x = x + self._task_types[0]
        if batch.tasks:
            rows = AdapterRows.of(batch.tasks, varlen.lengths, tokens.device)
            batch = replace(batch, adapter_rows=rows)
            if rows is not None and self._adapted_words is not None:
                self._adapted_words.add_(x, tokens, rows)
            if rows is not None and self._adapted_types is not None:
                self._adapted_types.add_(x, torch.zeros_like(tokens) if token_types is None else token_types, rows)
        if self._relative is not None:
            bias, padded = self._distances(self._relative, varlen.max_seqlen), varlen.padded(tokens.device)
            batch = replace(batch, texts=replace(texts, bias=bias, padded=padded))
        delta: Delta | None = None
        residual: Stream = x if self._embedding_norm is None else self._embedding_norm(x)
        if self._project is not None:
            residual = self._project(residual)
        for layer in self._layers:
            delta, residual = layer(delta, residual, batch)
            if batch.after_layer is not None:
                batch.after_layer()
        hidden = joined(delta, residual, self._final_norm)
        if self._projection is not None:
            hidden = self._projection(hidden)
        assert isinstance(hidden, torch.Tensor)
        return hidden if batch.media is None or self.config.embeds_media else batch.media.put(hidden)

    def place_media(self, positions: torch.Tensor) -> int:
        """Raises ValueError: no encoder has m-rope positions, which decoders place for media."""
        raise ValueError(
            f"{len(positions)} positions are given for media, which {self.config.architecture} has none of"
        )

    def _distances(self, table: torch.Tensor, max_seqlen: int) -> torch.Tensor:
        """MPNet's bias on scores, float32 [heads, longest, longest], by query and key."""
        places = torch.arange(max_seqlen, device=table.device)
        buckets = distance_buckets(
            places[None, :] - places[:, None], self.config.relative_buckets, self.config.relative_distance
        )
        return table.float()[buckets].permute(2, 0, 1)
