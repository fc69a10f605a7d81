"""Queries, keys and values that are mixed with those of the last tokens (compressed convolutional attention,
arXiv:2510.04476; ZAYA)."""

from typing import Any

import torch

from stentor import kernels
from stentor.kernels.forward import Traced

from ...model_config.spec.model import Backbone
from ..forward_batch import ForwardBatch
from ..linear.layer_context import LayerContext
from ..linear.quantized import Stream
from ..linear.weights import WeightMap
from .entries import PassTokens
from .token_history import TokenHistory, keep_inputs_


class Convolved:
    """Between the products and the attention of a layer.

    Queries and keys pass two convolutions, one of each channel and one within each head. The mean of a query and its
    key is added to the query, and that of all queries of a key to the key; then heads are normed. Half of the values
    are those of the token before.
    """

    def __init__(self, weights: WeightMap, layer: int, model: Backbone, context: LayerContext) -> None:
        self._spec, self._layer = model.layers[layer].attention, layer
        convolved, spec = self._spec.convolved, self._spec
        assert convolved is not None
        prefix = f"{model.layer_prefix(layer)}.{spec.name}"
        heads, dim = spec.heads + spec.kv_heads, spec.head_dim
        self._taps = first, second = convolved.by_channel, convolved.by_head
        self._by_channel = context.empty(first, heads * dim, dtype=torch.float32)
        self._by_head = context.empty(heads, dim, second * dim)
        self._biases = context.empty(2, heads * dim, dtype=torch.float32)
        self._key_scales = context.empty(spec.kv_heads, dtype=torch.float32)
        self._dtype, self._invariant = context.dtype, context.invariant
        by_channel, by_head = (f"{prefix}.{name}" for name in convolved.convolutions)
        weights.add(f"{by_channel}.weight", self._by_channel, shape=(heads * dim, 1, first), read=lambda x: x[:, 0].T)
        weights.add(f"{by_channel}.bias", self._biases[0])
        weights.add(
            f"{by_head}.weight",
            self._by_head,
            shape=(heads * dim, dim, second),
            read=lambda x: x.transpose(1, 2).reshape(heads, dim, second * dim),
        )
        weights.add(f"{by_head}.bias", self._biases[1])
        weights.add(f"{prefix}.{convolved.key_scales}", self._key_scales)

    def __call__(self, made: Stream, batch: ForwardBatch) -> Stream:
        """Products [tokens, queries, keys, halves of values] → queries, keys and values of the same sizes; writes the
        states."""
        if isinstance(made, Traced):
            return made.call("a mix of the last tokens", self._mixed, made.width)
        return self._mixed(made, batch).to(made.dtype)

    def _mixed(self, made: torch.Tensor, batch: Any) -> torch.Tensor:
        """As :meth:`__call__`, of any float dtype → float32."""
        spec, rows = self._spec, batch.states.rows
        made = made.to(self._dtype)
        first, second = self._taps
        kept = made[:, : spec.q_size + spec.kv_size], made[:, -spec.kv_size // 2 :]
        inputs = torch.cat(kept, dim=1)
        history = TokenHistory(inputs, batch.states.of_layer[self._layer][0], rows)
        tokens = PassTokens.of(rows.cu_seqlens, batch.positions)
        seen = history.until(tokens.rows, tokens.offsets, first + second - 1).float()  # [tokens, taps, channels]
        delayed = seen[:, -2, spec.q_size + spec.kv_size :]
        seen = seen[:, :, : spec.q_size + spec.kv_size]
        by_channel = [
            sum((seen[:, at + tap] * self._by_channel[tap] for tap in range(first)), start=self._biases[0])
            for at in range(second)
        ]
        heads = torch.stack(by_channel, dim=1).unflatten(2, (-1, spec.head_dim)).transpose(1, 2).flatten(2)
        mixed = kernels.linear_heads(heads.to(self._dtype), self._by_head, invariant=self._invariant).float()
        mixed = mixed + self._biases[1].view(-1, spec.head_dim)
        q, k = (
            part.float().unflatten(1, (-1, spec.head_dim)) for part in kept[0].split((spec.q_size, spec.kv_size), 1)
        )
        of_queries = (q.unflatten(1, (spec.kv_heads, -1)) + k[:, :, None]) / 2
        of_keys = of_queries.mean(2)
        q = _normed(mixed[:, : spec.heads] + of_queries.flatten(1, 2))
        k = _normed(mixed[:, spec.heads :] + of_keys) * self._key_scales[:, None]
        current = made[:, spec.q_size + spec.kv_size : -spec.kv_size // 2].float()
        keep_inputs_(inputs, batch, self._layer)
        return torch.cat((q.flatten(1), k.flatten(1), current, delayed), dim=1)


def _normed(heads: torch.Tensor) -> torch.Tensor:
    """Heads [tokens, heads, dim] of length √dim."""
    length = heads.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).eps)
    normed: torch.Tensor = heads * (heads.shape[-1] ** 0.5 / length)
    return normed
