"""Describes transcription models that decode frame by frame: an encoder, and a head that gives each position a token or
a blank (CTC), or none or several tokens (transducers). Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stentor.protocols.ipc.audio import SAMPLE_RATE
from stentor.protocols.ipc.inputs import StreamShape

from .config_fields import MOST_LAYERS, ConfigError, Fields
from .ctc_modules_config import ModulesEncoderSpec, modules_encoder
from .encoder_decoder_config import LONGEST_TRANSCRIPT
from .fast_conformer_config import (
    HOP,
    MOST_SAMPLES,
    PARAKEET_ENCODER,
    SUBSAMPLING,
    FastConformerSpec,
    causal_spec,
    fast_conformer_spec,
)
from .mlp_spec import Activation
from .moonshine_config import activation_of

CTC = "ParakeetForCTC"
RNNT = "ParakeetForRNNT"
TDT = "ParakeetForTDT"
CTC_TYPE = "parakeet_ctc"
RNNT_TYPE = "parakeet_rnnt"
TDT_TYPE = "parakeet_tdt"
NEMOTRON = "NemotronAsrStreamingForRNNT"
NEMOTRON_TYPE = "nemotron_asr_streaming"
NEMOTRON_3_5 = "Nemotron3_5AsrForRNNT"
NEMOTRON_3_5_TYPE = "nemotron3_5_asr"
STREAM_SECONDS = 600
"""Of streamed audio in one request, at most."""
_MOST_SYMBOLS = 64
_MOST_DURATIONS = 64
_LONGEST_DURATION = 64
_MOST_PROMPTS = 65536


@dataclass(frozen=True)
class TransducerSpec:
    """An LSTM over the tokens so far, joined with one position of the encoder."""

    hidden_size: int
    layers: int
    activation: Activation
    """Of the sum of both."""
    most_symbols: int
    """Tokens of one position, at most."""
    durations: tuple[int, ...] = ()
    """Positions that a token may take, of which the model chooses one (TDT, arXiv:2304.06795). Empty: a blank takes
    one, and a token none (RNN-T)."""


@dataclass(frozen=True)
class LanguagePromptSpec:
    """Two layers over the encoder's output at each position, joined with a one-hot vector of the language's number."""

    count: int
    intermediate_size: int
    default: int
    """The number that lets the model detect the language."""


@dataclass(frozen=True)
class FramewiseConfig:
    """A transcript is made of one window, without a text before it and without sampling."""

    architecture: str
    """transformers' class name, for messages."""
    vocab_size: int
    blank: int
    encoder: FastConformerSpec | ModulesEncoderSpec
    transducer: TransducerSpec | None
    """None: CTC."""
    languages: LanguagePromptSpec | None = None
    """How a request's language is joined to the encoder's output; None: the model takes no language."""

    @property
    def max_position(self) -> int:
        """Positions of a request, at most: of streamed audio, one for each chunk."""
        longest = 0 if self.stream is None else STREAM_SECONDS * SAMPLE_RATE // self.stream.step + 1
        return max(LONGEST_TRANSCRIPT, longest)

    @property
    def stream(self) -> StreamShape | None:
        """How chunks of streamed audio follow the samples; None if nothing of the model can be kept between them."""
        causal = self.encoder.causal if isinstance(self.encoder, FastConformerSpec) else None
        return None if causal is None or self.transducer is None or self.transducer.durations else causal.shape

    @property
    def source_positions(self) -> int:
        """Encoder positions of the longest window."""
        return self.encoder.positions(MOST_SAMPLES)

    @property
    def samples_a_position(self) -> int:
        encoder = self.encoder
        return encoder.samples_a_position if isinstance(encoder, ModulesEncoderSpec) else HOP * SUBSAMPLING


def parakeet_ctc_config_from_hf(config: Mapping[str, object], _generation: Mapping[str, object]) -> FramewiseConfig:
    """Reads a config.json. Raises :class:`.config_fields.ConfigError` for a missing or wrong field."""
    fields = Fields(config)
    return _config(CTC, fields, fields.integer("vocab_size", 1025), "pad_token_id", 1024, None)


def parakeet_rnnt_config_from_hf(config: Mapping[str, object], _generation: Mapping[str, object]) -> FramewiseConfig:
    """As :func:`parakeet_ctc_config_from_hf`."""
    fields = Fields(config)
    vocab = fields.integer("vocab_size", 8193)
    return _config(RNNT, fields, vocab, "blank_token_id", 8192, _transducer(fields, ()))


def parakeet_tdt_config_from_hf(config: Mapping[str, object], _generation: Mapping[str, object]) -> FramewiseConfig:
    """As :func:`parakeet_ctc_config_from_hf`."""
    fields = Fields(config)
    found = fields.numbers("durations") if fields.has("durations") else (0, 1, 2, 3, 4)
    durations = tuple(int(each) for each in found)
    whole = durations == tuple(found) and all(0 <= each <= _LONGEST_DURATION for each in durations)
    if not whole or not 0 < len(durations) <= _MOST_DURATIONS or not any(durations):
        raise ConfigError(
            f"durations is {list(found)[:8]}, expected up to {_MOST_DURATIONS} whole numbers of positions, of at most "
            f"{_LONGEST_DURATION}, and not 0 alone"
        )
    vocab = fields.integer("vocab_size", 8193)
    return _config(TDT, fields, vocab, "blank_token_id", 8192, _transducer(fields, durations))


def nemotron_asr_config_from_hf(config: Mapping[str, object], _generation: Mapping[str, object]) -> FramewiseConfig:
    """As :func:`parakeet_ctc_config_from_hf`."""
    fields = Fields(config)
    vocab = fields.integer("vocab_size", 1025)
    return _config(NEMOTRON, fields, vocab, "blank_token_id", 1024, _transducer(fields, ()), causal=True)


def nemotron_3_5_asr_config_from_hf(config: Mapping[str, object], _generation: Mapping[str, object]) -> FramewiseConfig:
    """As :func:`parakeet_ctc_config_from_hf`."""
    fields = Fields(config)
    vocab = fields.integer("vocab_size", 13_088)
    count = fields.integer("num_prompts", 128, most=_MOST_PROMPTS)
    default = fields.integer("default_prompt_id", 101, least=0)
    if default >= count:
        raise ConfigError(f"default_prompt_id is {default}, expected one of the {count} of num_prompts")
    languages = LanguagePromptSpec(count, fields.integer("prompt_intermediate_size", 2048), default)
    found = _config(NEMOTRON_3_5, fields, vocab, "blank_token_id", 13_087, _transducer(fields, ()), causal=True)
    return replace(found, languages=languages)


def modules_ctc_config_from_hf(
    architecture: str, config: Mapping[str, object], _generation: Mapping[str, object]
) -> FramewiseConfig:
    """As :func:`parakeet_ctc_config_from_hf`, for an ``architecture`` of :data:`.ctc_modules_config.MODULES`."""
    encoder, vocab_size = modules_encoder(architecture, config)
    return FramewiseConfig(
        architecture, vocab_size, _blank(Fields(config), "pad_token_id", 0, vocab_size), encoder, None
    )


def _transducer(fields: Fields, durations: tuple[int, ...]) -> TransducerSpec:
    return TransducerSpec(
        hidden_size=fields.integer("decoder_hidden_size", 640),
        layers=fields.integer("num_decoder_layers", 2, most=MOST_LAYERS),
        activation=activation_of(fields, "hidden_act", "relu"),
        most_symbols=fields.integer("max_symbols_per_step", 10, most=_MOST_SYMBOLS),
        durations=durations,
    )


def _config(
    architecture: str,
    fields: Fields,
    vocab_size: int,
    blank_field: str,
    default_blank: int,
    transducer: TransducerSpec | None,
    *,
    causal: bool = False,
) -> FramewiseConfig:
    blank = _blank(fields, blank_field, default_blank, vocab_size)
    encoder = {**PARAKEET_ENCODER, **(fields.table("encoder_config") or {})}
    spec = fast_conformer_spec(encoder, causal_spec(encoder) if causal else None)
    return FramewiseConfig(architecture, vocab_size, blank, spec, transducer)


def _blank(fields: Fields, name: str, default: int, vocab_size: int) -> int:
    found = fields.token_id(name)
    blank = default if found is None else found
    if not 0 <= blank < vocab_size:
        raise ConfigError(f"{name} is {blank}, expected a token of the {vocab_size}: it is the blank")
    return blank
