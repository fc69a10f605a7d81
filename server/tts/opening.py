"""Opens a language model that speaks: which family a folder is, its codec, its voices."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from stentor.engine.client.replicas import AnyEngineClient
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.tts.client import SpeechClient
from stentor.engine.tts.codecs import Codec, read_codec
from stentor.engine.tts.voices import Voices
from stentor.protocols.ipc.speech import StartSpeech, VoicePlace

from ..config.config import Config
from ..text.errors import TokenizerError
from ..text.pool import TokenizationBudget, TokenizerPool
from ..text.tokenizers.grammar_tokens import vocabulary_of
from ..text.tokenizers.loading import load_tokenizer
from .families import DEFAULT_VOICE, Reference, SpeechFamily, family_of
from .language_model import LanguageModelSpeech
from .model import SpeechModel, speech_threads
from .prompt_writer import code_words
from .references import read_references

INSTALL_PHONEMES: Final = (
    "install the extra `speech` (pip install 'stentor[speech]', which brings piper-tts, under the GPL)"
)
LANGUAGES: Final = {"german": "de", "french": "fr-fr", "spanish": "es"}
"""Of phonemes, by a part of the model's name, since no file says it; English otherwise."""


def codec_of(path: Path) -> str | None:
    """The default codec of the language model in ``path``; None if it does not speak. Reads the tokenizer: up to a
    second."""
    try:
        family = family_of(load_tokenizer(path))
    except TokenizerError:
        return None
    return None if family is None else family.codec_model


def open_language_model(config: Config, client: AnyEngineClient, room: TokenizationBudget) -> SpeechModel:
    """Opens ``config.speech``, which must be located. Reads the tokenizer, so call it in a thread. The result must be
    closed. Raises :class:`CheckpointError`."""
    speech = config.speech
    folder, codec_folder = Path(speech.path), Path(speech.codec_path)
    try:
        tokenizer = load_tokenizer(folder)
    except TokenizerError as error:
        raise CheckpointError(str(error)) from error
    family, codec = family_of(tokenizer), read_codec(codec_folder)
    assert family is not None, "it was found when the codec was"
    if codec.backend != family.codec:
        raise CheckpointError(
            f"--speech-codec: {codec_folder} is {codec.backend}; {family.name} needs {family.codec}, such as "
            f"{family.codec_model}"
        )
    if family.phonemes and find_spec("piper") is None:
        raise CheckpointError(
            f"{family.name} reads phonemes, which piper-tts makes, and that is not installed: {INSTALL_PHONEMES}"
        )
    words = code_words(tokenizer, family, codec)
    references = _references(config, family, codec)
    names = family.voices or tuple(references) or (DEFAULT_VOICE,)
    places = tuple(VoicePlace(name, str(codec_folder)) for name in names)
    logs = config.engine.worker
    start = StartSpeech(codec.backend, places, speech_threads(config), logs.log_level, logs.log_format)
    client.set_vocabulary(partial(vocabulary_of, tokenizer, (words.end,)))
    process = SpeechClient(start)
    model = LanguageModelSpeech(
        family,
        codec,
        words,
        TokenizerPool(tokenizer, room=room),
        client,
        process,
        references,
        language_of(speech.model or ""),
    )
    return SpeechModel(
        speech.served_names, Voices(codec.backend, places, codec.sample_rate, any_speed=False), process, model
    )


def language_of(name: str) -> str:
    """The language of a model, as espeak-ng names it, by the model's name."""
    return next((code for part, code in LANGUAGES.items() if part in name.lower()), "en-us")


def _references(config: Config, family: SpeechFamily, codec: Codec) -> dict[str, Reference]:
    folder = config.speech.voices
    if folder is None:
        if family.needs_reference:
            raise CheckpointError(
                f"{family.name} speaks in the voice of a recording: name a folder of such voices with --speech-voices"
            )
        return {}
    if family.voices:
        raise CheckpointError(
            f"--speech-voices: {family.name} has voices of its own ({', '.join(family.voices)}) and takes no others"
        )
    return read_references(folder, codec)
