"""Opens MODEL by its role."""

import logging
from pathlib import Path

from stentor.engine.loading.checkpoint import Checkpoint, open_checkpoint
from stentor.engine.loading.pooling_checkpoint import open_pooling
from stentor.protocols.ipc.config import WorkerConfig

from ..config.config import Config

logger = logging.getLogger(__name__)


def open_main(config: Config, worker: WorkerConfig | None = None) -> Checkpoint:
    """Opens MODEL, or the model of another ``worker`` in its place.

    Raises :class:`stentor.engine.loading.errors.CheckpointError`.
    """
    worker = worker or config.engine.worker
    folder = Path(worker.model)
    if config.main == "embedding":
        return open_pooling(folder, config.embedding.pooler or "", worker.model_impl)
    found = open_checkpoint(folder, worker.load_format, worker.model_impl, str(config.model.mmproj or ""))
    for note in found.notes:
        logger.warning("a projector file is passed over: %s", note)
    return found
