"""Describes Moonshine Streaming, whose encoder sees a window of audio around each position. Torch-free."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from stentor.protocols.ipc.audio import MAX_WINDOW_SECONDS, SAMPLE_RATE

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import Activation, MLPSpec
from ..spec.model import Backbone
from .encoder_decoder import LONGEST_TRANSCRIPT, MOST_POSITIONS
from .moonshine import MoonshineDecoderConfig, activation_of, moonshine_rope

ARCHITECTURE = "MoonshineStreamingForConditionalGeneration"
MODEL_TYPE = "moonshine_streaming"
FRAME: Final = 80
"""Samples of a frame: 5 ms."""
WIDTH: Final = 5
"""Frames of both convolutions, which halve them."""
SAMPLES_A_POSITION: Final = 4 * FRAME
_WINDOWS: Final = ((16, 4), (16, 4), (16, 0), (16, 0), (16, 4), (16, 4))


class MoonshineStreamingConfig(MoonshineDecoderConfig, frozen=True, kw_only=True):
    """An encoder over frames of samples, without positions; the decoder's positions of audio are learned."""

    stored_positions: int
    """Rows of the table of positions of audio."""
    encoder_hidden_size: int
    encoder_intermediate_size: int
    encoder_heads: int
    encoder_bias: bool
    encoder_activation: Activation
    windows: tuple[tuple[int, int], ...]
    """Of each layer of the encoder: positions that one sees, itself included, and the first behind it that it does
    not."""

    def positions(self, samples: int) -> int:
        return halved(halved(-(-max(samples, FRAME) // FRAME)))

    @property
    def encoder(self) -> Backbone:
        """The encoder as layers over positions of audio instead of tokens."""
        heads, head_dim = self.encoder_heads, self.encoder_hidden_size // self.encoder_heads
        norms = Norms(mixer_in="input_layernorm", mlp_in="post_attention_layernorm", kind="layer")
        inner = self.encoder_intermediate_size
        mlp = MLPSpec(inner, self.encoder_activation, True, ("mlp.fc1",), "mlp.fc2", gated=False)
        bias = self.encoder_bias
        mixer = AttentionSpec(heads, heads, head_dim, head_dim**-0.5, None, qkv_bias=bias, output_bias=bias)
        layers = tuple(
            LayerSpec(replace(mixer, window=before, ahead=max(behind - 1, 0)), mlp, norms)
            for before, behind in self.windows
        )
        made = self.backbone("model.encoder.layers", layers, self.source_positions)
        return replace(made, hidden_size=self.encoder_hidden_size, norm_plus_one=True)


def halved(frames: int) -> int:
    """Frames of a convolution that sees those before and steps over two."""
    return (frames - 1) // 2 + 1


def moonshine_streaming_config_from_hf(
    config: Mapping[str, object], generation: Mapping[str, object]
) -> MoonshineStreamingConfig:
    """Read a config.json and a generation_config.json, which may be empty.

    Raises :class:`ConfigError` for a missing or wrong field.
    """
    fields = Fields(config)
    encoder = Fields(fields.table("encoder_config") or {})
    hidden, heads = _sizes(fields, "")
    encoder_hidden, encoder_heads = _sizes(encoder, "encoder_config's ")
    samples = encoder.number("frame_ms", 5.0) * encoder.integer("sample_rate", SAMPLE_RATE) / 1000
    if samples != FRAME or encoder.integer("sample_rate", SAMPLE_RATE) != SAMPLE_RATE:
        raise ConfigError(f"encoder_config's frames have {samples:g} samples, expected {FRAME} at 16 kHz")
    layers = encoder.integer("num_hidden_layers", 6, most=MOST_LAYERS)
    windows = _pairs(encoder.get("sliding_windows"))
    if len(windows) < layers:
        raise ConfigError(f"sliding_windows has {len(windows)} entries for {layers} layers")
    longest = fields.integer("max_position_embeddings", 4096, most=MOST_POSITIONS)
    positions = MAX_WINDOW_SECONDS * SAMPLE_RATE // SAMPLES_A_POSITION
    if longest < positions:
        raise ConfigError(f"max_position_embeddings is {longest}, expected {positions}, for 30 seconds of audio")
    plain = {"max_position_embeddings": longest, **({} if fields.table("rope_parameters") else _ROTATION)}
    return MoonshineStreamingConfig(
        architecture=ARCHITECTURE,
        vocab_size=fields.integer("vocab_size", 32768),
        hidden_size=hidden,
        source_positions=positions,
        num_layers=fields.integer("num_hidden_layers", 6, most=MOST_LAYERS),
        num_heads=heads,
        max_position=min(longest, LONGEST_TRANSCRIPT),
        stored_positions=longest,
        bos_token_id=fields.token_id("bos_token_id"),
        eos_token_ids=Fields(generation).token_ids("eos_token_id") or fields.token_ids("eos_token_id") or (2,),
        head="" if fields.flag("tie_word_embeddings") else "proj_out",
        intermediate_size=fields.integer("intermediate_size", 1280),
        decoder_activation=activation_of(fields, "hidden_act", "silu"),
        rope=moonshine_rope({**plain, **config}, hidden // heads),
        attention_bias=fields.flag("attention_bias"),
        encoder_hidden_size=encoder_hidden,
        encoder_intermediate_size=encoder.integer("intermediate_size", 1280),
        encoder_heads=encoder_heads,
        encoder_bias=encoder.flag("attention_bias"),
        encoder_activation=activation_of(encoder, "hidden_act", "gelu"),
        windows=windows[:layers],
    )


_ROTATION: Final[Mapping[str, object]] = {"partial_rotary_factor": 0.8}


def _sizes(fields: Fields, of: str) -> tuple[int, int]:
    """Hidden size and heads."""
    hidden, heads = fields.integer("hidden_size", 320), fields.integer("num_attention_heads", 8)
    if (found := fields.integer("num_key_value_heads", heads)) != heads:
        raise ConfigError(f"{of}num_key_value_heads is {found}, expected {heads}, as num_attention_heads")
    if hidden != heads * fields.integer("head_dim", hidden // heads):
        raise ConfigError(f"{of}{hidden} dimensions do not divide among {heads} heads, or head_dim is another")
    return hidden, heads


def _pairs(found: object) -> tuple[tuple[int, int], ...]:
    if found is None:
        return _WINDOWS
    pairs: list[tuple[int, int]] = []
    for item in found if isinstance(found, Sequence) and not isinstance(found, str) else (found,):
        match item:
            case [int(before), int(behind)] if 1 <= before <= MOST_POSITIONS and 0 <= behind <= MOST_POSITIONS:
                pairs.append((before, behind))
            case _:
                raise ConfigError(f"sliding_windows holds {str(item)[:60]!r}, expected pairs of two numbers")
    return tuple(pairs)
