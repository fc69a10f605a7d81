"""From a model's folder to what the server needs of it."""

from pathlib import Path
from typing import Protocol

from ..text.errors import TokenizerError
from ..text.loading import load_tokenizer
from .errors import TranscriptionModelError
from .model import TranscriptionEngine, TranscriptionModel
from .stream_vocabulary import stream_vocabulary_of
from .streaming import StreamingTranscriptionEngine, StreamingTranscriptionModel
from .vocabulary import Vocabulary, settings_of


class ServedNames(Protocol):
    """How the operator has the model served; see :class:`..app.config.TranscriptionConfig`."""

    @property
    def served_names(self) -> tuple[str, ...]: ...


def open_transcription(config: ServedNames, client: TranscriptionEngine, folder: Path) -> TranscriptionModel:
    """Reads the tokenizer of ``folder``: some 100 ms, so call it in a thread.

    Raises :class:`.errors.TranscriptionModelError`, with one line for the operator.
    """
    try:
        tokenizer = load_tokenizer(folder)
    except TokenizerError as error:
        raise TranscriptionModelError(str(error)) from error
    vocabulary = Vocabulary(tokenizer, settings_of(folder))
    if vocabulary.multilingual and not vocabulary.languages:
        raise TranscriptionModelError(f"The tokenizer in {folder} names no language, but the model is multilingual.")
    return TranscriptionModel(config.served_names, client, vocabulary)


def open_streaming(
    config: ServedNames, client: StreamingTranscriptionEngine, folder: Path
) -> StreamingTranscriptionModel:
    """The same of a model for which :func:`.stream_vocabulary.hears_streams` is true."""
    return StreamingTranscriptionModel(config.served_names, client, stream_vocabulary_of(folder))
