"""Opens the media processors of models."""

from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from stentor.engine.loading.checkpoint import Checkpoint, open_checkpoint
from stentor.engine.loading.companions import described_model
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.kind import architectures_of
from stentor.engine.loading.safetensors_index import read_json
from stentor.engine.model_config.hf.text_part import MEDIA_FAMILIES
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.model_config.towers.media_spec import MediaSpec, media_spec

from ..asr.asking import ASKING, Asking
from ..config.config import Config
from ..config.media import MediaConfig
from ..media.chat_media import ChatMedia
from ..media.decoding.decoded import DecodedLimits
from ..media.document_reader import DocumentReader
from ..media.fetching.fetcher import Fetcher
from ..media.fetching.loading import MediaLoader
from ..media.metrics import MediaMetrics
from ..media.processor import MediaProcessor
from ..media.processors.model_files import Source
from ..media.processors.processor_options import request_options
from ..storage.database import Database

_SAID: Final = "default_transcription_prompt"
"""The field of a processor's file with the text that asks for a transcript."""


def spec_of(checkpoint: Checkpoint) -> MediaSpec | None:
    """The media of a model; None if it takes only text. Raises
    :class:`stentor.engine.loading.errors.CheckpointError`."""
    described = checkpoint.described
    return None if described is None else media_spec(described)


def spec_in(folder: Path) -> MediaSpec | None:
    """The media of the model in ``folder``; None if it takes only text, or has no ``config.json``."""
    file = folder / "config.json"
    return media_spec(described_model(folder, read_json(file))) if file.is_file() else None


def taken_of(spec: MediaSpec | None, config: MediaConfig) -> MediaSpec | None:
    """The media among these that the operator allows."""
    return None if config.language_model_only else spec


def width_of(checkpoint: Checkpoint) -> int:
    """Columns of an embedding of a model that writes; 0 if it takes none in place of a picture."""
    spec = checkpoint.config
    if not isinstance(spec, ModelSpec) or any(layer.picture_gates is not None for layer in spec.layers):
        return 0
    return spec.hidden_size


def asking_of(spec: MediaSpec | None, checkpoint: Checkpoint) -> Asking | None:
    """The transcription prompt of a chat model; None if it does not transcribe. ``spec`` has its media. Raises
    :class:`stentor.engine.loading.errors.CheckpointError`."""
    if spec is None or "audio" not in spec.placeholders:
        return None
    tower, names = checkpoint.tower, [checkpoint.config.architecture]
    if tower is not None and tower.projector is not None:  # the architecture is that of the text model
        names = [name for name, each in MEDIA_FAMILIES.items() if each.model_type == tower.described.get("model_type")]
    found = next((ASKING[name] for name in names if name in ASKING), None)
    file = checkpoint.folder / "processor_config.json"
    said = read_json(file).get(_SAID) if found is not None and file.is_file() else None
    if said is not None and not isinstance(said, str):
        raise CheckpointError(f"{file}: {_SAID} is {str(said)[:40]!r}, expected a text. Correct it, or leave it out.")
    return found.saying(said) if found is not None and said else found


def transcribes(path: Path) -> bool:
    """Whether a model on disk chats and makes transcripts. Raises
    :class:`stentor.engine.loading.errors.CheckpointError` for a GGUF file that cannot be read."""
    if path.suffix != ".gguf":
        return bool(ASKING.keys() & set(architectures_of(path)))
    checkpoint = open_checkpoint(path)
    return asking_of(spec_of(checkpoint), checkpoint) is not None


class MediaOpener:
    """Shared by the models of one server: fetching, and reading documents. It starts no process yet."""

    def __init__(self, config: Config, store: Database, figures: CollectorRegistry) -> None:
        self._config = config
        self._figures = figures
        self._limits, self._decoded = config.limits.processor, DecodedLimits()
        self._loader = MediaLoader(Fetcher(config.media), store, config.media.max_bytes)
        self._documents = DocumentReader(self._limits, self._decoded)
        self._metrics: MediaMetrics | None = None
        self._defaults = request_options(config.media.processor_kwargs, config.media.loading_kwargs)

    def open(self, source: Source, model: str, spec: MediaSpec | None, width: int = 0) -> ChatMedia:
        """Opens the media of the model in ``source``, which metrics call ``model``. ``spec`` has its media; ``width``
        is the number of columns of embeddings that clients may send. The result must be closed."""
        if spec is None:
            return ChatMedia(self._loader, self._documents)
        self._metrics = metrics = MediaMetrics(self._figures, model, self._metrics)
        processor = MediaProcessor(source, self._limits, metrics, self._decoded, self._defaults)
        return ChatMedia(self._loader, self._documents, processor, spec, width)
