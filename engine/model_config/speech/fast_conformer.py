"""Describes Fast Conformer encoders (arXiv:2305.05084), and transcription models with one and a decoder with positions:
Canary and Cohere Transcribe. Torch-free."""

import math
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from stentor.protocols.ipc.audio import MAX_WINDOW_SECONDS, SAMPLE_RATE
from stentor.protocols.ipc.inputs import StreamShape

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import Activation, MLPSpec
from ..spec.model import Backbone
from ..spec.token_input import TokenInputSpec
from .encoder_decoder import LONGEST_TRANSCRIPT, MOST_POSITIONS, EncoderDecoderConfig
from .moonshine import activation_of

CANARY = "CanaryForConditionalGeneration"
COHERE = "CohereAsrForConditionalGeneration"
CANARY_TYPE = "canary"
COHERE_TYPE = "cohere_asr"
HOP: Final = 160
"""Samples between spectrogram frames, at 16 kHz."""
SUBSAMPLING: Final = 8
"""Frames of a position."""
FEWEST_SAMPLES: Final = SAMPLE_RATE // 10
"""Shorter audio is filled with silence: frames are normed by their deviation."""
MOST_SAMPLES: Final = MAX_WINDOW_SECONDS * SAMPLE_RATE
_SEEN_BEYOND: Final = 6
"""Frames: a window of samples has a position more than every eighth of its frames, and another if so many follow."""
_EPS = 1e-5
_MOST_MEL_BINS = 1024
_MOST_WIDTH = 1023
_HALVINGS = 3


_PROJECTIONS: Final = (
    ("query_net", "q_proj"),
    ("key_net", "k_proj"),
    ("value_net", "v_proj"),
    ("out_projection", "o_proj"),
)


class CausalSpec(msgspec.Struct, frozen=True):
    """An encoder that was trained to stream (arXiv:2312.17279): convolutions are causal, and attention is by chunks.

    Their spectrograms are not normed, and their convolutions over positions have a layer norm in place of a batch norm.
    """

    chunk: int
    """Positions that see one another."""
    earlier: int
    """Chunks before its own that a position sees."""

    def frames_of(self, positions: int) -> int:
        """Frames that the first ``positions`` positions see: of the last one, one more than of those before it."""
        return SUBSAMPLING * (positions - 1) + 1

    @property
    def shape(self) -> StreamShape:
        """How chunks of streamed audio follow the samples.

        A chunk waits for a few frames more than it sees. Then what follows the last whole one has a position always,
        since convolutions see zeros behind the last frame.
        """
        step = self.chunk * SUBSAMPLING * HOP
        return StreamShape(step - _SEEN_BEYOND * HOP, step, tail=True)


class KeyDistances(msgspec.Struct, frozen=True):
    """Attention whose scores get the product of a query and a vector for the distance of the key (arXiv:1803.02155)."""

    earlier: int
    """From this distance on all earlier keys have one vector."""
    later: int


class ConformerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of two networks, attention by relative positions and a convolution (arXiv:2005.08100)."""

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    activation: Activation
    bias: bool
    """Whether attention and networks have biases."""
    convolution_bias: bool
    width: int
    """Positions that the convolution sees; odd."""
    causal: CausalSpec | None = None
    """None: attention sees all of its window."""
    keys: KeyDistances | None = None
    """None: distances are sinusoids."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    @property
    def convolves_back(self) -> bool:
        """Whether convolutions see earlier positions alone, with a layer norm in place of a batch norm."""
        return self.causal is not None or self.keys is not None


class FastConformerSpec(ConformerSpec, frozen=True, kw_only=True):
    """A Conformer over frames joined by eight."""

    channels: int
    """Of the convolutions over frames."""
    mel_bins: int
    scaled: bool
    """Whether their result is multiplied by √hidden."""

    @property
    def sampled_bins(self) -> int:
        """Mel bins behind the convolutions over frames."""
        return self._halved(self.mel_bins)

    def positions(self, samples: int) -> int:
        """The number of positions of a window of ``samples``."""
        return self._halved(max(samples, FEWEST_SAMPLES) // HOP)

    def _halved(self, size: int) -> int:
        """A size after all convolutions with stride 2; causal ones are padded at the beginning."""
        for _ in range(_HALVINGS):
            size = (size + 1) // 2 if self.causal is None else size // 2 + 1
        return size


class FastConformerConfig(EncoderDecoderConfig, frozen=True, kw_only=True):
    """A window has as many positions as audio."""

    encoder: FastConformerSpec
    intermediate_size: int
    """Inner size of the decoder's MLPs."""
    activation: Activation
    attention_bias: bool
    dither: float = 0.0
    """Deviation of noise that is added to samples."""
    project: bool = False
    """Whether the encoder's output is projected to the decoder's size."""
    positions_stored: bool = True
    """Whether the decoder's positions are stored; otherwise they are sinusoids."""
    stored_positions: int
    """Rows of their table."""

    @property
    def samples(self) -> int:
        return MOST_SAMPLES

    def positions(self, samples: int) -> int:
        return self.encoder.positions(samples)

    @property
    def decoder(self) -> Backbone:
        bias, norms = (
            self.attention_bias,
            Norms(
                mixer_in="input_layernorm",
                cross_in="post_attention_layernorm",
                mlp_in="final_layernorm",
                kind="layer",
                bias=True,
            ),
        )
        mixer = AttentionSpec(
            self.num_heads, self.num_heads, self.head_dim, self.head_dim**-0.5, None, qkv_bias=bias, output_bias=bias
        )
        mlp = MLPSpec(self.intermediate_size, self.activation, True, ("mlp.fc1",), "mlp.fc2", gated=False)
        layer = LayerSpec(mixer, mlp, norms, cross=replace(mixer, name="encoder_attn"))
        return self.backbone("model.decoder.layers", (layer,) * self.num_layers, self.max_position)

    @property
    def decoder_norm(self) -> str:
        return "model.decoder.norm"

    def name_of(self, stored: str) -> str:
        """Files of Cohere Transcribe have other names, with or without ``model.`` before them."""
        for theirs, ours in _NAMES:
            stored = stored.replace(theirs, ours)
        return f"model.{stored}" if stored.startswith(("encoder.", "decoder.")) else stored

    @property
    def decoder_input(self) -> TokenInputSpec:
        return TokenInputSpec(
            positions="model.decoder.pos_emb" if self.positions_stored else "",
            rows=self.stored_positions,
            sinusoids="" if self.positions_stored else "open",
            sinusoid_scale=1 / math.sqrt(self.hidden_size),
            norm="model.decoder.embedding_layernorm",
        )


_NAMES: Final = (
    ("pre_encode.conv.", "subsampling.layers."),
    ("pre_encode.out.", "subsampling.linear."),
    ("transf_decoder._embedding.position_embedding.pos_enc", "decoder.pos_emb.weight"),
    ("transf_decoder._embedding.token_embedding.", "decoder.embed_tokens."),
    ("transf_decoder._embedding.layer_norm.", "decoder.embedding_layernorm."),
    ("transf_decoder._decoder.final_layer_norm.", "decoder.norm."),
    ("transf_decoder._decoder.layers.", "decoder.layers."),
    ("encoder_decoder_proj.", "decoder.proj."),
    *((f"self_attn.linear_{theirs}.", f"self_attn.{theirs}_proj.") for theirs in "qkv"),
    ("self_attn.linear_out.", "self_attn.o_proj."),
    ("self_attn.linear_pos.", "self_attn.relative_k_proj."),
    ("self_attn.pos_bias_", "self_attn.bias_"),
    ("conv.batch_norm.", "conv.norm."),
    *((f"first_sub_layer.{theirs}.", f"self_attn.{ours}.") for theirs, ours in _PROJECTIONS),
    *((f"second_sub_layer.{theirs}.", f"encoder_attn.{ours}.") for theirs, ours in _PROJECTIONS),
    ("third_sub_layer.dense_in.", "mlp.fc1."),
    ("third_sub_layer.dense_out.", "mlp.fc2."),
    (".layer_norm_1.", ".input_layernorm."),
    (".layer_norm_2.", ".post_attention_layernorm."),
    (".layer_norm_3.", ".final_layernorm."),
    ("log_softmax.mlp.layer0.", "proj_out."),
)
"""Parts of names in published files, and what they are here."""
PARAKEET_ENCODER: Final[Mapping[str, object]] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "intermediate_size": 4096,
    "num_mel_bins": 80,
    "scale_input": True,
}
"""Defaults of the fields of an ``encoder_config``."""
_CANARY_ENCODER: Final[Mapping[str, object]] = {
    **PARAKEET_ENCODER,
    "num_hidden_layers": 32,
    "num_mel_bins": 128,
    "scale_input": False,
}
"""The encoder of files without an ``encoder_config``."""
_COHERE_ENCODER: Final[Mapping[str, object]] = {
    **_CANARY_ENCODER,
    "hidden_size": 1280,
    "num_hidden_layers": 48,
    "intermediate_size": 5120,
}


def canary_config_from_hf(config: Mapping[str, object], generation: Mapping[str, object]) -> FastConformerConfig:
    """Read a config.json and a generation_config.json, which may be empty.

    Raises :class:`ConfigError` for a missing or wrong field.
    """
    fields = Fields(config)
    decoder = Fields(fields.table("decoder_config") or {})
    tied = fields.flag("tie_word_embeddings", True)
    defaults = PARAKEET_ENCODER if fields.has("encoder_config") else _CANARY_ENCODER
    found = _config(CANARY, fields, decoder, generation, defaults, tied=tied)
    if found.encoder.hidden_size != found.hidden_size:
        raise ConfigError(
            f"encoder_config's hidden_size is {found.encoder.hidden_size}, expected {found.hidden_size}, the decoder's"
        )
    return replace(found, positions_stored=False)


def cohere_asr_config_from_hf(config: Mapping[str, object], generation: Mapping[str, object]) -> FastConformerConfig:
    """Read a config.json and a generation_config.json of Cohere Transcribe; the latter may be empty.

    Raises :class:`ConfigError` for a missing or wrong field.
    """
    fields = Fields(config)
    tied = fields.flag("tie_word_embeddings")
    found = _config(COHERE, fields, fields, generation, _COHERE_ENCODER, tied=tied)
    return replace(found, project=True, dither=1e-5)


def _config(
    architecture: str,
    fields: Fields,
    decoder: Fields,
    generation: Mapping[str, object],
    defaults: Mapping[str, object],
    *,
    tied: bool,
) -> FastConformerConfig:
    encoder = fast_conformer_spec({**defaults, **(fields.table("encoder_config") or {})})
    hidden, heads = decoder.integer("hidden_size", 1024), decoder.integer("num_attention_heads", 8)
    if (found := decoder.integer("num_key_value_heads", heads)) != heads:
        raise ConfigError(f"num_key_value_heads is {found}, expected {heads}, as num_attention_heads")
    if hidden != heads * decoder.integer("head_dim", hidden // heads):
        raise ConfigError(f"{hidden} dimensions do not divide among {heads} heads, or head_dim is another")
    longest = decoder.integer("max_position_embeddings", 1024, most=MOST_POSITIONS)
    return FastConformerConfig(
        architecture=architecture,
        vocab_size=decoder.integer("vocab_size", 16384),
        hidden_size=hidden,
        source_positions=encoder.positions(MOST_SAMPLES),
        num_layers=decoder.integer("num_hidden_layers", 8, most=MOST_LAYERS),
        num_heads=heads,
        max_position=min(longest, LONGEST_TRANSCRIPT),
        stored_positions=longest,
        bos_token_id=fields.token_id("bos_token_id"),
        eos_token_ids=Fields(generation).token_ids("eos_token_id") or fields.token_ids("eos_token_id") or (3,),
        head="" if tied else "proj_out",
        head_bias="proj_out",
        encoder=encoder,
        intermediate_size=decoder.integer("intermediate_size", 4096),
        activation=activation_of(decoder, "hidden_act", "relu"),
        attention_bias=decoder.flag("attention_bias", True),
    )


def causal_spec(encoder: Mapping[str, object]) -> CausalSpec:
    """Reads the part of an ``encoder_config`` that says what a position sees. Raises :class:`ConfigError`."""
    fields = Fields(encoder)
    earlier = fields.integer("sliding_window", 71) - 1
    chunk = 1 + fields.integer("default_num_lookahead_tokens", 13, least=0)
    return CausalSpec(chunk, earlier // chunk)


def fast_conformer_spec(encoder: Mapping[str, object], causal: CausalSpec | None = None) -> FastConformerSpec:
    """Reads an ``encoder_config``. Raises :class:`ConfigError`."""
    fields = Fields(encoder)
    for name, expected in (
        ("subsampling_factor", SUBSAMPLING),
        ("subsampling_conv_kernel_size", 3),
        ("subsampling_conv_stride", 2),
    ):
        if (found := fields.integer(name, expected)) != expected:
            raise ConfigError(f"encoder_config's {name} is {found}, expected {expected}")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads", 8)
    width = fields.integer("conv_kernel_size", 9, most=_MOST_WIDTH)
    bins = fields.integer("num_mel_bins", 128, most=_MOST_MEL_BINS)
    if hidden % (2 * heads):
        raise ConfigError(f"encoder_config's {hidden} dimensions do not divide among {heads} heads")
    if width % 2 == 0:
        raise ConfigError(f"encoder_config's conv_kernel_size is {width}, expected an odd number")
    if bins % SUBSAMPLING:
        raise ConfigError(f"encoder_config's num_mel_bins is {bins}, expected a multiple of {SUBSAMPLING}")
    return FastConformerSpec(
        hidden_size=hidden,
        layers=fields.integer("num_hidden_layers", most=MOST_LAYERS),
        heads=heads,
        intermediate_size=fields.integer("intermediate_size"),
        activation=activation_of(fields, "hidden_act", "silu"),
        bias=fields.flag("attention_bias", True),
        convolution_bias=fields.flag("convolution_bias", True),
        width=width,
        channels=fields.integer("subsampling_conv_channels", 256),
        mel_bins=bins,
        scaled=fields.flag("scale_input"),
        causal=causal,
    )
