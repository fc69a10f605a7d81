"""Opens what a chat model needs for what conversations hold besides text."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from stentor.engine.loading.safetensors_index import read_json
from stentor.engine.model_config.config_fields import Fields
from stentor.engine.model_config.media_spec import MediaSpec, media_spec

from ..config.config import Config
from ..generation.media import ChatMedia
from ..media.decoded import DecodedLimits
from ..media.document_reader import DocumentReader
from ..media.fetcher import Fetcher
from ..media.loading import MediaLoader
from ..media.metrics import MediaMetrics
from ..media.processor import MediaProcessor
from ..storage.database import Database


def spec_of(config: Config, folder: Path) -> MediaSpec | None:
    """What the chat model in ``folder`` takes besides text; None where that is nothing. Raises
    :class:`stentor.engine.loading.errors.CheckpointError`."""
    file = folder / "config.json"
    if config.main != "chat" or not file.is_file():
        return None
    return media_spec(read_json(file))


def open_media(
    config: Config, folder: Path, spec: MediaSpec | None, store: Database, figures: CollectorRegistry
) -> ChatMedia:
    """No process is started yet. Must be closed."""
    loader = MediaLoader(Fetcher(config.media), store, config.media.max_bytes)
    limits, decoded = config.limits.processor, DecodedLimits()
    documents = DocumentReader(limits, decoded)
    if spec is None or config.media.language_model_only:
        return ChatMedia(loader, documents)
    metrics = MediaMetrics(figures, config.model.served_names[0])
    described = read_json(folder / "config.json")
    hidden = Fields(Fields(described).table("text_config") or described).integer("hidden_size", 0, least=0)
    return ChatMedia(loader, documents, MediaProcessor(folder, limits, metrics, decoded), spec, hidden)
