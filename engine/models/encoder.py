"""Bidirectional encoders: BERT, RoBERTa, DistilBERT, MPNet, ModernBERT, NomicBERT, GTE and Jina's.

They differ by :class:`.encoder_config.EncoderConfig`, not by code. Texts stand one after another without padding.
"""

import math
from collections.abc import Callable

import torch

from stentor import kernels

from ..layers.linear import Linear
from ..layers.norm import LayerNorm
from ..layers.packed import PackedTable
from ..layers.placement import Placement
from ..layers.rotary import rotary_table
from ..layers.weights import WeightMap
from .encoder_config import EncoderConfig
from .texts import Texts

Rotary = tuple[torch.Tensor, torch.Tensor]


class Encoder:
    """Token ids in, hidden states out; nothing is kept from one batch to the next."""

    def __init__(self, config: EncoderConfig, place: Placement, max_model_len: int) -> None:
        """``max_model_len``: the longest text, of which rotary tables are made."""
        self.config = config
        self.weights = WeightMap()
        self._place = place
        self._dtype = torch.float32 if place.packed else place.dtype
        hidden = config.hidden_size
        word = "embeddings.word"
        self._words = (
            PackedTable(self.weights, word, config.vocab_size, hidden, place)
            if place.packed
            else self._table(word, config.vocab_size)
        )
        rows = config.max_position + config.position_offset
        self._positions = self._table("embeddings.position", rows) if config.learned_positions else None
        self._types = self._table("embeddings.token_type", config.token_types) if config.token_types else None
        self._embedding_norm = self._norm("embeddings.norm")
        self._relative = (
            self._table("relative", config.relative_buckets, config.num_heads) if config.relative_buckets else None
        )
        full, sliding = (
            None
            if rope is None
            else rotary_table(rope, config.head_dim, config.max_position, max_model_len, place.device)
            for rope in (config.rope, config.rope_sliding or config.rope)
        )
        self._layers = [
            _Layer(self.weights, layer, config, place, self._norm, sliding if config.slides(layer) else full)
            for layer in range(config.num_layers)
        ]
        self._final_norm = self._norm("final_norm") if config.pre_norm else None

    def _table(self, name: str, rows: int, columns: int | None = None) -> torch.Tensor:
        table = self._place.empty(rows, columns or self.config.hidden_size, dtype=self._dtype)
        self.weights.add(f"{name}.weight", table)
        return table

    def _norm(self, name: str) -> LayerNorm:
        config = self.config
        return LayerNorm(
            self.weights,
            name,
            config.hidden_size,
            config.norm_eps,
            self._place,
            dtype=self._dtype,
            bias=config.norm_bias,
        )

    def forward(
        self,
        tokens: torch.Tensor,
        texts: Texts,
        token_types: torch.Tensor | None = None,
        between: Callable[[], None] | None = None,
    ) -> torch.Tensor:
        """tokens int64 [tokens] of all texts → hidden states [tokens, hidden].

        ``token_types`` int64 [tokens], all 0 where they are not given; ``between`` is called after every layer.
        """
        starts, positions = texts.to(tokens.device)
        words = self._words
        x = words.rows(tokens) if isinstance(words, PackedTable) else kernels.embedding(tokens, words)
        if self._positions is not None:
            x = x + self._positions[positions + self.config.position_offset]
        if self._types is not None:
            x = x + (self._types[0] if token_types is None else self._types[token_types])
        residual = self._embedding_norm(x)
        bias = None if self._relative is None else self._distances(texts.longest)
        for layer in self._layers:
            residual = layer(residual, starts, positions, texts, bias)
            if between is not None:
                between()
        return residual if self._final_norm is None else self._final_norm(residual)

    def _distances(self, longest: int) -> torch.Tensor:
        """What MPNet adds to scores, float32 [heads, longest, longest], by query and key."""
        assert self._relative is not None
        places = torch.arange(longest, device=self._relative.device)
        buckets = distance_buckets(
            places[None, :] - places[:, None], self.config.relative_buckets, self.config.relative_distance
        )
        return self._relative.float()[buckets].permute(2, 0, 1)


class _Layer:
    def __init__(
        self,
        weights: WeightMap,
        layer: int,
        config: EncoderConfig,
        place: Placement,
        norm: Callable[[str], LayerNorm],
        rotary: Rotary | None,
    ) -> None:
        prefix = f"layers.{layer}"
        hidden, inner = config.hidden_size, config.intermediate_size
        parts = {f"{prefix}.{part}": hidden for part in ("q", "k", "v")}
        self._qkv = Linear(weights, parts, hidden, place, bias=config.attention_bias)
        self._out = Linear(weights, {f"{prefix}.out": hidden}, hidden, place, bias=config.attention_bias)
        entrance = {f"{prefix}.gate": inner, f"{prefix}.up": inner} if config.gated else {f"{prefix}.up": inner}
        self._up = Linear(weights, entrance, hidden, place, bias=config.mlp_bias)
        self._down = Linear(weights, {f"{prefix}.down": hidden}, inner, place, bias=config.down_bias)
        # ModernBERT's first layer gets what the embedding's norm has normed
        self._attention_norm = norm(f"{prefix}.attention_norm") if layer or not config.pre_norm else None
        self._mlp_norm = norm(f"{prefix}.mlp_norm")
        self._config = config
        self._rotary = rotary
        window = config.sliding_window
        self._window = (window, window) if config.slides(layer) else (-1, -1)
        self._place = place
        self._stream = torch.float32 if place.packed else place.dtype

    def __call__(
        self,
        residual: torch.Tensor,
        starts: torch.Tensor,
        positions: torch.Tensor,
        texts: Texts,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """residual [tokens, hidden], which may be changed → the next one."""
        if self._config.pre_norm:
            normed = residual if self._attention_norm is None else self._attention_norm(residual)
            delta = self._attend(normed, starts, positions, texts, bias)
            return residual.add_(self._mlp(self._mlp_norm.add(delta, residual)))
        assert self._attention_norm is not None
        residual = self._attention_norm.add(self._attend(residual, starts, positions, texts, bias), residual)
        return self._mlp_norm.add(self._mlp(residual), residual)

    def _attend(
        self,
        x: torch.Tensor,
        starts: torch.Tensor,
        positions: torch.Tensor,
        texts: Texts,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        config = self._config
        qkv = self._qkv(x).to(self._place.dtype).view(len(x), 3, config.num_heads, config.head_dim)
        q, k, v = qkv.unbind(1)
        scale = config.head_dim**-0.5
        if bias is not None:
            attended = _attend_biased(q, k, v, texts, bias, scale)
        else:
            if self._rotary is not None:
                kernels.rotary_(q, k, *self._rotary, positions)
            attended = kernels.varlen_attention(
                q, k, v, starts, starts, texts.longest, texts.longest, scale=scale, window=self._window
            )
        return self._out(attended.view(len(x), -1).to(self._stream))

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        entered = self._up(x)
        if self._config.gated:
            return self._down(kernels.gated_activation(entered, self._config.gated_activation))
        kind = self._config.activation
        return self._down(entered.relu_() if kind == "relu" else kernels.activate_(entered, kind))


def _attend_biased(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, texts: Texts, bias: torch.Tensor, scale: float
) -> torch.Tensor:
    """Text by text, with ``bias`` [heads, longest, longest] on the scores."""
    out = torch.empty_like(q)
    begin = 0
    for length in texts.lengths:
        rows = slice(begin, begin + length)
        begin += length
        queries, keys, values = (part[rows].transpose(0, 1).unsqueeze(0) for part in (q, k, v))
        mask = bias[:, :length, :length].to(q.dtype).unsqueeze(0)
        attended = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
        out[rows] = attended[0].transpose(0, 1)
    return out


def distance_buckets(distance: torch.Tensor, buckets: int, farthest: int) -> torch.Tensor:
    """The bucket of each distance (key minus query): half for each direction, near ones exact and far ones by their
    logarithm (arXiv:1910.10683, section 2.1)."""
    half = buckets // 2
    exact = half // 2
    away = distance.abs()
    far = exact + (torch.log(away.float().clamp(min=1) / exact) / math.log(farthest / exact) * (half - exact)).long()
    near = torch.where(away < exact, away, far.clamp(max=half - 1))
    return near + (distance > 0) * half
