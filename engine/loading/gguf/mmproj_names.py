"""Recognises projector files (llama.cpp's ``mmproj``) by name."""

import re
from collections.abc import Iterable
from typing import Final

_ENDING: Final = ".gguf"
_MARK: Final = "mmproj"
_PREFERRED: Final = ("f16", "bf16", "q8_0", "f32")
"""Order of preference of a model's projector files, by weight type."""


def is_mmproj(name: str) -> bool:
    """Whether a file of this name is a projector file."""
    last = name.rpartition("/")[2].casefold()
    return last.endswith(_ENDING) and _MARK in last


def by_preference(names: Iterable[str]) -> list[str]:
    """The names, best first."""

    def rank(name: str) -> tuple[int, str]:
        parts = re.split(r"[^a-z0-9_]+", name.rpartition("/")[2].casefold())
        return next((place for place, kind in enumerate(_PREFERRED) if kind in parts), len(_PREFERRED)), name

    return sorted(names, key=rank)
