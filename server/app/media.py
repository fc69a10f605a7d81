"""Opens what a chat model that takes media needs for them."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from stentor.engine.loading.safetensors_index import read_json
from stentor.engine.model_config.media_spec import MediaSpec, media_spec

from ..config.config import Config
from ..generation.media import ChatMedia
from ..media.decoded import DecodedLimits
from ..media.fetcher import Fetcher
from ..media.metrics import MediaMetrics
from ..media.processor import MediaProcessor


def spec_of(config: Config, folder: Path) -> MediaSpec | None:
    """What the chat model in ``folder`` takes besides text; None where that is nothing. Raises
    :class:`stentor.engine.loading.errors.CheckpointError`."""
    file = folder / "config.json"
    if config.main != "chat" or not file.is_file():
        return None
    return media_spec(read_json(file))


def open_media(config: Config, folder: Path, spec: MediaSpec | None, figures: CollectorRegistry) -> ChatMedia | None:
    """None where the model takes none, or the operator has closed it to them. No process is started yet."""
    if spec is None or config.media.language_model_only:
        return None
    metrics = MediaMetrics(figures, config.model.served_names[0])
    processor = MediaProcessor(folder, config.limits.processor, metrics, DecodedLimits())
    return ChatMedia(Fetcher(config.media), processor, spec)
