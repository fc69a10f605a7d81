"""Projects a tower's patches to a decoder's embeddings: joins neighbours, norms and multiplies."""

from functools import partial
from typing import Final

import torch
from msgspec.structs import replace

from stentor import kernels

from ...layers.linear.layer_context import LayerContext
from ...layers.linear.linear import Linear
from ...layers.linear.weights import WeightMap
from ...layers.norm import LayerNorm, Norm, RMSNorm
from ...model_config.towers.vision_spec import ProjectorNorm, ProjectorProduct, ProjectorSpec, SquareAttention

_WIDE_ROWS: Final = 256
"""Embeddings computed at a time if each is a mean over a whole vocabulary."""


class Projector:
    """A projector described by a :class:`...model_config.towers.vision_spec.ProjectorSpec`."""

    def __init__(
        self, weights: WeightMap, spec: ProjectorSpec, hidden: int, merge: int, context: LayerContext, prefix: str = ""
    ) -> None:
        """``hidden``: size of a patch. ``merge``: patches on each side of a joined square. ``prefix``: of names."""
        self._merge, self._join = merge, spec.join
        self._stream = context.stream
        self._attention = None
        if spec.attention is not None:
            self._attention = _SquareAttention(weights, prefix, spec.attention, hidden, context)
        self._joined_first = spec.norm is not None and spec.norm.joined
        inputs = spec.inputs(hidden, merge)
        size = inputs[0] if self._joined_first else hidden
        self._norm = None if spec.norm is None else _norm(weights, prefix, spec.norm, size, context)
        self._scale, self._activation = spec.scale, spec.activation
        self._wide = any(product.softmax for product in spec.products)
        self._standard = [context.empty(inputs[0], dtype=context.stream) for _ in spec.standard or ()]
        for name, tensor in zip(spec.standard or (), self._standard, strict=True):
            weights.add(f"{prefix}{name}.weight", tensor)
        self._products = [
            _Product(weights, prefix, product, columns, context)
            for product, columns in zip(spec.products, inputs, strict=True)
        ]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [patches, hidden], joined ones adjacent → [embeddings, outputs]"""
        if self._norm is not None and not self._joined_first:
            x = self._norm.plain(x)
        if self._join != "mean_last":
            x = self._joined(x)
        if self._scale != 1.0:
            x = x * self._scale
        if self._standard:
            shift, factor = self._standard
            x = (x - shift) * factor
        if self._norm is not None and self._joined_first:
            x = self._norm.plain(x)
        if not self._wide:
            made = self.of_joined(x)
            return self._joined(made) if self._join == "mean_last" else made
        return torch.cat([self.of_joined(part) for part in x.split(_WIDE_ROWS)])

    def of_joined(self, x: torch.Tensor) -> torch.Tensor:
        """The products of joined patches that are normed and scaled: [embeddings, inputs] → [embeddings, outputs]."""
        if self._activation is not None:
            x = kernels.activate_(x.clone(), self._activation)
        for product in self._products:
            x = product(x)
        return x

    def _joined(self, x: torch.Tensor) -> torch.Tensor:
        if self._merge == 1:
            return x
        if self._attention is not None:
            return self._attention(x, self._merge * self._merge)
        beside = x.view(-1, self._merge * self._merge, x.shape[1])
        return beside.flatten(1) if self._join == "beside" else beside.float().mean(dim=1).to(x.dtype)


class _SquareAttention:
    """Attention from the mean of neighbouring patches to each of them."""

    def __init__(
        self, weights: WeightMap, prefix: str, spec: SquareAttention, inputs: int, context: LayerContext
    ) -> None:
        self._heads, self._size = spec.heads, spec.width // spec.heads
        name, width = prefix + spec.name, spec.width
        self._query = Linear(weights, {f"{name}.q_proj": width}, inputs, context, bias=True)
        both = {f"{name}.k_proj": width, f"{name}.v_proj": width}
        self._keys_values = Linear(weights, both, inputs, context, bias=True)
        self._out = Linear(weights, {f"{name}.out_proj": width}, width, context, bias=True, dtype=context.dtype)

    def __call__(self, x: torch.Tensor, count: int) -> torch.Tensor:
        """x [squares · count, inputs] → [squares, width]"""
        means = x.view(-1, count, x.shape[1]).float().mean(dim=1).to(x.dtype)
        q = self._query(means).view(-1, self._heads, self._size)
        k, v = self._keys_values(x).view(-1, 2, self._heads, self._size).unbind(1)
        each = torch.arange(len(q) + 1, dtype=torch.int32, device=x.device)
        found = kernels.varlen_attention(q, k, v, each, each * count, 1, count, scale=self._size**-0.5)
        made: torch.Tensor = self._out(found.view(len(q), -1))
        return made


class _Product:
    """A product with its activation, gate and norm."""

    def __init__(
        self, weights: WeightMap, prefix: str, spec: ProjectorProduct, inputs: int, context: LayerContext
    ) -> None:
        self._gated = bool(spec.gate) or spec.gated_by_half
        apart = self._gated or spec.norm is not None
        self._linear = Linear(
            weights,
            {prefix + name: spec.stored_outputs for name in filter(None, (spec.gate, spec.name))},
            inputs,
            context,
            bias=spec.bias,
            activation=None if apart else spec.activation,
            dtype=context.dtype if spec.activation and spec.norm is None else context.stream,
        )
        self._norm = None if spec.norm is None else _norm(weights, prefix, spec.norm, spec.outputs, context)
        self._softmax, self._dtype = spec.softmax, context.dtype
        self._activation, self._norm_last = spec.activation if apart else None, spec.norm_last

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = self._linear(x)
        if self._norm is not None and not self._norm_last:
            x = self._norm.plain(x)
        if self._activation is not None:
            gate = kernels.gated_activation if self._gated else kernels.activate_
            x = gate(x, self._activation)
        if self._norm is not None and self._norm_last:
            x = self._norm.plain(x)
        return x.softmax(1, dtype=torch.float32).to(self._dtype) if self._softmax else x


def stored_as_multiplied(spec: ProjectorSpec, hidden: int, merge: int, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A projector's stored weight as the matrix [outputs, inputs] that is applied."""
    for product in spec.products:
        if product.gated_by_half and name.rpartition(".")[0] == product.name:
            return tensor.roll(product.outputs, 0)  # the gate comes first
        if name == f"{product.name}.weight" and product.repeats > 1:
            wide: torch.Tensor = tensor.unflatten(1, (product.repeats, -1)).float()
            return wide.sum(1).to(tensor.dtype)
        if name == f"{product.name}.weight" and product.transposed:
            return tensor.T
        if name == f"{product.name}.weight" and product.channels_first:
            return tensor.view(-1, hidden, merge * merge).transpose(1, 2).flatten(1)
    return tensor


def _norm(weights: WeightMap, prefix: str, spec: ProjectorNorm, size: int, context: LayerContext) -> Norm:
    make = (
        partial(RMSNorm, plus_one=spec.plus_one)
        if spec.kind == "rms"
        else partial(LayerNorm, bias=spec.bias, plus_one=spec.plus_one)
    )
    stored = prefix + spec.name if spec.name else None
    return make(weights, stored, size, spec.eps, replace(context, dtype=context.stream))
