"""Describes Moonshine (arXiv:2410.15608), whose encoder takes samples of audio. Torch-free."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from stentor.protocols.ipc.audio import MAX_WINDOW_SECONDS, SAMPLE_RATE

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..hf.rope import rope_from_hf
from ..spec.attention import AttentionSpec
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import Activation, MLPSpec
from ..spec.model import Backbone
from ..spec.positions import RopeConfig
from ..spec.token_input import EMBEDDINGS, TokenInputSpec
from .encoder_decoder import MOST_POSITIONS, EncoderDecoderConfig

ARCHITECTURE = "MoonshineForConditionalGeneration"
MODEL_TYPE = "moonshine"
CONVOLUTIONS: Final = ((127, 64), (7, 3), (3, 2))
"""Width and stride of the convolutions over samples, in order."""
SAMPLES_A_POSITION: Final = 384
"""The strides multiplied."""
_EPS = 1e-5


class MoonshineDecoderConfig(EncoderDecoderConfig, frozen=True, kw_only=True):
    """The decoder of all Moonshines; its attention rotates."""

    intermediate_size: int
    """Inner size of the decoder's MLPs."""
    decoder_activation: Activation
    rope: RopeConfig
    attention_bias: bool

    @property
    def samples(self) -> int:
        return MAX_WINDOW_SECONDS * SAMPLE_RATE

    @property
    def decoder(self) -> Backbone:
        norms = Norms(
            mixer_in="input_layernorm", cross_in="post_attention_layernorm", mlp_in="final_layernorm", kind="layer"
        )
        mlp = MLPSpec(self.intermediate_size, self.decoder_activation, True, ("mlp.fc1",), "mlp.fc2", gate_last=True)
        layer = LayerSpec(self.attention(self.rope), mlp, norms, cross=self.attention(None, "encoder_attn"))
        return self.backbone("model.decoder.layers", (layer,) * self.num_layers, self.max_position)

    @property
    def decoder_norm(self) -> str:
        return "model.decoder.norm"

    @property
    def decoder_input(self) -> TokenInputSpec:
        return EMBEDDINGS

    def attention(self, rope: RopeConfig | None, name: str = "self_attn") -> AttentionSpec:
        """Attention with the decoder's heads; ``rope`` rotates queries and keys."""
        heads, bias = self.num_heads, self.attention_bias
        return AttentionSpec(heads, heads, self.head_dim, self.head_dim**-0.5, rope, qkv_bias=bias, name=name)


class MoonshineConfig(MoonshineDecoderConfig, frozen=True, kw_only=True):
    """An encoder of the decoder's sizes, over samples. A window has as many positions as audio."""

    encoder_layers: int
    encoder_activation: Activation

    def positions(self, samples: int) -> int:
        return convolved(max(samples, self.fewest_samples))

    @property
    def fewest_samples(self) -> int:
        """Samples of one position; shorter audio is filled with silence."""
        return _FEWEST_SAMPLES

    @property
    def encoder(self) -> Backbone:
        """The encoder as layers over positions of audio instead of tokens."""
        norms = Norms(mixer_in="input_layernorm", mlp_in="post_attention_layernorm", kind="layer")
        mlp = MLPSpec(self.intermediate_size, self.encoder_activation, True, ("mlp.fc1",), "mlp.fc2", gated=False)
        layer = LayerSpec(self.attention(self.rope), mlp, norms)
        return self.backbone("model.encoder.layers", (layer,) * self.encoder_layers, self.source_positions)


def convolved(samples: int) -> int:
    """Positions that the convolutions make of so many samples."""
    for width, stride in CONVOLUTIONS:
        samples = (samples - width) // stride + 1
    return samples


def _fewest() -> int:
    samples = 1
    for width, stride in reversed(CONVOLUTIONS):
        samples = (samples - 1) * stride + width
    return samples


_FEWEST_SAMPLES: Final = _fewest()


def moonshine_config_from_hf(config: Mapping[str, object], generation: Mapping[str, object]) -> MoonshineConfig:
    """Read a config.json and a generation_config.json, which may be empty.

    Raises :class:`ConfigError` for a missing or wrong field.
    """
    fields = Fields(config)
    heads = fields.integer("decoder_num_attention_heads", 8)
    names = ("encoder_num_attention_heads", "encoder_num_key_value_heads", "decoder_num_key_value_heads")
    for name in names:
        if (found := fields.integer(name, heads if name.endswith("value_heads") else 8)) != heads:
            raise ConfigError(f"{name} is {found}, expected {heads}, as decoder_num_attention_heads")
    if not fields.flag("tie_word_embeddings", True):
        raise ConfigError("tie_word_embeddings is off, and only models whose head is the embedding are supported")
    hidden = fields.integer("hidden_size", 288)
    if hidden % heads:
        raise ConfigError(f"{hidden} dimensions do not divide among {heads} heads")
    defaults = {"max_position_embeddings": 512, "partial_rotary_factor": 0.9}
    return MoonshineConfig(
        architecture=ARCHITECTURE,
        vocab_size=fields.integer("vocab_size", 32768),
        hidden_size=hidden,
        source_positions=convolved(MAX_WINDOW_SECONDS * SAMPLE_RATE),
        num_layers=fields.integer("decoder_num_hidden_layers", 6, most=MOST_LAYERS),
        num_heads=heads,
        max_position=fields.integer("max_position_embeddings", 512, most=MOST_POSITIONS),
        bos_token_id=fields.token_id("bos_token_id"),
        eos_token_ids=Fields(generation).token_ids("eos_token_id") or fields.token_ids("eos_token_id") or (2,),
        intermediate_size=fields.integer("intermediate_size", 1152),
        encoder_layers=fields.integer("encoder_num_hidden_layers", 6, most=MOST_LAYERS),
        encoder_activation=activation_of(fields, "encoder_hidden_act", "gelu"),
        decoder_activation=activation_of(fields, "decoder_hidden_act", "silu"),
        rope=moonshine_rope({**defaults, **config}, hidden // heads),
        attention_bias=fields.flag("attention_bias"),
    )


_ACTIVATIONS: Final[Mapping[str, Activation]] = {"gelu": "gelu", "silu": "silu", "swish": "silu", "relu": "relu"}


def activation_of(fields: Fields, name: str, default: Activation) -> Activation:
    """Raises :class:`ConfigError` for an unknown one."""
    return fields.one_of(name, _ACTIVATIONS, default)


def moonshine_rope(config: Mapping[str, object], head_dim: int) -> RopeConfig:
    """The rotation of neighbouring dimensions. Raises :class:`ConfigError` for one with another context."""
    rope = rope_from_hf(config, head_dim)
    if rope.kind != "default":
        raise ConfigError(f"its rotary positions are of the kind {rope.kind!r}, expected 'default'")
    return replace(rope, rotary_dim=rope.rotary_dim or head_dim, interleaved=True)
