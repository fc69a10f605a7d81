"""The weights of a decoder and of a Whisper: transformers' names and shapes. Torch-free."""

from .decoder_config import DecoderConfig
from .whisper_config import WhisperConfig

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


def whisper_weight_shapes(config: WhisperConfig) -> Shapes:
    """Every weight that a checkpoint of this model holds, [out, in] for projections, in model order."""
    hidden = config.hidden_size
    shapes: Shapes = {}

    def affine(name: str, *shape: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]

    def attention(name: str) -> None:
        for which in ("q", "k", "v", "out"):
            affine(f"{name}.{which}_proj", hidden, hidden, bias=which != "k")
        affine(f"{name}_layer_norm", hidden)

    def mlp(prefix: str, inner: int) -> None:
        affine(f"{prefix}.fc1", inner, hidden)
        affine(f"{prefix}.fc2", hidden, inner)
        affine(f"{prefix}.final_layer_norm", hidden)

    affine("model.encoder.conv1", hidden, config.mel_bins, 3)
    affine("model.encoder.conv2", hidden, hidden, 3)
    shapes["model.encoder.embed_positions.weight"] = (config.source_positions, hidden)
    for layer in range(config.encoder_layers):
        attention(f"model.encoder.layers.{layer}.self_attn")
        mlp(f"model.encoder.layers.{layer}", config.encoder_intermediate_size)
    affine("model.encoder.layer_norm", hidden)
    shapes["model.decoder.embed_tokens.weight"] = (config.vocab_size, hidden)
    shapes["model.decoder.embed_positions.weight"] = (config.max_position, hidden)
    for layer in range(config.num_layers):
        attention(f"model.decoder.layers.{layer}.self_attn")
        attention(f"model.decoder.layers.{layer}.encoder_attn")
        mlp(f"model.decoder.layers.{layer}", config.intermediate_size)
    affine("model.decoder.layer_norm", hidden)
    return shapes
