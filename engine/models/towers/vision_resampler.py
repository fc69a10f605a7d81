"""Pools the patches of each picture by attention from learned queries (MiniCPM-V, arXiv:2408.01800)."""

import torch

from stentor import kernels

from ...layers.linear.layer_context import LayerContext
from ...layers.linear.linear import Linear
from ...layers.linear.weights import WeightMap
from ...layers.norm import LayerNorm
from ...model_config.towers.vision_spec import ResamplerSpec


class Resampler:
    """Keys know the places of patches, values do not."""

    def __init__(self, weights: WeightMap, spec: ResamplerSpec, hidden: int, context: LayerContext) -> None:
        """``hidden``: size of a patch."""
        self._spec, width, stream = spec, spec.width, context.stream
        self._queries = context.empty(spec.queries, width, dtype=stream)
        weights.add(f"{spec.name}.query.weight", self._queries)
        projected = {f"{spec.name}.kv_proj": width}
        self._project = Linear(weights, projected, hidden, context, bias=False, dtype=stream) if spec.projects else None
        self._query_norm, self._norm = (
            LayerNorm(weights, f"{spec.name}.ln_{part}", width, spec.eps, context, bias=True) for part in ("q", "kv")
        )
        self._query, self._key, self._value = (
            Linear(weights, {f"{spec.name}.attn.{part}_proj": width}, width, context, bias=True) for part in "qkv"
        )
        self._out = Linear(weights, {f"{spec.name}.attn.out_proj": width}, width, context, bias=True, dtype=stream)

    def __call__(
        self, x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, starts: torch.Tensor, longest: int
    ) -> torch.Tensor:
        """x [patches, hidden] with the place of each, starts int32 [pictures + 1] → [pictures · queries, width];
        ``longest``: most patches of a picture."""
        spec, pictures = self._spec, len(starts) - 1
        heads = (-1, spec.heads, spec.width // spec.heads)
        patches = self._norm.plain(x if self._project is None else self._project(x))
        placed = (patches.float() + places(rows, columns, spec.width)).to(patches.dtype)
        k, v = self._key(placed).view(heads), self._value(patches).view(heads)
        asked = self._query(self._query_norm.plain(self._queries)).repeat(pictures, 1).view(heads)
        each = torch.arange(pictures + 1, dtype=torch.int32, device=x.device) * spec.queries
        scale = heads[2] ** -0.5
        found = kernels.varlen_attention(asked, k, v, each, starts, spec.queries, longest, scale=scale)
        return self._out(found.reshape(-1, spec.width))


def places(rows: torch.Tensor, columns: torch.Tensor, width: int) -> torch.Tensor:
    """Sines and cosines of columns, then of rows: float32 [patches, width]."""
    count = width // 4
    frequencies = 10_000.0 ** (-torch.arange(count, dtype=torch.float32, device=rows.device) / count)
    angles = [torch.outer(each.float(), frequencies) for each in (columns, rows)]
    return torch.cat([part for each in angles for part in (each.sin(), each.cos())], dim=1)
