"""Opens what models need for what conversations hold besides text."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from stentor.engine.loading.safetensors_index import read_json
from stentor.engine.model_config.hf_text_part import described_part
from stentor.engine.model_config.media_spec import MediaSpec, media_spec

from ..config.config import Config
from ..media.chat_media import ChatMedia
from ..media.decoded import DecodedLimits
from ..media.document_reader import DocumentReader
from ..media.fetcher import Fetcher
from ..media.loading import MediaLoader
from ..media.metrics import MediaMetrics
from ..media.processor import MediaProcessor
from ..storage.database import Database


def spec_of(folder: Path) -> MediaSpec | None:
    """What the model in ``folder`` takes besides text; None where that is nothing. Raises
    :class:`stentor.engine.loading.errors.CheckpointError`."""
    file = folder / "config.json"
    return media_spec(described_part(read_json(file))) if file.is_file() else None


class MediaOpener:
    """What the models of one server have in common: who fetches, and who reads documents. No process is started yet."""

    def __init__(self, config: Config, store: Database, figures: CollectorRegistry) -> None:
        self._config = config
        self._figures = figures
        self._limits, self._decoded = config.limits.processor, DecodedLimits()
        self._loader = MediaLoader(Fetcher(config.media), store, config.media.max_bytes)
        self._documents = DocumentReader(self._limits, self._decoded)
        self._metrics: MediaMetrics | None = None

    def open(self, folder: Path, model: str, spec: MediaSpec | None) -> ChatMedia:
        """For the model in ``folder``, which metrics know as ``model`` and which takes what ``spec`` says. Must be
        closed."""
        if spec is None or self._config.media.language_model_only:
            return ChatMedia(self._loader, self._documents)
        self._metrics = metrics = MediaMetrics(self._figures, model, self._metrics)
        return ChatMedia(
            self._loader, self._documents, MediaProcessor(folder, self._limits, metrics, self._decoded), spec
        )
