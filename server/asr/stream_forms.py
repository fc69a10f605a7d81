"""The streaming transcription models, by what their config.json names."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from stentor.engine.model_config.speech import kyutai, voxtral_realtime

from .kyutai import kyutai_streams_of
from .stream_vocabulary import stream_vocabulary_of
from .streaming import StreamForm
from .untimed_vocabulary import named_in
from .vocabulary import settings_of

_FORMS: Final[Mapping[str, Callable[[Path], StreamForm]]] = {
    voxtral_realtime.ARCHITECTURE: stream_vocabulary_of,
    voxtral_realtime.MODEL_TYPE: stream_vocabulary_of,
    kyutai.ARCHITECTURE: kyutai_streams_of,
    kyutai.MODEL_TYPE: kyutai_streams_of,
}


def is_streaming_model(folder: Path) -> bool:
    """Whether the model in ``folder`` is a streaming transcription model."""
    return named_in(settings_of(folder)) in _FORMS


def stream_form_of(folder: Path) -> StreamForm:
    """For a model for which :func:`is_streaming_model` is true. Some 100 ms, so call it in a thread. Raises
    :class:`stentor.engine.loading.errors.CheckpointError`."""
    return _FORMS[named_in(settings_of(folder))](folder)
