"""Self-attention over the paged KV cache."""

from dataclasses import dataclass

import torch

from stentor import kernels
from stentor.kernels.forward import Program
from stentor.kernels.rotate_and_write import rotate_and_write_kv_

from ..model_config.model_spec import ModelSpec
from .layer_context import LayerContext
from .linear import Linear
from .norm import RMSNorm
from .quantized import Input
from .rotary import RotaryTables
from .weights import WeightMap


@dataclass(frozen=True)
class LayerCache:
    """Blocks of one layer, in the layout that ``kernels`` owns."""

    k: torch.Tensor
    v: torch.Tensor

    @property
    def scaled(self) -> bool:
        """Whether keys and values are stored as float8, and the layer's scales go with them."""
        return self.k.dtype == torch.float8_e4m3fn


@dataclass(frozen=True)
class Buffers:
    """The numbers of a program's buffers: one of each, which all layers share."""

    residual: int
    delta: int
    qkv: int
    attended: int
    gate_up: int


class Attention:
    """Grouped-query attention with rotary positions, optional QK-norm, window and soft cap."""

    def __init__(
        self, weights: WeightMap, layer: int, model: ModelSpec, rotary: RotaryTables, context: LayerContext
    ) -> None:
        self._spec = spec = model.layers[layer].mixer
        self._layer, prefix = layer, f"model.layers.{layer}"
        self._heads, self._kv_heads, self._head_dim = spec.heads, spec.kv_heads, spec.head_dim
        self._split = (spec.q_size, spec.kv_size, spec.kv_size)
        into, out = spec.projections(model.hidden_size)
        self._qkv = Linear.of(weights, prefix, into, context)
        self._out = Linear.of(weights, prefix, out, context)
        prefix = f"{prefix}.self_attn"
        if (sizes := spec.qk_norm_sizes) is not None:
            self._q_norm, self._k_norm = (
                RMSNorm(weights, f"{prefix}.{which}", size, model.norm_eps, context, plus_one=model.norm_plus_one)
                for which, size in zip(("q_norm", "k_norm"), sizes, strict=True)
            )
        self._cos, self._sin = rotary.of(spec.rope, spec.head_dim)
        self._eps, self._plus_one = model.norm_eps, model.norm_plus_one
        self._k_scale, self._v_scale = (self._cache_scale(weights, prefix, which, context) for which in ("k", "v"))
        # scales of quantised queries and probabilities, neither of which is quantised here
        unused = ("q_scale", "q_proj.q_scale", "q_proj.output_scale", "prob_scale", "prob_output_scale")
        weights.pass_over(*(f"{prefix}.{name}" for name in unused))

    def _cache_scale(self, weights: WeightMap, prefix: str, which: str, context: LayerContext) -> torch.Tensor:
        """What float8 keys or values of this layer are multiplied by, float32 [kv_heads]: 1 unless it is stored."""
        scale = context.ones(self._kv_heads)
        for name in (f"{which}_scale", f"{which}_proj.{which}_scale", f"{which}_proj.output_scale", "kv_scale"):
            weights.offer(f"{prefix}.{name}", scale)
        return scale

    @property
    def input_projection(self) -> Linear:
        """Where the input goes first."""
        return self._qkv

    def __call__(
        self, x: Input, positions: torch.Tensor, cache: LayerCache, batch: kernels.AttentionBatch
    ) -> torch.Tensor:
        """x [tokens, hidden], plain or quantised, positions int64 [tokens] → [tokens, hidden]; writes K and V."""
        tokens = batch.num_tokens
        q, k, v = self._heads_of(x)
        head_norms = self._spec.qk_norm == "head"
        k_scale, v_scale = (self._k_scale, self._v_scale) if cache.scaled else (None, None)
        q = rotate_and_write_kv_(
            q,
            k,
            v,
            self._cos,
            self._sin,
            positions,
            cache.k,
            cache.v,
            batch.slots,
            q_norm=self._q_norm.weight if head_norms else None,
            k_norm=self._k_norm.weight if head_norms else None,
            eps=self._eps,
            plus_one=self._plus_one,
            k_scale=k_scale,
            v_scale=v_scale,
        )
        out = kernels.paged_attention(
            q,
            cache.k,
            cache.v,
            batch,
            scale=self._spec.scale,
            window=self._spec.window,
            softcap=self._spec.softcap,
            k_scale=k_scale,
            v_scale=v_scale,
        )  # [tokens, heads, head_dim]
        return self._out(out.view(tokens, -1))

    def _heads_of(self, x: Input) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values [tokens, heads, head_dim], not rotated, and not normed by head."""
        q, k, v = torch.split_with_sizes(self._qkv(x), self._split, dim=1)
        if self._spec.qk_norm == "full":
            q, k = self._q_norm.plain(q), self._k_norm.plain(k)
        return (
            q.view(-1, self._heads, self._head_dim),
            k.view(-1, self._kv_heads, self._head_dim),
            v.view(-1, self._kv_heads, self._head_dim),
        )

    def forward_bidirectional(
        self, x: Input, positions: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int
    ) -> torch.Tensor:
        """As a call, where each token sees those before and behind it in its own text, and nothing is kept.

        ``cu_seqlens`` int32 [texts + 1]: where the texts of the batch begin; the ``max_seqlen`` has so many tokens.
        """
        q, k, v = self._heads_of(x)
        if self._spec.qk_norm == "head":
            q, k = self._q_norm.plain(q), self._k_norm.plain(k)
        kernels.rotary_(q, k, self._cos, self._sin, positions)
        side = self._spec.window - 1 if self._spec.window else -1  # the window counts the token itself
        out = kernels.varlen_attention(
            q,
            k,
            v,
            cu_seqlens,
            cu_seqlens,
            max_seqlen,
            max_seqlen,
            scale=self._spec.scale,
            window=(side, side),
            softcap=self._spec.softcap,
        )
        return self._out(out.view(len(positions), -1))

    def record(self, program: Program, buffers: Buffers) -> None:
        """Appends to ``program``, after its input has been prepared, what leads to ``buffers.delta``."""
        heads = self._heads, self._kv_heads, self._head_dim
        self._qkv.packed.record(program, buffers.qkv)
        norms = None
        if self._spec.qk_norm == "full":
            program.norm(buffers.qkv, self._q_norm.factors, self._eps)
            program.norm(buffers.qkv, self._k_norm.factors, self._eps, column=self._split[0])
        elif self._spec.qk_norm == "head":
            norms = self._q_norm.factors, self._k_norm.factors
        program.rotate(buffers.qkv, self._layer, heads, (self._cos, self._sin), norms=norms, eps=self._eps)
        program.attend(
            buffers.qkv,
            buffers.attended,
            self._layer,
            heads,
            scale=self._spec.scale,
            window=self._spec.window,
            softcap=self._spec.softcap,
        )
        program.norm_and_quantize(buffers.attended, self._out.packed.activation_format)
        self._out.packed.record(program, buffers.delta)
