"""The files that describe a model's processor: in its folder, or given in words where it has none."""

import json
from pathlib import Path
from typing import Any

import msgspec


class GivenFiles(msgspec.Struct, frozen=True, array_like=True):
    """The files of a processor for a model without them: see :mod:`.mmproj`."""

    files: dict[str, dict[str, Any]]
    """Files by name."""
    tokens: dict[str, int]
    """Tokens of its texts, with their ids."""
    names: dict[str, str]
    """Tokenizer attributes of some of them, such as ``boi_token``."""
    around_sounds: tuple[str, str] = ("", "")
    """Marks before and behind a sound, where the model's chat template writes none."""


Source = Path | GivenFiles
"""A model's folder, or its replacement."""


class ModelFiles:
    """Reads them by name."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def read(self, name: str) -> dict[str, Any]:
        """A JSON object; empty if the file does not exist."""
        if isinstance(self.source, GivenFiles):
            return self.source.files.get(name, {})
        file = self.source / name
        said = json.loads(file.read_text()) if file.is_file() else {}
        return said if isinstance(said, dict) else {}

    def __str__(self) -> str:
        return "the projector file" if isinstance(self.source, GivenFiles) else str(self.source)
