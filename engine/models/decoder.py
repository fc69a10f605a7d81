"""The dense decoder family: Llama, Mistral, Qwen2, Qwen3, Phi-3, Gemma-2/3, OLMo-2, Granite.

They differ by :class:`DecoderConfig`, not by code: where norms stand, which projections carry biases,
how queries and keys are normed, and a handful of scalar factors.
"""

from collections.abc import Callable, Sequence

import torch

from stentor import kernels

from ..layers.attention import Attention, LayerCache, RotaryTable
from ..layers.linear import Linear, PlainLinear
from ..layers.norm import RMSNorm
from ..layers.placement import Placement
from ..layers.quantized import Input
from ..layers.rotary import rotary_table
from ..layers.weights import WeightMap
from .config import DecoderConfig


class MLP:
    """down(act(gate(x)) * up(x))."""

    def __init__(self, weights: WeightMap, prefix: str, config: DecoderConfig, place: Placement) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        parts = (
            {f"{prefix}.gate_up_proj": 2 * inner}
            if config.fused_projections
            else {f"{prefix}.gate_proj": inner, f"{prefix}.up_proj": inner}
        )
        self._gate_up = Linear(weights, parts, hidden, place, bias=config.mlp_bias)
        self._down = Linear(weights, {f"{prefix}.down_proj": hidden}, inner, place, bias=config.mlp_bias)
        self._activation = config.activation

    @property
    def entrance(self) -> Linear:
        """Where the input goes first."""
        return self._gate_up

    def __call__(self, x: Input) -> torch.Tensor:
        gate_up, scheme = self._gate_up(x), self._down.input_scheme
        if scheme is None:
            return self._down(kernels.gated_activation(gate_up, self._activation))
        return self._down(kernels.gated_activation_quantized(gate_up, self._activation, scheme, self._down.input_scale))


class Block:
    """One layer. ``residual`` is the stream [tokens, hidden]; ``delta`` what the last part adds to it."""

    def __init__(
        self, weights: WeightMap, layer: int, config: DecoderConfig, rotary: RotaryTable, place: Placement
    ) -> None:
        prefix = f"model.layers.{layer}"
        self._attention = Attention(weights, f"{prefix}.self_attn", config, layer, rotary, place)
        self._mlp = MLP(weights, f"{prefix}.mlp", config, place)
        self._scale = config.residual_scale

        def norm(name: str, before: Linear | None = None) -> RMSNorm:
            return RMSNorm(
                weights,
                f"{prefix}.{name}",
                config.hidden_size,
                config.rms_eps,
                place,
                plus_one=config.norm_plus_one,
                before=before,
            )

        self._attention_in = self._attention_out = self._mlp_in = self._mlp_out = None
        entrances = self._attention.entrance, self._mlp.entrance
        match config.norm_placement:
            case "pre":
                self._attention_in = norm("input_layernorm", entrances[0])
                self._mlp_in = norm("post_attention_layernorm", entrances[1])
            case "post":
                self._attention_out = norm("post_attention_layernorm")
                self._mlp_out = norm("post_feedforward_layernorm")
            case "sandwich":
                self._attention_in = norm("input_layernorm", entrances[0])
                self._attention_out = norm("post_attention_layernorm")
                self._mlp_in = norm("pre_feedforward_layernorm", entrances[1])
                self._mlp_out = norm("post_feedforward_layernorm")

    def __call__(
        self,
        delta: torch.Tensor | None,
        residual: torch.Tensor,
        positions: torch.Tensor,
        cache: LayerCache,
        batch: kernels.AttentionBatch,
    ) -> torch.Tensor:
        """Mutates ``residual``; returns the MLP's delta, not yet added."""
        x = self._attention(_join(delta, residual, self._attention_in), positions, cache, batch)
        x = self._mlp(_join(self._scaled(x, self._attention_out), residual, self._mlp_in))
        return self._scaled(x, self._mlp_out)

    def _scaled(self, delta: torch.Tensor, norm: RMSNorm | None) -> torch.Tensor:
        if norm is not None:
            delta = norm.plain(delta)
        return delta if self._scale == 1.0 else delta * self._scale


def _join(delta: torch.Tensor | None, residual: torch.Tensor, norm: RMSNorm | None) -> Input:
    """Adds ``delta`` to the stream in place and gives the next part its input."""
    if norm is None:
        return residual if delta is None else residual.add_(delta)
    return norm(residual) if delta is None else norm.add(delta, residual)


class Decoder:
    """Token ids in, hidden states and logits out; K and V go to the caller's paged cache."""

    def __init__(self, config: DecoderConfig, place: Placement, max_model_len: int) -> None:
        self.config = config
        self.weights = WeightMap()
        self._place = place
        self._embedding = place.empty(config.vocab_size, config.hidden_size)
        self.weights.add("model.embed_tokens.weight", self._embedding)
        full = rotary_table(config.rope, config.head_dim, config.max_position, max_model_len, place.device)
        sliding = (
            rotary_table(config.rope_sliding, config.head_dim, config.max_position, max_model_len, place.device)
            if config.rope_sliding is not None
            else full
        )
        self._blocks = [
            Block(self.weights, layer, config, sliding if config.layer_type(layer) == "sliding" else full, place)
            for layer in range(config.num_layers)
        ]
        self._norm = RMSNorm(
            self.weights, "model.norm", config.hidden_size, config.rms_eps, place, plus_one=config.norm_plus_one
        )
        self._head: Callable[[torch.Tensor], torch.Tensor]
        if config.tie_embeddings:
            self._head = PlainLinear(self._embedding, None, invariant=place.invariant)
        else:
            self._head = Linear(self.weights, {"lm_head": config.vocab_size}, config.hidden_size, place)
        # transformers rounds the factor to the model's dtype before multiplying
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=place.dtype).item()

    @property
    def ignored_weights(self) -> tuple[str, ...]:
        """Endings of stored names that carry nothing: buffers, and the head's copy where it is tied."""
        tied = ("lm_head.weight",) if self.config.tie_embeddings else ()
        return ("rotary_emb.inv_freq", *tied)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[LayerCache],
        batch: kernels.AttentionBatch,
    ) -> torch.Tensor:
        """tokens and positions int64 [tokens] → final hidden states [tokens, hidden], before the last norm.

        The sum is returned un-normed so that only the rows that need logits pay for the norm.
        """
        residual = kernels.embedding(tokens, self._embedding, self._embedding_scale)
        delta = None
        for block, cache in zip(self._blocks, caches, strict=True):
            delta = block(delta, residual, positions, cache, batch)
        return residual if delta is None else residual.add_(delta)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Hidden states [rows, hidden] from :meth:`forward` → float32 [rows, vocabulary], in ``out`` if given."""
        product = self._head(self._norm.plain(hidden))
        logits = product.float() if out is None else out.copy_(product)
        if self.config.logits_divisor != 1.0:
            logits.div_(self.config.logits_divisor)
        if self.config.logits_softcap:
            cap = self.config.logits_softcap
            logits.div_(cap).tanh_().mul_(cap)
        return logits
