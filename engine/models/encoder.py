"""Bidirectional encoders: BERT, RoBERTa, DistilBERT, MPNet, ModernBERT, NomicBERT, GTE and Jina's.

They differ by :class:`..model_config.encoder_config.EncoderConfig`, not by code. Texts are concatenated without
padding.
"""

import math
from collections.abc import Callable, Sequence

import torch

from stentor import kernels

from ..layers.layer_context import LayerContext
from ..layers.norm import LayerNorm
from ..layers.packed import PackedTable
from ..layers.rotary import rotary_table
from ..layers.task_adapters import AdaptedTable, rows_by_task
from ..layers.varlen_batch import VarlenBatch
from ..layers.weights import WeightMap
from ..model_config.encoder_config import EncoderConfig
from .encoder_layer import EncoderBatch, EncoderLayer


class Encoder:
    """Token ids in, hidden states out; nothing is kept from one batch to the next."""

    def __init__(self, config: EncoderConfig, context: LayerContext, max_model_len: int) -> None:
        """``max_model_len``: the longest text, of which rotary tables are made."""
        self.config = config
        self.weights = WeightMap()
        self._context = context
        self._dtype = torch.float32 if context.packed else context.dtype
        hidden = config.hidden_size
        word = "embeddings.word"
        self._words = (
            PackedTable(self.weights, word, config.vocab_size, hidden, context)
            if context.packed
            else self._table(word, config.vocab_size)
        )
        rows = config.max_position + config.position_offset
        self._positions = self._table("embeddings.position", rows) if config.learned_positions else None
        self._types = self._table("embeddings.token_type", config.token_types) if config.token_types else None
        self._adapted_words = self._adapted_types = None
        if config.adapters is not None:
            sizes = hidden, config.adapters, context, self._dtype
            self._adapted_words = AdaptedTable(self.weights, word, config.vocab_size, *sizes)
            if config.token_types:
                self._adapted_types = AdaptedTable(self.weights, "embeddings.token_type", config.token_types, *sizes)
        self._embedding_norm = self._norm("embeddings.norm")
        self._relative = (
            self._table("relative", config.relative_buckets, config.num_heads) if config.relative_buckets else None
        )
        full, sliding = (
            None
            if rope is None
            else rotary_table(rope, config.head_dim, config.max_position, max_model_len, context.device)
            for rope in (config.rope, config.rope_sliding or config.rope)
        )
        self._layers = [
            EncoderLayer(self.weights, layer, config, context, self._norm, sliding if config.slides(layer) else full)
            for layer in range(config.num_layers)
        ]
        self._final_norm = self._norm("final_norm") if config.pre_norm else None

    def _table(self, name: str, rows: int, columns: int | None = None) -> torch.Tensor:
        table = self._context.empty(rows, columns or self.config.hidden_size, dtype=self._dtype)
        self.weights.add(f"{name}.weight", table)
        return table

    def _norm(self, name: str) -> LayerNorm:
        config = self.config
        return LayerNorm(
            self.weights,
            name,
            config.hidden_size,
            config.norm_eps,
            self._context,
            dtype=self._dtype,
            bias=config.norm_bias,
        )

    def forward(
        self,
        tokens: torch.Tensor,
        varlen: VarlenBatch,
        token_types: torch.Tensor | None = None,
        after_layer: Callable[[], None] | None = None,
        tasks: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """tokens int64 [tokens] of all texts → hidden states [tokens, hidden].

        ``token_types`` int64 [tokens], all 0 where they are not given; ``after_layer`` is called after every layer;
        ``tasks``: the number of each text's adapter, -1 for none.
        """
        cu_seqlens, positions = varlen.to(tokens.device)
        words = self._words
        x = words.rows(tokens) if isinstance(words, PackedTable) else kernels.embedding(tokens, words)
        if self._positions is not None:
            x = x + self._positions[positions + self.config.position_offset]
        if self._types is not None:
            x = x + (self._types[0] if token_types is None else self._types[token_types])
        groups = [] if tasks is None else rows_by_task(tasks, varlen.lengths, tokens.device)
        if groups and self._adapted_words is not None:
            self._adapted_words.add_(x, tokens, groups)
            if self._adapted_types is not None:
                self._adapted_types.add_(x, torch.zeros_like(tokens) if token_types is None else token_types, groups)
        residual = self._embedding_norm(x)
        bias = None if self._relative is None else self._distances(varlen.max_seqlen)
        padded = [] if bias is None else varlen.padded(tokens.device)
        batch = EncoderBatch(varlen, cu_seqlens, positions, bias, padded, groups, kernels.lay_out_keys(cu_seqlens))
        for layer in self._layers:
            residual = layer(residual, batch)
            if after_layer is not None:
                after_layer()
        return residual if self._final_norm is None else self._final_norm(residual)

    def _distances(self, max_seqlen: int) -> torch.Tensor:
        """What MPNet adds to scores, float32 [heads, longest, longest], by query and key."""
        assert self._relative is not None
        places = torch.arange(max_seqlen, device=self._relative.device)
        buckets = distance_buckets(
            places[None, :] - places[:, None], self.config.relative_buckets, self.config.relative_distance
        )
        return self._relative.float()[buckets].permute(2, 0, 1)


def distance_buckets(distance: torch.Tensor, buckets: int, farthest: int) -> torch.Tensor:
    """The bucket of each distance (key minus query): half for each direction, near ones exact and far ones by their
    logarithm (arXiv:1910.10683, section 2.1)."""
    half = buckets // 2
    exact = half // 2
    away = distance.abs()
    far = exact + (torch.log(away.float().clamp(min=1) / exact) / math.log(farthest / exact) * (half - exact)).long()
    near = torch.where(away < exact, away, far.clamp(max=half - 1))
    return near + (distance > 0) * half
