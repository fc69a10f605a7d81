"""All generating architectures by name, with the reader of their description.

The type of the description determines the worker's family (:mod:`..worker.setup.setup`). Pooling models are recognised
by more than a name: :mod:`..loading.pooling_checkpoint`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, NamedTuple, TypeVar

from .config_fields import ConfigError, Fields, UnknownArchitectureError
from .hf.config import DECODERS, DecoderFamily, named_architecture
from .seq2seq.bart import FAMILIES as BART
from .seq2seq.bart import bart_config_from_hf
from .seq2seq.pictured import (
    CAPTION,
    CAPTION_TYPE,
    FLORENCE,
    FLORENCE_TYPE,
    FORMULAS,
    FORMULAS_TYPE,
    PAIRED,
    PAIRED_TYPE,
    PARSE,
    PARSE_TYPE,
    caption_config_from_hf,
    florence_config_from_hf,
    formulas_config_from_hf,
    paired_config_from_hf,
    parse_config_from_hf,
)
from .seq2seq.pix2struct import PATCHES, PATCHES_TYPE, patches_config_from_hf
from .seq2seq.seamless import MODEL_TYPES as SEAMLESS_TYPES
from .seq2seq.seamless import TEXT_TO_TEXT as SEAMLESS_TEXT
from .seq2seq.seamless import seamless_text_config_from_hf, version_of
from .seq2seq.t5 import ARCHITECTURES as T5
from .seq2seq.t5 import t5_config_from_hf
from .seq2seq.t5gemma import ARCHITECTURE as T5GEMMA
from .seq2seq.t5gemma import MODEL_TYPE as T5GEMMA_TYPE
from .seq2seq.t5gemma import t5gemma_config_from_hf
from .seq2seq.t5gemma2 import ARCHITECTURE as T5GEMMA2
from .seq2seq.t5gemma2 import MODEL_TYPE as T5GEMMA2_TYPE
from .seq2seq.t5gemma2 import t5gemma2_config_from_hf
from .seq2seq.text import TextToTextConfig
from .spec.model import ModelSpec, checked
from .speech.encoder_decoder import EncoderDecoderConfig
from .speech.fast_conformer import (
    CANARY,
    CANARY_TYPE,
    COHERE,
    COHERE_TYPE,
    canary_config_from_hf,
    cohere_asr_config_from_hf,
)
from .speech.framewise import (
    CTC,
    CTC_TYPE,
    MODULES,
    NEMOTRON,
    NEMOTRON_3_5,
    NEMOTRON_3_5_TYPE,
    NEMOTRON_TYPE,
    RNNT,
    RNNT_TYPE,
    TDT,
    TDT_TYPE,
    FramewiseConfig,
    modules_ctc_config_from_hf,
    nemotron_3_5_asr_config_from_hf,
    nemotron_asr_config_from_hf,
    parakeet_ctc_config_from_hf,
    parakeet_rnnt_config_from_hf,
    parakeet_tdt_config_from_hf,
)
from .speech.kyutai import ARCHITECTURE as KYUTAI
from .speech.kyutai import MODEL_TYPE as KYUTAI_TYPE
from .speech.kyutai import kyutai_config_from_hf
from .speech.moonshine import ARCHITECTURE as MOONSHINE
from .speech.moonshine import MODEL_TYPE as MOONSHINE_TYPE
from .speech.moonshine import moonshine_config_from_hf
from .speech.moonshine_streaming import ARCHITECTURE as MOONSHINE_STREAMING
from .speech.moonshine_streaming import MODEL_TYPE as MOONSHINE_STREAMING_TYPE
from .speech.moonshine_streaming import moonshine_streaming_config_from_hf
from .speech.seamless import SPEECH_TO_TEXT as SEAMLESS
from .speech.seamless import seamless_config_from_hf
from .speech.speech_to_text import ARCHITECTURE as SPEECH2TEXT
from .speech.speech_to_text import MODEL_TYPE as SPEECH2TEXT_TYPE
from .speech.speech_to_text import speech_to_text_config_from_hf
from .speech.streamed import StreamedConfig
from .speech.voxtral_realtime import ARCHITECTURE as VOXTRAL_REALTIME
from .speech.voxtral_realtime import voxtral_realtime_config_from_hf
from .speech.whisper import ARCHITECTURE as WHISPER
from .speech.whisper import whisper_config_from_hf
from .transformers_config import transformers_spec

T = TypeVar("T")
Implementation = Literal["auto", "native", "transformers"]
Described = ModelSpec | EncoderDecoderConfig | TextToTextConfig | FramewiseConfig | StreamedConfig


class Architecture(NamedTuple):
    model_type: str
    """In a config.json without ``architectures``."""
    read: Callable[[Mapping[str, object], Mapping[str, object]], Described]
    """Reads a config.json and a generation_config.json, which may be empty. Raises
    :class:`.config_fields.ConfigError`."""


def _decoder(
    name: str, decoder: DecoderFamily, config: Mapping[str, object], _generation: Mapping[str, object]
) -> ModelSpec:
    return checked(decoder.read(Fields(config), name))


ARCHITECTURES: Mapping[str, Architecture] = {
    **{name: Architecture(each.model_type, partial(_decoder, name, each)) for name, each in DECODERS.items()},
    WHISPER: Architecture("whisper", whisper_config_from_hf),
    MOONSHINE: Architecture(MOONSHINE_TYPE, moonshine_config_from_hf),
    MOONSHINE_STREAMING: Architecture(MOONSHINE_STREAMING_TYPE, moonshine_streaming_config_from_hf),
    CANARY: Architecture(CANARY_TYPE, canary_config_from_hf),
    COHERE: Architecture(COHERE_TYPE, cohere_asr_config_from_hf),
    CTC: Architecture(CTC_TYPE, parakeet_ctc_config_from_hf),
    RNNT: Architecture(RNNT_TYPE, parakeet_rnnt_config_from_hf),
    TDT: Architecture(TDT_TYPE, parakeet_tdt_config_from_hf),
    NEMOTRON: Architecture(NEMOTRON_TYPE, nemotron_asr_config_from_hf),
    NEMOTRON_3_5: Architecture(NEMOTRON_3_5_TYPE, nemotron_3_5_asr_config_from_hf),
    **{
        name: Architecture(each.model_type, partial(modules_ctc_config_from_hf, name)) for name, each in MODULES.items()
    },
    **{name: Architecture(kind, partial(t5_config_from_hf, name)) for name, kind in T5.items()},
    T5GEMMA: Architecture(T5GEMMA_TYPE, t5gemma_config_from_hf),
    T5GEMMA2: Architecture(T5GEMMA2_TYPE, t5gemma2_config_from_hf),
    **{name: Architecture(each.model_type, partial(bart_config_from_hf, name)) for name, each in BART.items()},
    **{
        name: Architecture(SEAMLESS_TYPES[version_of(name)], partial(seamless_text_config_from_hf, name))
        for name in SEAMLESS_TEXT
    },
    **{
        name: Architecture(SEAMLESS_TYPES[version_of(name)], partial(seamless_config_from_hf, name))
        for name in SEAMLESS
    },
    PAIRED: Architecture(PAIRED_TYPE, paired_config_from_hf),
    FLORENCE: Architecture(FLORENCE_TYPE, florence_config_from_hf),
    FORMULAS: Architecture(FORMULAS_TYPE, formulas_config_from_hf),
    PARSE: Architecture(PARSE_TYPE, parse_config_from_hf),
    PATCHES: Architecture(PATCHES_TYPE, patches_config_from_hf),
    CAPTION: Architecture(CAPTION_TYPE, caption_config_from_hf),
    SPEECH2TEXT: Architecture(SPEECH2TEXT_TYPE, speech_to_text_config_from_hf),
    KYUTAI: Architecture(KYUTAI_TYPE, lambda config, _generation: kyutai_config_from_hf(config)),
    VOXTRAL_REALTIME: Architecture(
        "voxtral_realtime", lambda config, _generation: voxtral_realtime_config_from_hf(config)
    ),
}


def read_config(
    config: Mapping[str, object], generation: Mapping[str, object], implementation: Implementation = "auto"
) -> Described:
    """Read a description for an ``implementation``; ``auto`` prefers ours.

    Raises :class:`.config_fields.ConfigError` for an unsupported architecture, and missing or wrong fields.
    """
    if implementation == "transformers":
        return asked_of_transformers(transformers_spec, config)
    known = {name: each.model_type for name, each in ARCHITECTURES.items()}
    try:
        return ARCHITECTURES[named_architecture(config, known)].read(config, generation)
    except UnknownArchitectureError as unknown:
        return run_by_transformers(unknown, transformers_spec, config, implementation)


def asked_of_transformers(read: Callable[[Mapping[str, object]], T], config: Mapping[str, object]) -> T:
    """Read a config.json with ``read`` because the operator named transformers' code.

    Raises :class:`.config_fields.ConfigError`, which names the option, if that fails.
    """
    try:
        return read(config)
    except ConfigError as error:
        raise ConfigError(f"with --model-impl transformers, {error}") from error


def run_by_transformers(
    unknown: UnknownArchitectureError,
    read: Callable[[Mapping[str, object]], T],
    config: Mapping[str, object],
    implementation: Implementation,
) -> T:
    """Read a config.json that is not native here with ``read``.

    Raises :class:`.config_fields.ConfigError` if that fails, or if a native model was requested.
    """
    try:
        found = read(config)
    except ConfigError as error:
        raise ConfigError(f"{unknown}, and {error}") from error
    if implementation == "native":
        raise ConfigError(
            f"{unknown}; transformers has modelling code for it: leave --model-impl native out to run that"
        ) from unknown
    return found
