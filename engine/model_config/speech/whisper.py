"""Describes a Whisper model (arXiv:2212.04356), independent of its file format. Torch-free."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import MLPSpec
from ..spec.model import Backbone
from ..spec.token_input import TokenInputSpec
from .encoder_decoder import MOST_POSITIONS, EncoderDecoderConfig

ARCHITECTURE = "WhisperForConditionalGeneration"
HOP = 160
"""Samples between spectrogram frames, at 16 kHz."""
FRAMES_PER_POSITION = 2
"""The second convolution halves the frames."""
SECONDS_PER_POSITION = 0.02
"""Time of one encoder position."""
_EPS = 1e-5
MOST_MEL_BINS = 1024


def whisper_layer(hidden: int, heads: int, inner: int) -> LayerSpec:
    """A layer of the encoder, or of the decoder without cross-attention."""
    head_dim = hidden // heads
    mixer = AttentionSpec(heads, heads, head_dim, head_dim**-0.5, None, out="out_proj")
    mixer = replace(mixer, qkv_bias=True, key_bias=False, output_bias=True)
    norms = Norms(mixer_in="self_attn_layer_norm", mlp_in="final_layer_norm", kind="layer", bias=True)
    return LayerSpec(mixer, MLPSpec(inner, "gelu", True, ("fc1",), "fc2", gated=False), norms)


class WhisperConfig(EncoderDecoderConfig, frozen=True, kw_only=True):
    """An encoder over log-mel frames, and a decoder with learned positions."""

    mel_bins: int
    encoder_layers: int
    encoder_heads: int
    encoder_intermediate_size: int
    intermediate_size: int
    """Inner size of the decoder's MLPs."""
    suppressed: tuple[int, ...] = ()
    """Tokens that no transcript contains."""
    suppressed_first: tuple[int, ...] = ()
    """Tokens that no transcript begins with."""

    @property
    def encoder(self) -> Backbone:
        """The encoder as layers over positions of audio instead of tokens."""
        layer = whisper_layer(self.hidden_size, self.encoder_heads, self.encoder_intermediate_size)
        return self.backbone("model.encoder.layers", (layer,) * self.encoder_layers, self.source_positions)

    @property
    def decoder(self) -> Backbone:
        layer = whisper_layer(self.hidden_size, self.num_heads, self.intermediate_size)
        cross = replace(layer.attention, name="encoder_attn")
        layer = replace(layer, cross=cross, norms=replace(layer.norms, cross_in="encoder_attn_layer_norm"))
        return self.backbone("model.decoder.layers", (layer,) * self.num_layers, self.max_position)

    @property
    def decoder_norm(self) -> str:
        return "model.decoder.layer_norm"

    @property
    def decoder_input(self) -> TokenInputSpec:
        return TokenInputSpec(positions="model.decoder.embed_positions")

    @property
    def aligns(self) -> bool:
        return True

    @property
    def frames(self) -> int:
        """Spectrogram frames of one window."""
        return self.source_positions * FRAMES_PER_POSITION

    @property
    def samples(self) -> int:
        return self.frames * HOP

    def positions(self, samples: int) -> int:
        """All of a window: it is filled with silence."""
        return self.source_positions


def whisper_config_from_hf(config: Mapping[str, object], generation: Mapping[str, object]) -> WhisperConfig:
    """Read a config.json and a generation_config.json, which may be empty.

    Raises :class:`ConfigError` for a missing or wrong field.
    """
    fields, generated = Fields(config), Fields(generation)
    activation = fields.text("activation_function", "gelu")
    if activation != "gelu":
        raise ConfigError(f"activation_function is {activation!r}, expected 'gelu'")
    if fields.flag("scale_embedding"):
        raise ConfigError("scale_embedding is set, and only models that do not scale their embeddings are supported")
    if not fields.flag("tie_word_embeddings", True):
        raise ConfigError("tie_word_embeddings is off, and only models whose head is the embedding are supported")
    suppressed = {name: _first_of(name, generated, fields) for name in ("suppress_tokens", "begin_suppress_tokens")}
    return checked_whisper(
        WhisperConfig(
            architecture=ARCHITECTURE,
            vocab_size=fields.integer("vocab_size", 51865),
            hidden_size=fields.integer("d_model", 384),
            mel_bins=fields.integer("num_mel_bins", 80, most=MOST_MEL_BINS),
            source_positions=fields.integer("max_source_positions", 1500, most=MOST_POSITIONS),
            encoder_layers=fields.integer("encoder_layers", 4, most=MOST_LAYERS),
            encoder_heads=fields.integer("encoder_attention_heads", 6),
            encoder_intermediate_size=fields.integer("encoder_ffn_dim", 1536),
            num_layers=fields.integer("decoder_layers", 4, most=MOST_LAYERS),
            num_heads=fields.integer("decoder_attention_heads", 6),
            intermediate_size=fields.integer("decoder_ffn_dim", 1536),
            max_position=fields.integer("max_target_positions", 448, most=MOST_POSITIONS),
            bos_token_id=fields.token_id("bos_token_id"),
            eos_token_ids=generated.token_ids("eos_token_id") or fields.token_ids("eos_token_id"),
            suppressed=suppressed["suppress_tokens"],
            suppressed_first=suppressed["begin_suppress_tokens"],
            alignment_heads=_pairs(generated, "alignment_heads"),
            median_filter=fields.integer("median_filter_width", 7, most=MOST_POSITIONS),
        )
    )


def whisper_config_from_ct2(
    config: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]], heads: tuple[int, int], eot: int | None
) -> WhisperConfig:
    """Read CTranslate2's config.json and variables.

    ``shapes``: of all variables. ``heads``: the encoder's and the decoder's. ``eot``: id of <|endoftext|>. Raises
    :class:`ConfigError` for missing or wrong values.
    """
    fields = Fields(config)

    def shape(name: str, dimensions: int) -> tuple[int, ...]:
        found = shapes.get(name)
        if found is None or len(found) != dimensions or not all(found):
            raise ConfigError(f"{name} has the shape {found}, expected {dimensions} dimensions")
        return found

    def layers(side: str) -> int:
        names = {name.split("/")[1] for name in shapes if name.startswith(f"{side}/layer_")}
        return len(names - {"layer_norm"})

    vocab_size, hidden = shape("decoder/embeddings/weight", 2)
    counts = layers("encoder"), layers("decoder")
    if not all(0 < count <= MOST_LAYERS for count in counts):
        raise ConfigError(f"it has {counts[0]} encoder and {counts[1]} decoder layers, expected 1 to {MOST_LAYERS}")
    return checked_whisper(
        WhisperConfig(
            architecture=ARCHITECTURE,
            vocab_size=vocab_size,
            hidden_size=hidden,
            mel_bins=shape("encoder/conv1/weight", 3)[1],
            source_positions=shape("encoder/position_encodings/encodings", 2)[0],
            encoder_layers=counts[0],
            encoder_heads=heads[0],
            encoder_intermediate_size=shape("encoder/layer_0/ffn/linear_0/weight", 2)[0],
            num_layers=counts[1],
            num_heads=heads[1],
            intermediate_size=shape("decoder/layer_0/ffn/linear_0/weight", 2)[0],
            max_position=shape("decoder/position_encodings/encodings", 2)[0],
            bos_token_id=eot,
            eos_token_ids=() if eot is None else (eot,),
            suppressed=fields.token_ids("suppress_ids"),
            suppressed_first=fields.token_ids("suppress_ids_begin"),
            alignment_heads=_pairs(fields, "alignment_heads"),
        )
    )


def checked_whisper(config: WhisperConfig) -> WhisperConfig:
    """The config. Raises :class:`ConfigError` for contradictory fields."""
    for side, heads in (("encoder", config.encoder_heads), ("decoder", config.num_heads)):
        if heads <= 0 or config.hidden_size % heads:
            raise ConfigError(f"{config.hidden_size} dimensions do not divide among {heads} heads of the {side}")
    if config.median_filter % 2 == 0:
        raise ConfigError(f"median_filter_width is {config.median_filter}, expected an odd number")
    for layer, head in config.alignment_heads:
        if layer >= config.num_layers or head >= config.num_heads:
            raise ConfigError(
                f"alignment_heads names head {head} of layer {layer}, of {config.num_heads} in {config.num_layers}"
            )
    largest = max((*config.suppressed, *config.suppressed_first, *config.eos_token_ids), default=0)
    if largest >= config.vocab_size:
        raise ConfigError(f"the token {largest} is named, of a vocabulary of {config.vocab_size}")
    return config


def _first_of(name: str, *places: Fields) -> tuple[int, ...]:
    """Token ids from the first place with the field."""
    return next((fields.token_ids(name) for fields in places if fields.has(name)), ())


def _pairs(fields: Fields, name: str) -> tuple[tuple[int, int], ...]:
    found = fields.get(name)
    if found is None:
        return ()
    pairs: list[tuple[int, int]] = []
    for item in found if isinstance(found, Sequence) and not isinstance(found, str) else (found,):
        match item:
            case [int(layer), int(head)] if layer >= 0 and head >= 0:
                pairs.append((layer, head))
            case _:
                raise ConfigError(f"{name} holds {str(item)[:60]!r}, expected pairs of a layer and a head")
    return tuple(pairs)
