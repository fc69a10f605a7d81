"""Norms of queries and keys, of each head or of all."""

from typing import Final

import torch

from ...model_config.spec.attention import AttentionSpec, QKNorm
from ...model_config.spec.model import Backbone
from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap
from ..norm import RMSNorm

_NO_LENGTH: Final = 1e-6
"""Added to lengths that are divided by."""


class HeadNorm:
    """(x - mean) / deviation * weight + bias over each head, with weights of its own or shared ones; or x / rms *
    weight with weights of its own."""

    def __init__(
        self, weights: WeightMap, name: str, heads: int, dim: int, eps: float, context: LayerContext, kind: QKNorm
    ) -> None:
        """``kind``: with weights and biases of each head, only with weights of each, or with shared ones. Weights alone
        are stored in one tensor, or in one each if ``name`` has a place for the head's number."""
        self._dim, self._eps, self._centred = dim, eps, kind != "head_own"
        own = kind != "layer"
        self._weight = context.empty(heads if own else 1, dim, dtype=torch.float32)
        self._bias: torch.Tensor | None = None
        if kind == "head_own":
            weights.add(f"{name}.weight", self._weight.view(-1))
        elif kind != "layer_own":
            self._bias = torch.empty_like(self._weight)
            stored = (heads, dim) if own else (dim,)
            weights.add(f"{name}.bias", self._bias, shape=stored)
            weights.add(f"{name}.weight", self._weight, shape=stored)
        elif "{}" not in name:
            weights.add(f"{name}.weight", self._weight)
        else:
            for head in range(heads):
                weights.add(f"{name.format(head)}.weight", self._weight[head])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, heads, dim] → a new tensor; computed in float32 and rounded once."""
        norm = torch.nn.functional.layer_norm if self._centred else torch.nn.functional.rms_norm
        normed = norm(x.float(), (self._dim,), eps=self._eps) * self._weight
        return (normed if self._bias is None else normed + self._bias).to(x.dtype)


class HeadClip:
    """Each head of x, times a factor on each of its numbers, scaled down to a length if it is longer (Inkling 2)."""

    def __init__(
        self, weights: WeightMap, name: str, heads: int, dim: int, longest: float, context: LayerContext
    ) -> None:
        """``name``: of the factors; "": there are none."""
        self._longest = longest
        self._factors: torch.Tensor | None = None
        if name:
            self._factors = context.empty(heads, dim, dtype=torch.float32)
            weights.add(name, self._factors)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, heads, dim] → a new tensor; computed in float32 and rounded once."""
        scaled = x.float() if self._factors is None else x.float() * self._factors
        lengths = torch.linalg.vector_norm(scaled, dim=2, keepdim=True)
        clipped: torch.Tensor = scaled * (self._longest / (lengths + _NO_LENGTH)).clamp(max=1.0)
        return clipped.to(x.dtype)


def norms_of_heads(
    weights: WeightMap, prefix: str, spec: AttentionSpec, eps: float, context: LayerContext
) -> list[HeadNorm | HeadClip]:
    """What norms the heads of queries and of keys behind their products; empty without such norms."""
    dim = spec.head_dim
    if spec.qk_norm == "clip":
        return [
            HeadClip(weights, f"{prefix}.{which}.scale" if which else "", heads, dim, spec.longest, context)
            for which, heads in spec.norms_of_heads
        ]
    return [
        HeadNorm(weights, f"{prefix}.{which}", heads, dim, eps, context, spec.qk_norm)
        for which, heads in spec.norms_of_heads
    ]


def query_and_key_norms(
    weights: WeightMap, prefix: str, spec: AttentionSpec, model: Backbone, context: LayerContext
) -> tuple[RMSNorm, RMSNorm] | None:
    """Norms of each head's queries and keys, or of all heads together; None without such norms."""
    if (sizes := spec.qk_norm_sizes) is None:
        return None
    names, plus_one = spec.qk_norm_names or ("", ""), model.norm_plus_one
    q_norm, k_norm = (
        RMSNorm(weights, f"{prefix}.{name}" if name else None, size, model.norm_eps, context, plus_one=plus_one)
        for name, size in zip(names, sizes, strict=True)
    )
    return q_norm, k_norm
