"""Describes Kyutai's speech-to-text models: a decoder that hears the codes of a streaming audio codec (Mimi).
Torch-free."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from ..config_fields import LARGEST_SIZE, MOST_LAYERS, ConfigError, Fields
from ..hf.common import with_defaults
from ..hf.config import model_spec_from_hf
from ..spec.model import dense_mlp, with_layers
from .streamed import StreamedConfig

ARCHITECTURE: Final = "KyutaiSpeechToTextForConditionalGeneration"
MODEL_TYPE: Final = "kyutai_speech_to_text"
CODEC_RATE: Final = 24_000
"""Samples a second that the codec hears."""
RESAMPLED_AHEAD: Final = 20
"""Samples at 16 kHz behind its own that a sample of the codec's depends on
(:class:`...layers.audio.prompt_resample.PromptResampler`)."""
_UP, _DOWN = 3, 2
"""Samples of the codec for those at 16 kHz."""
_HALVED: Final = 2
"""Positions of the codec's transformer for one of its frames."""
_LEAST_POSITIONS: Final = 8192
"""Positions that a request may have whatever the file says: ten minutes and more. ``max_position_embeddings`` bounds
nothing, since a position sees no more than the window before it, and rotations are relative."""
_DEFAULTS: Final[Mapping[str, Any]] = {
    "vocab_size": 4001,
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "max_position_embeddings": 750,
    "hidden_act": "silu",
    "sliding_window": 375,
    "rms_norm_eps": 1e-8,
}
"""Those of transformers' KyutaiSpeechToTextConfig."""


class KyutaiConfig(StreamedConfig, frozen=True, kw_only=True):
    """The decoder's last token begins each stream, and is never written."""

    codec: Mapping[str, object]
    """The codec's part of the config.json."""
    frame: int
    """Samples of the codec for one position."""
    codebooks: int
    codebook_size: int
    """Rows of the embeddings of each codebook."""
    begin_code: int
    """Of all codebooks at the first position, which hears nothing."""
    begin_row: int
    """Row of the stored embeddings that begins a stream."""
    cached: int
    """Numbers of a long stream's keys and values in the codec."""

    @property
    def stored_text(self) -> int:
        """Stored rows of text tokens, before those of codes."""
        return self.decoder.vocab_size - self.decoder.unsaid

    @property
    def stored_rows(self) -> int:
        """Rows of the stored embeddings: of text, of codes, and one of padding."""
        return self.stored_text + self.codebooks * self.codebook_size + 1

    @property
    def begin_token(self) -> int:
        return self.decoder.vocab_size - 1

    @property
    def step(self) -> int:
        return self.frame * _DOWN // _UP

    @property
    def first(self) -> int:
        return RESAMPLED_AHEAD


def kyutai_config_from_hf(config: Mapping[str, object]) -> KyutaiConfig:
    """Read a config.json. Raises :class:`ConfigError` for a missing or wrong field."""
    fields = with_defaults(Fields(config), **_DEFAULTS)
    codec = fields.table("codec_config")
    if codec is None:
        raise ConfigError("codec_config is missing, expected the settings of its codec")
    if (doubled := fields.integer("ffn_dim", 11264)) % 2:
        raise ConfigError(f"ffn_dim is {doubled}, expected an even number: gates and what they gate")
    if fields.flag("tie_word_embeddings"):
        raise ConfigError("tie_word_embeddings is true, expected false: the embeddings have rows of codes too")
    codebooks = fields.integer("num_codebooks", 32, most=1024)
    codebook_size = fields.integer("codebook_vocab_size", 2049)
    begin_code = fields.integer("audio_bos_token_id", 2048, least=0, most=codebook_size - 1)
    text = fields.integer("vocab_size")
    rows = text + codebooks * codebook_size + 1
    if rows > LARGEST_SIZE:
        raise ConfigError(f"the embeddings have {rows} rows, expected at most {LARGEST_SIZE}")
    begin_row = fields.integer("bos_token_id", 48000, least=0, most=rows - 1)
    decoder = model_spec_from_hf(
        {
            **fields.values,
            "architectures": ["MistralForCausalLM"],
            "intermediate_size": doubled // 2,
            "max_position_embeddings": max(_LEAST_POSITIONS, fields.integer("max_position_embeddings")),
        }
    )
    mlp = replace(dense_mlp(decoder), into=("mlp.fc1",), out="mlp.fc2")
    frame, codec_codes, cached = _codec(Fields(codec))
    if codec_codes[0] != codebooks:
        raise ConfigError(f"codec_config's num_quantizers is {codec_codes[0]}, expected num_codebooks, {codebooks}")
    if codec_codes[1] > codebook_size:
        raise ConfigError(
            f"codec_config's codebook_size is {codec_codes[1]}, expected at most codebook_vocab_size, {codebook_size}"
        )
    return KyutaiConfig(
        architecture=ARCHITECTURE,
        decoder=replace(with_layers(decoder, mlp=mlp), vocab_size=text + 1, unsaid=1, bos_token_id=text),
        codec=codec,
        frame=frame,
        codebooks=codebooks,
        codebook_size=codebook_size,
        begin_code=begin_code,
        begin_row=begin_row,
        cached=cached,
    )


def _codec(codec: Fields) -> tuple[int, tuple[int, int], int]:
    """Samples of a frame; codebooks and codes of each; numbers of a long stream's keys and values."""
    expected: Mapping[str, object] = {
        "model_type": "mimi",
        "sampling_rate": CODEC_RATE,
        "audio_channels": 1,
        "use_causal_conv": True,
        "use_conv_shortcut": False,
    }
    for name, value in expected.items():
        if codec.has(name) and codec.get(name) != value:
            raise ConfigError(f"codec_config's {name} is {str(codec.get(name))[:40]}, expected {value}")
    if (mode := codec.text("pad_mode", "constant")) not in ("constant", "replicate"):
        raise ConfigError(f"codec_config's pad_mode is {mode!r}, expected 'constant' or 'replicate' to stream audio")
    frame = _HALVED * math.prod(_ratios(codec.get("upsampling_ratios")))
    rate = codec.number("frame_rate", CODEC_RATE / frame)
    if rate * frame != CODEC_RATE:
        raise ConfigError(f"codec_config's frame_rate is {rate:g}, expected {CODEC_RATE / frame:g} by its ratios")
    if frame % _UP:
        raise ConfigError(f"a frame of the codec has {frame} samples, expected a multiple of {_UP}")
    hidden, heads = codec.integer("hidden_size", 512), codec.integer("num_attention_heads", 8)
    width = codec.integer("num_key_value_heads", heads) * codec.integer("head_dim", max(1, hidden // heads))
    layers = codec.integer("num_hidden_layers", 8, most=MOST_LAYERS)
    cached = 2 * layers * width * codec.integer("sliding_window", 250)
    return frame, (codec.integer("num_quantizers", 32), codec.integer("codebook_size", 2048)), cached


def _ratios(found: object) -> Sequence[int]:
    if found is None:
        return (8, 6, 5, 4)
    listed = found if isinstance(found, list | tuple) else ()
    ratios = [each for each in listed if isinstance(each, int) and 0 < each < 1 << 16]
    if not ratios or len(ratios) != len(listed):
        raise ConfigError(f"codec_config's upsampling_ratios is {str(found)[:60]!r}, expected a list of numbers")
    return ratios
