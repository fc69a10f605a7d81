"""Opens what a chat model needs for what conversations hold besides text."""

from prometheus_client import CollectorRegistry

from stentor.engine.loading.checkpoint import Checkpoint
from stentor.engine.model_config.media_spec import MediaSpec, media_spec
from stentor.engine.model_config.model_spec import ModelSpec

from ..asr.asking import ASKING, Asking
from ..config.config import Config
from ..generation.media import ChatMedia
from ..media.decoded import DecodedLimits
from ..media.document_reader import DocumentReader
from ..media.fetcher import Fetcher
from ..media.loading import MediaLoader
from ..media.metrics import MediaMetrics
from ..media.mmproj_processor import given_files
from ..media.processor import MediaProcessor
from ..storage.database import Database


def spec_of(config: Config, checkpoint: Checkpoint) -> MediaSpec | None:
    """What the chat model takes besides text; None where that is nothing. Raises
    :class:`stentor.engine.loading.errors.CheckpointError`."""
    described = checkpoint.described if config.main == "chat" else None
    return None if described is None else media_spec(described)


def asking_of(config: Config, spec: MediaSpec | None, architecture: str) -> Asking | None:
    """How the chat model is asked for transcripts; None where it makes none."""
    hears = spec is not None and "audio" in spec.placeholders and not config.media.language_model_only
    return ASKING.get(architecture) if hears else None


def open_media(
    config: Config, checkpoint: Checkpoint, spec: MediaSpec | None, store: Database, figures: CollectorRegistry
) -> ChatMedia:
    """No process is started yet. Must be closed. Raises :class:`stentor.engine.loading.errors.CheckpointError`."""
    loader = MediaLoader(Fetcher(config.media), store, config.media.max_bytes)
    limits, decoded = config.limits.processor, DecodedLimits()
    documents = DocumentReader(limits, decoded)
    if spec is None or config.media.language_model_only:
        return ChatMedia(loader, documents)
    metrics = MediaMetrics(figures, config.model.served_names[0])
    source = given_files(checkpoint) or checkpoint.folder
    hidden = checkpoint.config.hidden_size if isinstance(checkpoint.config, ModelSpec) else 0
    return ChatMedia(loader, documents, MediaProcessor(source, limits, metrics, decoded), spec, hidden)
