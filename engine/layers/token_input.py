"""What the layers of an encoder or a decoder take for tokens: embeddings and positions."""

import torch

from stentor import kernels

from ..model_config.spec.model import Backbone
from ..model_config.spec.seq2seq import TokenInputSpec
from .linear.layer_context import LayerContext
from .linear.packed import PackedTable
from .linear.weights import WeightMap
from .norm import Norm, make_norm
from .sinusoids import sinusoid_angles, sinusoid_table


class TokenInput:
    """(embedding · scale + position), normed; each part where the spec has it."""

    def __init__(
        self,
        weights: WeightMap,
        embedding: torch.Tensor | PackedTable,
        spec: TokenInputSpec,
        model: Backbone,
        context: LayerContext,
    ) -> None:
        """``embedding``: [vocabulary, hidden], which several may share."""
        self._embedding, self._scale, self._first = embedding, spec.scale, 0
        self._positions: torch.Tensor | None = None
        if spec.positions:
            self._first = spec.first
            self._positions = context.empty(spec.rows, model.hidden_size, dtype=context.stream)
            weights.add(f"{spec.positions}.weight", self._positions)
        elif spec.sinusoids:
            self._positions = _sinusoids(spec, model, context)
        self._norm: Norm | None = None
        if spec.norm:
            self._norm = make_norm(weights, spec.norm, model.layers[0].norms, model, context)

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Tokens and their positions, int64 [tokens] each → [tokens, hidden], a new tensor."""
        table = self._embedding
        x = table.rows(tokens) if isinstance(table, PackedTable) else kernels.embedding(tokens, table)
        if self._scale != 1.0:
            x = x * self._scale
        if self._positions is not None:
            x = x + self._positions[positions + self._first]
        return x if self._norm is None else self._norm.plain(x)


def _sinusoids(spec: TokenInputSpec, model: Backbone, context: LayerContext) -> torch.Tensor:
    """[positions, hidden]"""
    rows, hidden = model.max_position, model.hidden_size
    if context.shapes_only:
        return torch.empty(rows, hidden, dtype=context.stream, device=context.place)
    if spec.sinusoids == "closed":
        made = sinusoid_table(spec.first, rows, hidden)
    else:
        angles = sinusoid_angles(torch.arange(spec.first, spec.first + rows, device=context.device), hidden)
        made = torch.cat([angles.sin(), angles.cos()], 1)
    return (made * spec.sinusoid_scale).to(context.device, context.stream)
