"""Triton's cache with a folder of :mod:`.precompiled` beside it. Triton imports this by name."""

import os
from pathlib import Path

from triton.runtime.cache import FileCacheManager

from .precompiled import VARIABLE


class PrecompiledCache(FileCacheManager):  # type: ignore[misc]
    """What is not in the folder is kept where Triton keeps it."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override, dump)
        folder = os.environ.get(VARIABLE)
        self._folder = Path(folder, key) if folder and not (override or dump) else None

    def get_file(self, filename: str) -> str | None:
        if self._folder is not None and (self._folder / filename).is_file():
            return str(self._folder / filename)
        found: str | None = super().get_file(filename)
        return found

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The files that belong together, by name, where ``filename`` is one of them."""
        if self._folder is not None and (self._folder / filename).is_file():
            return {file.name: str(file) for file in self._folder.iterdir()}
        found: dict[str, str] | None = super().get_group(filename)
        return found
