"""Reads the text part of Llama 3.2 Vision: Llama with layers of cross-attention to pictures between its own."""

from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.layer import LayerSpec, Norms
from ..spec.model import ModelSpec
from .dense import llama

_UNSAID: Final = 8
"""Tokens with embeddings behind the vocabulary: the picture's, and others that are unused."""
_EVERY: Final = (3, 8, 13, 18, 23, 28, 33, 38)
"""Layers of cross-attention by default."""
_NORMS: Final = Norms(cross_in="input_layernorm", mlp_in="post_attention_layernorm")
_GATES: Final = ("cross_attn_attn_gate", "cross_attn_mlp_gate")
MOST_TILES: Final = 64
"""Tiles of a picture."""


def mllama(fields: Fields, name: str) -> ModelSpec:
    """The decoder; its cross-attention has Llama's sizes, normed heads and no positions."""
    spec = llama(Fields({"rope_theta": 500_000.0, "rms_norm_eps": 1e-5, **fields.values}), name)
    if spec.tie_embeddings:
        raise ConfigError("tie_word_embeddings is true, expected a head of its own: the picture's token has no logit")
    count = len(spec.layers)
    crossing = fields.numbers("cross_attention_layers") or _EVERY
    if not set(crossing) < set(range(count)):
        told = ", ".join(f"{each:g}" for each in crossing)
        raise ConfigError(f"cross_attention_layers are {told}, expected some of the layers 0 to {count - 1}")
    own = spec.layers[0]
    attention = replace(own.attention, name="cross_attn", rope=None, qk_norm="head")
    cross = LayerSpec(None, own.mlp, _NORMS, cross=attention, picture_gates=_GATES)
    layers = tuple(cross if layer in crossing else own for layer in range(count))
    return replace(spec, layers=layers, vocab_size=spec.vocab_size + _UNSAID, unsaid=_UNSAID)


def states_of_picture(vision: Fields) -> int:
    """The most states of a picture, to which tokens attend: one for each patch of each tile, and one more a tile."""
    side = vision.integer("image_size", 448) // vision.integer("patch_size", 14)
    return vision.integer("max_num_tiles", 4, most=MOST_TILES) * (side * side + 1)
