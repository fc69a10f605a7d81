"""Weights that the operator puts in the place of the main model's, while the server runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio.to_thread

from stentor.engine.loading.checkpoint import Checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.config import Weights, WorkerConfig

Opener = Callable[[WorkerConfig], Checkpoint]

_FORMATS: Final = ("auto", "safetensors", "pt", "gguf")
"""What a client may say of them; they are recognised by themselves."""


class OtherWeights:
    """Finds weights below the operator's folder, and refuses those of another architecture before anything is ended."""

    def __init__(self, worker: WorkerConfig, folder: Path | None, opened: Opener) -> None:
        """``worker`` is that of the first weights; ``opened`` opens the model of such a configuration."""
        self._worker = worker
        self._folder = folder
        self._opened = opened

    async def find(self, path: str, load_format: str | None, field: str) -> Weights:
        """The weights of a folder or file; an empty path names the first ones. ``field`` is that of the path, for
        errors.

        Raises BadRequest.
        """
        if load_format is not None and load_format not in _FORMATS:
            raise BadRequest(
                f"`load_format` is {load_format[:64]!r}; weights are recognised by themselves: leave it out.",
                "load_format",
                "invalid_value",
            )
        if not path:
            return self._worker.weights
        try:
            return await anyio.to_thread.run_sync(self._checked, path)
        except CheckpointError as error:
            raise BadRequest(str(error), field, "weights_not_usable") from error

    def _checked(self, path: str) -> Weights:
        """Raises :class:`CheckpointError`."""
        weights = Weights(str(self._below(path)))
        first, found = self._opened(self._worker), self._opened(self._worker.with_weights(weights))
        if found.config != first.config:
            raise CheckpointError(
                f"{path} has another architecture, or other settings in its config.json, than the model that is served."
            )
        return weights

    def _below(self, path: str) -> Path:
        """Raises :class:`CheckpointError` for a path outside of the folder."""
        own = Path(self._worker.model).resolve()
        if "\0" not in path and len(path) < 4096:
            found = Path(path) if self._folder is None else self._folder / path
            found = found.resolve()
            if found == own or (self._folder is not None and found.is_relative_to(self._folder.resolve())):
                return found
        if self._folder is None:
            raise CheckpointError("Other weights are read where the server was started with --weights-folder.")
        raise CheckpointError(f"{path[:200]!r} does not lie in the folder of --weights-folder.")
