"""The weights of a Whisper: transformers' names and shapes. Torch-free."""

from .shapes import Shapes
from .whisper_config import WhisperConfig


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
