"""The weights of a decoder: transformers' names and shapes. Torch-free."""

from .config import DecoderConfig

Shapes = dict[str, tuple[int, ...]]


def weight_shapes(config: DecoderConfig) -> Shapes:
    """Every weight that a checkpoint of this model holds, [out, in] for projections, in model order."""
    shapes: Shapes = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        shapes.update({f"{prefix}.{name}": shape for name, shape in _layer(config).items()})
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def _layer(config: DecoderConfig) -> Shapes:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: Shapes = {}

    def project(name: str, outputs: int, inputs: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        if bias:
            shapes[f"{name}.bias"] = (outputs,)

    if config.fused_projections:
        project("self_attn.qkv_proj", query + 2 * key, hidden, config.qkv_bias)
        project("mlp.gate_up_proj", 2 * inner, hidden, config.mlp_bias)
    else:
        project("self_attn.q_proj", query, hidden, config.qkv_bias)
        project("self_attn.k_proj", key, hidden, config.qkv_bias)
        project("self_attn.v_proj", key, hidden, config.qkv_bias)
        project("mlp.gate_proj", inner, hidden, config.mlp_bias)
        project("mlp.up_proj", inner, hidden, config.mlp_bias)
    project("self_attn.o_proj", hidden, query, config.output_bias)
    project("mlp.down_proj", hidden, inner, config.mlp_bias)
    if config.qk_norm != "none":
        whole = config.qk_norm == "full"
        shapes["self_attn.q_norm.weight"] = (query if whole else config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (key if whole else config.head_dim,)
    norms = {
        "pre": ("input_layernorm", "post_attention_layernorm"),
        "post": ("post_attention_layernorm", "post_feedforward_layernorm"),
        "sandwich": (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ),
    }
    shapes.update({f"{name}.weight": (hidden,) for name in norms[config.norm_placement]})
    return shapes
