"""Describes transcription models that decode frame by frame: an encoder, and a head that gives each position a token or
a blank (CTC), or none or several tokens (transducers). Torch-free."""

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from stentor.protocols.ipc.audio import SAMPLE_RATE
from stentor.protocols.ipc.inputs import StreamShape

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.mlp import Activation
from .encoder_decoder import LONGEST_TRANSCRIPT
from .fast_conformer import (
    FEWEST_SAMPLES,
    HOP,
    MOST_SAMPLES,
    PARAKEET_ENCODER,
    SUBSAMPLING,
    FastConformerSpec,
    causal_spec,
    fast_conformer_spec,
)
from .moonshine import activation_of

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


class TransducerSpec(msgspec.Struct, frozen=True):
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


class LanguagePromptSpec(msgspec.Struct, frozen=True):
    """Two layers over the encoder's output at each position, joined with a one-hot vector of the language's number."""

    count: int
    intermediate_size: int
    default: int
    """The number that lets the model detect the language."""


Features = Literal[
    "Wav2Vec2FeatureExtractor",
    "SeamlessM4TFeatureExtractor",
    "LasrFeatureExtractor",
    "GraniteSpeech5FeatureExtractor",
    "OmniASRFeatureExtractor",
]
"""transformers' class that makes the modules' input of samples. That of Granite Speech 5 needs torchaudio, so ours has
its place."""

_STRIDES: Final = (5, 2, 2, 2, 2, 2, 2)
_KERNELS: Final = (10, 3, 3, 3, 3, 2, 2)
_SEW_STRIDES: Final = (5, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1)
_SEW_KERNELS: Final = (10, 3, 1, 3, 1, 3, 1, 3, 1, 2, 1, 2, 1)
_MOST_CONVOLUTIONS: Final = 64
_MOST_STRIDE: Final = 64
_MOST_SAMPLES_A_POSITION: Final = SAMPLE_RATE // 2
_FRAME: Final = 400
"""Samples that a frame sees."""


class ModulesEncoderSpec(msgspec.Struct, frozen=True, eq=False):
    """An encoder with its head: transformers' class makes scores of tokens from a window of samples."""

    module: str
    """transformers' class name."""
    features: Features
    samples_a_position: int
    fewest_samples: int
    """Shorter windows are filled with silence."""
    described: Mapping[str, object]
    """The config.json, which has no hash: these are compared by identity."""

    def positions(self, samples: int) -> int:
        """Most positions of a window of ``samples``."""
        return -(-max(samples, self.fewest_samples) // self.samples_a_position)


class ModulesFamily(NamedTuple):
    """What a config.json of one of transformers' classes does not say."""

    model_type: str
    features: Features
    sizes: Callable[[Fields], tuple[int, int]]
    """Samples of a position, and fewest samples."""
    vocab_size: int = 32
    blank: str = "pad_token_id"
    """The field with the number of the blank."""


def _waves(fields: Fields, strides: tuple[int, ...] = _STRIDES, kernels: tuple[int, ...] = _KERNELS) -> tuple[int, int]:
    """Of convolutions over samples."""
    return _adapted(fields, *_seen(_whole(fields, "conv_stride", strides), _whole(fields, "conv_kernel", kernels)))


def _nested_waves(fields: Fields) -> tuple[int, int]:
    return _waves(Fields(fields.table("audio_config") or {}))


def _frames(fields: Fields) -> tuple[int, int]:
    """Of a spectrogram whose frames are joined in pairs."""
    return _adapted(fields, 2 * HOP, _FRAME + HOP)


def _convolved_frames(fields: Fields) -> tuple[int, int]:
    """Of two convolutions over a spectrogram."""
    encoder = Fields(fields.table("encoder_config") or {})
    stride = encoder.integer("subsampling_conv_stride", 2, most=_MOST_STRIDE)
    kernel = encoder.integer("subsampling_conv_kernel_size", 5, most=_MOST_STRIDE)
    step, seen = _seen((stride, stride), (kernel, kernel))
    return HOP * step, _FRAME + HOP * (seen - 1)


def _halved_frames(fields: Fields) -> tuple[int, int]:
    """Of frames joined in pairs, whose number some layers halve, without an odd last one."""
    encoder = Fields(fields.table("encoder_config") or {})
    found = encoder.numbers("subsample_layers") if encoder.has("subsample_layers") else (0, 1)
    layers = encoder.integer("num_hidden_layers", 16, most=MOST_LAYERS)
    if len({*found}) < len(found) or not all(each in range(layers) for each in found):
        raise ConfigError(f"subsample_layers is {list(found)[:8]}, expected some of the {layers} layers")
    pairs = 1 << min(len(found), _MOST_CONVOLUTIONS)
    return 2 * HOP * pairs, HOP * (2 * pairs - 1)


def _seen(strides: tuple[int, ...], kernels: tuple[int, ...]) -> tuple[int, int]:
    """The steps between positions behind convolutions, and the inputs that the first position sees."""
    if len(strides) != len(kernels):
        raise ConfigError(f"conv_stride has {len(strides)} numbers and conv_kernel {len(kernels)}, expected as many")
    step, seen = 1, 1
    for stride, kernel in zip(strides, kernels, strict=True):
        seen += (kernel - 1) * step
        step *= stride
    return step, seen


def _adapted(fields: Fields, step: int, seen: int) -> tuple[int, int]:
    """Behind the convolutions over positions that ``add_adapter`` asks for."""
    if not fields.flag("add_adapter"):
        return step, seen
    stride = fields.integer("adapter_stride", 2, most=_MOST_STRIDE)
    layers = 1 if fields.text("model_type", "") == "wav2vec2-bert" else 3
    factor = stride ** fields.integer("num_adapter_layers", layers, most=_MOST_CONVOLUTIONS)
    return step * factor, seen + step * factor


def _whole(fields: Fields, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    given = fields.numbers(name) if fields.has(name) else default
    found = tuple(int(each) for each in given)
    most = max(found, default=0)
    if not 0 < len(found) <= _MOST_CONVOLUTIONS or found != tuple(given) or min(found) < 1 or most > _MOST_STRIDE:
        raise ConfigError(
            f"{name} is {list(given)[:8]}, expected up to {_MOST_CONVOLUTIONS} whole numbers from 1 to {_MOST_STRIDE}"
        )
    return found


def _squeezed(fields: Fields) -> tuple[int, int]:
    step, seen = _waves(fields, _SEW_STRIDES, _SEW_KERNELS)
    squeeze = fields.integer("squeeze_factor", 2, most=_MOST_STRIDE)
    return step, seen + step * (squeeze - 1)


MODULES: Final[Mapping[str, ModulesFamily]] = {
    "Wav2Vec2ForCTC": ModulesFamily("wav2vec2", "Wav2Vec2FeatureExtractor", _waves),
    "HubertForCTC": ModulesFamily("hubert", "Wav2Vec2FeatureExtractor", _waves),
    "WavLMForCTC": ModulesFamily("wavlm", "Wav2Vec2FeatureExtractor", _waves),
    "Wav2Vec2BertForCTC": ModulesFamily("wav2vec2-bert", "SeamlessM4TFeatureExtractor", _frames, 0),
    "Wav2Vec2ConformerForCTC": ModulesFamily("wav2vec2-conformer", "Wav2Vec2FeatureExtractor", _waves, 0),
    "UniSpeechForCTC": ModulesFamily("unispeech", "Wav2Vec2FeatureExtractor", _waves),
    "UniSpeechSatForCTC": ModulesFamily("unispeech-sat", "Wav2Vec2FeatureExtractor", _waves),
    "Data2VecAudioForCTC": ModulesFamily("data2vec-audio", "Wav2Vec2FeatureExtractor", _waves),
    "SEWForCTC": ModulesFamily("sew", "Wav2Vec2FeatureExtractor", _squeezed),
    "SEWDForCTC": ModulesFamily("sew-d", "Wav2Vec2FeatureExtractor", _squeezed),
    "LasrForCTC": ModulesFamily("lasr_ctc", "LasrFeatureExtractor", _convolved_frames, 512),
    "GraniteSpeech5ForCTC": ModulesFamily(
        "granite_speech5_ctc", "GraniteSpeech5FeatureExtractor", _halved_frames, 16_384
    ),
    "OmniASRForCTC": ModulesFamily(
        "omniasr_ctc", "OmniASRFeatureExtractor", _nested_waves, 10_288, blank="blank_token_id"
    ),
}
"""By name in ``architectures``."""


def modules_encoder(name: str, config: Mapping[str, object]) -> tuple[ModulesEncoderSpec, int]:
    """The encoder of a config.json of architecture ``name``, and the size of its vocabulary.

    Raises :class:`ConfigError` for a missing or wrong field.
    """
    fields, family = Fields(config), MODULES[name]
    step, fewest = family.sizes(fields)
    if step > _MOST_SAMPLES_A_POSITION or fewest > MOST_SAMPLES:
        raise ConfigError(f"a position has {step / SAMPLE_RATE:.2f} s of audio, expected half a second at most")
    described = {"model_type": family.model_type, **config}
    vocab_size = fields.integer("vocab_size", family.vocab_size or None)
    return ModulesEncoderSpec(name, family.features, step, max(fewest, FEWEST_SAMPLES), described), vocab_size


class FramewiseConfig(msgspec.Struct, frozen=True):
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
    """Reads a config.json. Raises :class:`..config_fields.ConfigError` for a missing or wrong field."""
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
    """As :func:`parakeet_ctc_config_from_hf`, for an ``architecture`` of :data:`MODULES`."""
    encoder, vocab_size = modules_encoder(architecture, config)
    blank = _blank(Fields(config), MODULES[architecture].blank, 0, vocab_size)
    return FramewiseConfig(architecture, vocab_size, blank, encoder, None)


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
