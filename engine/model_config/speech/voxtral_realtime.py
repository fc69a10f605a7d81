"""Describes Voxtral Realtime: a decoder with a streaming audio encoder. Torch-free."""

from collections.abc import Mapping

import msgspec

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..hf.config import model_spec_from_hf
from ..hf.rope import rope_from_hf
from .streamed import StreamedConfig

ARCHITECTURE = "VoxtralRealtimeForConditionalGeneration"
MODEL_TYPE = "voxtral_realtime"
HOP = 160
"""Samples between spectrogram frames, at 16 kHz."""
HALF_WINDOW = 200
"""Samples of a frame on either side of its middle."""
_STRIDE = 2
"""Stride of both convolutions together."""
_MOST_MEL_BINS = 1024


class StreamEncoderConfig(msgspec.Struct, frozen=True):
    """A causal encoder with a window."""

    mel_bins: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    head_dim: int
    window: int
    """Positions that each sees, itself included."""
    rms_eps: float
    rope_theta: float


class VoxtralRealtimeConfig(StreamedConfig, frozen=True, kw_only=True):
    encoder: StreamEncoderConfig
    downsample: int
    """Encoder positions joined to one decoder position."""
    delay: int
    """Decoder positions by which text lags the audio."""

    @property
    def frames(self) -> int:
        """Spectrogram frames of one decoder position."""
        return self.downsample * _STRIDE

    @property
    def step(self) -> int:
        return self.frames * HOP

    @property
    def first(self) -> int:
        return (self.frames - 1) * HOP + HALF_WINDOW


def voxtral_realtime_config_from_hf(config: Mapping[str, object]) -> VoxtralRealtimeConfig:
    """Read a config.json. Raises :class:`ConfigError` for a missing or wrong field."""
    fields = Fields(config)
    text, audio = fields.table("text_config"), fields.table("audio_config")
    if text is None or audio is None:
        raise ConfigError("text_config or audio_config is missing, expected both")
    tied = {"tie_word_embeddings": fields.flag("tie_word_embeddings", True)}
    decoder = model_spec_from_hf({**text, **tied, "architectures": ["MistralForCausalLM"]})
    encoder = Fields(audio)
    for name, expected in (("activation_function", "gelu"), ("hidden_act", "silu")):
        if (found := encoder.text(name, expected)) != expected:
            raise ConfigError(f"audio_config's {name} is {found!r}, expected {expected!r}")
    if (found := fields.text("projector_hidden_act", "gelu")) != "gelu":
        raise ConfigError(f"projector_hidden_act is {found!r}, expected 'gelu'")
    heads = encoder.integer("num_attention_heads", 32)
    head_dim = encoder.integer("head_dim", 64)
    rope = rope_from_hf({"max_position_embeddings": 1500, **audio}, head_dim)
    if rope.kind != "default" or head_dim % 2:
        raise ConfigError(f"audio_config's rotary positions are of the kind {rope.kind!r}, expected 'default'")
    downsample = fields.integer("downsample_factor", 4)
    if (frames := fields.integer("audio_length_per_tok", 8)) != downsample * _STRIDE:
        raise ConfigError(f"audio_length_per_tok is {frames}, expected twice the downsample_factor, {downsample}")
    return VoxtralRealtimeConfig(
        architecture=ARCHITECTURE,
        decoder=decoder,
        encoder=StreamEncoderConfig(
            mel_bins=encoder.integer("num_mel_bins", 128, most=_MOST_MEL_BINS),
            hidden_size=encoder.integer("hidden_size", 1280),
            intermediate_size=encoder.integer("intermediate_size", 5120),
            num_layers=encoder.integer("num_hidden_layers", 32, most=MOST_LAYERS),
            num_heads=heads,
            head_dim=head_dim,
            window=encoder.integer("sliding_window", 750),
            rms_eps=encoder.number("rms_norm_eps", 1e-5),
            rope_theta=rope.theta,
        ),
        downsample=downsample,
        delay=fields.integer("default_num_delay_tokens", 6, least=0),
    )
