"""Triton's cache manager with a folder of :mod:`.precompiled` beside it. Triton imports it by name."""

import os
from pathlib import Path

from triton.runtime.cache import FileCacheManager

from .precompiled import DRIVER_MODULE, VARIABLE, differences, module_file


class PrecompiledCache(FileCacheManager):  # type: ignore[misc]
    """Looks a kernel up in the folder first, and otherwise uses Triton's cache."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override, dump)
        folder = os.environ.get(VARIABLE)
        self._all = Path(folder) if folder and not (override or dump) else None
        self._folder = self._all / key if self._all is not None else None

    def get_file(self, filename: str) -> str | None:
        if self._folder is not None and (self._folder / filename).is_file():
            return str(self._folder / filename)
        if self._all is not None and filename == module_file(DRIVER_MODULE):
            module = self._all / filename
            if module.is_file() and not differences(self._all):  # else it may be another Triton's
                return str(module)
        found: str | None = super().get_file(filename)
        return found

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Returns the files of the group by name if ``filename`` is one of them."""
        if self._folder is not None and (self._folder / filename).is_file():
            return {file.name: str(file) for file in self._folder.iterdir()}
        found: dict[str, str] | None = super().get_group(filename)
        return found
