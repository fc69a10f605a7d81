"""Attention of whole texts within a window, with a bias by distance, and to sums of blocks (LongT5)."""

from collections.abc import Iterator
from typing import Final

import torch
from torch.nn.functional import pad

from ...model_config.spec.model import Backbone
from ..forward_batch import ForwardBatch
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear
from ..linear.quantized import Input
from ..linear.weights import WeightMap
from ..norm import RMSNorm
from ..rotary import RotaryTables
from .stored_heads import _projections

_SCORES: Final = 1 << 22
"""Scores that are computed at a time, which bounds the memory."""


class LocalAttention:
    """softmax(scale · q kᵀ + bias by distance) v over the keys in a window around each token, and over those of the
    sums of blocks of the text if there are any.

    A text is cut into blocks as long as the window, each of which sees itself and its neighbours.
    """

    def __init__(
        self, weights: WeightMap, layer: int, model: Backbone, rotary: RotaryTables, context: LayerContext
    ) -> None:
        self._spec = spec = model.layers[layer].attention
        assert spec.distance_bias is not None
        at = model.layer_prefix(layer)
        self.into: Linear
        self.into, self.out = _projections(weights, at, spec, model, context)
        self._near = rotary.distance_bias(spec.distance_bias, spec.heads)
        self._sums = sums = spec.block_sums
        self._far: torch.Tensor | None = None
        self._norm: RMSNorm | None = None
        if sums is not None:
            self._far = rotary.distance_bias(sums.bias, spec.heads)
            self._norm = RMSNorm(weights, f"{at}.{spec.name}.{sums.norm}", model.hidden_size, model.norm_eps, context)

    def __call__(self, x: Input, batch: ForwardBatch) -> torch.Tensor:
        """x [tokens, hidden] of whole texts → the same shape."""
        texts = batch.texts
        assert texts is not None
        assert isinstance(x, torch.Tensor), "the norm before it quantises nothing"
        q, k, v = self._heads(x)
        out = torch.empty_like(q)
        begin = 0
        for length in texts.varlen.lengths:
            rows = slice(begin, begin + length)
            self._attend(q[rows], k[rows], v[rows], self._summed(x[rows]), out[rows])
            begin += length
        return self.out(out.flatten(1))

    def _heads(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[tokens, hidden] → queries, keys and values, [tokens, heads, head_dim] each."""
        made = self.into(x)
        assert isinstance(made, torch.Tensor)
        return made.view(len(x), 3, self._spec.heads, self._spec.head_dim).unbind(1)

    def _summed(self, x: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        """Keys and values of the sums of the blocks of a text [tokens, hidden]; None if it has no whole block."""
        if self._sums is None or self._norm is None or not (count := len(x) // self._sums.size):
            return None
        sums = x.new_zeros(count, x.shape[1], dtype=torch.float32)
        sums.index_add_(0, self._block_of(len(x), x.device), x.float())
        _, k, v = self._heads(self._norm.exact(sums).to(x.dtype))
        return k, v

    def _block_of(self, length: int, device: torch.device) -> torch.Tensor:
        """int64 [tokens]: the block of each token; those behind the last whole one belong to it."""
        assert self._sums is not None
        return (torch.arange(length, device=device) // self._sums.size).clamp_(max=length // self._sums.size - 1)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sums: tuple[torch.Tensor, ...] | None,
        out: torch.Tensor,
    ) -> None:
        """Write the attention of one text, [tokens, heads, head_dim] each, to ``out``; ``sums``: further keys and
        values."""
        window, length, far = self._spec.window, len(q), 0 if sums is None else len(sums[0])
        blocks = -(-length // window)
        room = (0, 0, 0, 0, 0, blocks * window - length)
        queries = pad(q, room).unflatten(0, (blocks, window)).transpose(1, 2)  # [blocks, heads, window, head_dim]
        keys, values = (_neighbours(pad(part, room), window) for part in (k, v))
        for some in _parts(blocks, max(1, _SCORES // (self._spec.heads * window * (3 * window + far)))):
            seen, shown = keys[some], values[some]
            bias = self._near_bias(some, length, q.device)
            if sums is not None:
                count = some.stop - some.start
                more = (part.transpose(0, 1).expand(count, -1, -1, -1) for part in sums)
                seen, shown = (torch.cat(both, dim=2) for both in zip((seen, shown), more, strict=True))
                bias = torch.cat([bias, self._far_bias(some, length, far, q.device)], dim=-1)
            found = torch.nn.functional.scaled_dot_product_attention(
                queries[some], seen, shown, attn_mask=bias.to(q.dtype), scale=self._spec.scale
            )
            first, end = some.start * window, min(length, some.stop * window)
            out[first:end] = found.transpose(1, 2).flatten(0, 1)[: end - first]

    def _near_bias(self, some: slice, length: int, device: torch.device) -> torch.Tensor:
        """float32 [blocks, heads, window, 3 · window]: what the scores of these blocks get, -inf where a key is not
        seen. A query behind the text, whose output is not used, sees all."""
        window, bias = self._spec.window, self._spec.distance_bias
        assert bias is not None
        ahead = torch.arange(3 * window, device=device) - window - torch.arange(window, device=device)[:, None]
        table = self._near[:, ahead.clamp(-bias.farthest, bias.farthest) + bias.farthest]
        starts = torch.arange(some.start, some.stop, device=device)[:, None] * window
        places = starts + torch.arange(-window, 2 * window, device=device)  # [blocks, 3 · window]
        queries = starts + torch.arange(window, device=device)
        seen = (ahead.abs() < window) & ((places >= 0) & (places < length))[:, None]
        seen = seen | (queries >= length)[:, :, None]
        return table.masked_fill(~seen[:, None], -torch.inf)

    def _far_bias(self, some: slice, length: int, far: int, device: torch.device) -> torch.Tensor:
        """float32 [blocks, heads, window, sums]: what the scores of sums get."""
        assert self._sums is not None
        assert self._far is not None
        window, farthest = self._spec.window, self._sums.bias.farthest
        own = self._block_of(length, device)
        own = pad(own, (0, max(0, some.stop * window - length)))[some.start * window : some.stop * window]
        distances = (torch.arange(far, device=device) - own[:, None]).clamp_(-farthest, farthest) + farthest
        found: torch.Tensor = self._far[:, distances].unflatten(1, (-1, window)).transpose(0, 1)
        return found


def _neighbours(x: torch.Tensor, window: int) -> torch.Tensor:
    """[blocks · window, heads, head_dim] → [blocks, heads, 3 · window, head_dim]: each block between its neighbours."""
    widened = pad(x, (0, 0, 0, 0, window, window))
    found: torch.Tensor = widened.unfold(0, 3 * window, window).transpose(2, 3)
    return found


def _parts(count: int, most: int) -> Iterator[slice]:
    """[0, count) in parts of at most ``most``."""
    return (slice(first, min(count, first + most)) for first in range(0, count, most))
