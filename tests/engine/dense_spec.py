"""Specs of dense decoders, written flat: what a family adds is a keyword."""

from collections.abc import Sequence
from typing import Any

from stentor.engine.model_config.spec.attention import AttentionSpec
from stentor.engine.model_config.spec.layer import PRE, LayerSpec, Norms
from stentor.engine.model_config.spec.mlp import FUSED_MLP, SPLIT_MLP, Activation, MLPSpec
from stentor.engine.model_config.spec.model import ModelSpec, with_mixers
from stentor.engine.model_config.spec.positions import RopeConfig


def dense_spec(
    *,
    hidden_size: int,
    inner: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    architecture: str = "LlamaForCausalLM",
    activation: Activation = "silu",
    mlp_bias: bool = False,
    fused: bool = False,
    norms: Norms = PRE,
    scale: float | None = None,
    slides: Sequence[bool] = (),
    window: int = 0,
    rope: RopeConfig | None = None,
    rope_sliding: RopeConfig | None = None,
    still: Sequence[bool] = (),
    mlp_into: tuple[str, ...] = SPLIT_MLP,
    mlp_out: str = "mlp.down_proj",
    attention: dict[str, Any] | None = None,
    **model: Any,
) -> ModelSpec:
    """``slides`` says which layers have the ``window`` and ``rope_sliding``, ``still`` which do not rotate;
    ``attention`` holds further fields of all mixers, ``model`` those of the model."""
    rope = rope or RopeConfig()
    mixer = AttentionSpec(
        heads, kv_heads, head_dim, head_dim**-0.5 if scale is None else scale, rope, fused=fused, **(attention or {})
    )
    layer = LayerSpec(mixer, MLPSpec(inner, activation, mlp_bias, FUSED_MLP if fused else mlp_into, mlp_out), norms)
    spec = ModelSpec(architecture=architecture, hidden_size=hidden_size, layers=(layer,) * layers, **model)
    if slides:
        spec = with_mixers(spec, slides, window=window, rope=rope_sliding or rope)
    return with_mixers(spec, still, rope=None) if still else spec
