"""One layer of a bidirectional encoder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from stentor import kernels

from ..layers.layer_context import LayerContext
from ..layers.linear import Linear
from ..layers.norm import LayerNorm
from ..layers.task_adapters import AdaptedLinear, TaskRows
from ..layers.varlen_batch import Padded, VarlenBatch
from ..layers.weights import WeightMap
from ..model_config.encoder_config import EncoderConfig

Rotary = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class EncoderBatch:
    """What all layers are told of the texts that they see."""

    varlen: VarlenBatch
    cu_seqlens: torch.Tensor
    """int32 [texts + 1]"""
    positions: torch.Tensor
    """int64 [tokens]"""
    bias: torch.Tensor | None
    """float32 [heads, longest, longest], on scores by query and key."""
    padded: Sequence[Padded]
    """The texts again, where there is a bias."""
    groups: Sequence[TaskRows]
    layout: kernels.KeyLayout | None
    """Of the keys, where the CPU attends to them."""


class EncoderLayer:
    """Attention, then an MLP; norms stand before or behind each."""

    def __init__(
        self,
        weights: WeightMap,
        layer: int,
        config: EncoderConfig,
        context: LayerContext,
        norm: Callable[[str], LayerNorm],
        rotary: Rotary | None,
    ) -> None:
        prefix = f"layers.{layer}"
        hidden, inner = config.hidden_size, config.intermediate_size
        qkv = {f"{prefix}.{part}": hidden for part in ("q", "k", "v")}
        up = {f"{prefix}.gate": inner, f"{prefix}.up": inner} if config.gated else {f"{prefix}.up": inner}
        self._stream = torch.float32 if context.packed else context.dtype

        def linear(name: str, parts: dict[str, int], inputs: int, bias: bool) -> _Adaptable:
            outputs = sum(parts.values())
            added = (
                None
                if config.adapters is None
                else AdaptedLinear(weights, f"{prefix}.{name}", inputs, outputs, config.adapters, context, self._stream)
            )
            return _Adaptable(Linear(weights, parts, inputs, context, bias=bias), added, self._stream)

        self._qkv = linear("qkv", qkv, hidden, config.attention_bias)
        self._out = linear("out", {f"{prefix}.out": hidden}, hidden, config.attention_bias)
        self._up = linear("up", up, hidden, config.mlp_bias)
        self._down = linear("down", {f"{prefix}.down": hidden}, inner, config.down_bias)
        # ModernBERT's first layer gets what the embedding's norm has normed
        self._attention_norm = norm(f"{prefix}.attention_norm") if layer or not config.pre_norm else None
        self._mlp_norm = norm(f"{prefix}.mlp_norm")
        self._config = config
        self._rotary = rotary
        window = config.sliding_window
        self._window = (window, window) if config.slides(layer) else (-1, -1)
        self._dtype = context.dtype

    def __call__(self, residual: torch.Tensor, batch: EncoderBatch) -> torch.Tensor:
        """residual [tokens, hidden], which may be changed → the next one."""
        if self._config.pre_norm:
            normed = residual if self._attention_norm is None else self._attention_norm(residual)
            delta = self._attend(normed, batch)
            return residual.add_(self._mlp(self._mlp_norm.add(delta, residual), batch))
        assert self._attention_norm is not None
        residual = self._attention_norm.add(self._attend(residual, batch), residual)
        return self._mlp_norm.add(self._mlp(residual, batch), residual)

    def _attend(self, x: torch.Tensor, batch: EncoderBatch) -> torch.Tensor:
        config, varlen = self._config, batch.varlen
        qkv = self._qkv(x, batch.groups, dtype=self._dtype).view(len(x), 3, config.num_heads, config.head_dim)
        q, k, v = qkv.unbind(1)
        scale = config.head_dim**-0.5
        if batch.bias is not None:
            attended = _attend_biased(q, k, v, batch.padded, batch.bias, scale)
        else:
            if self._rotary is not None:
                kernels.rotary_(q, k, *self._rotary, batch.positions)
            attended = kernels.varlen_attention(
                q,
                k,
                v,
                batch.cu_seqlens,
                batch.cu_seqlens,
                varlen.max_seqlen,
                varlen.max_seqlen,
                scale=scale,
                window=self._window,
                layout=batch.layout,
            )
        return self._out(attended.view(len(x), -1), batch.groups, dtype=self._stream)

    def _mlp(self, x: torch.Tensor, batch: EncoderBatch) -> torch.Tensor:
        kind = self._config.activation
        if self._config.gated:
            inner = kernels.gated_activation(self._up(x, batch.groups), self._config.gated_activation)
        elif kind == "relu":
            inner = self._up(x, batch.groups).relu_()
        else:  # rounded as the next product would
            inner = self._up(x, batch.groups, activation=kind, dtype=self._dtype)
        return self._down(inner, batch.groups, dtype=self._stream)


class _Adaptable:
    """A linear layer, and perhaps what tasks add to it."""

    def __init__(self, linear: Linear, added: AdaptedLinear | None, stream: torch.dtype) -> None:
        self._linear = linear
        self._added = added
        self._stream = stream

    def __call__(
        self,
        x: torch.Tensor,
        groups: Sequence[TaskRows],
        *,
        activation: kernels.ActivationKind | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """x [tokens, inputs] → act(…) [tokens, outputs] of ``dtype``, or of the stream's."""
        dtype = self._stream if dtype is None else dtype
        if self._added is None or not groups:
            return self._linear.finished(x, activation=activation, dtype=dtype)
        product = self._added.add_(self._linear.finished(x, dtype=self._stream), x.to(self._stream), groups)
        return (product if activation is None else kernels.activate_(product, activation)).to(dtype)


def _attend_biased(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, groups: Sequence[Padded], bias: torch.Tensor, scale: float
) -> torch.Tensor:
    """With ``bias`` [heads, longest, longest] on the scores, which no kernel for texts without padding takes."""
    out = torch.empty_like(q)
    for group in groups:
        length = group.rows.shape[1]
        queries, keys, values = (part[group.rows].transpose(1, 2) for part in (q, k, v))
        mask = bias[None, :, :length, :length].masked_fill(~group.real[:, None, None, :], -torch.inf).to(q.dtype)
        attended = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
        out[group.rows[group.real]] = attended.transpose(1, 2)[group.real]
    return out
