"""Projector files (llama.cpp's ``mmproj``) told by their names, in folders and repositories."""

import re
from collections.abc import Iterable
from typing import Final

_ENDING: Final = ".gguf"
_MARK: Final = "mmproj"
_PREFERRED: Final = ("f16", "bf16", "q8_0", "f32")
"""Of several files of one model, which differ in how they store weights: 16 bits first."""


def is_mmproj(name: str) -> bool:
    """Whether a ``.gguf`` file of this name is one, and no model."""
    last = name.rpartition("/")[2].casefold()
    return last.endswith(_ENDING) and _MARK in last


def by_preference(names: Iterable[str]) -> list[str]:
    """The best first."""

    def rank(name: str) -> tuple[int, str]:
        parts = re.split(r"[^a-z0-9_]+", name.rpartition("/")[2].casefold())
        return next((place for place, kind in enumerate(_PREFERRED) if kind in parts), len(_PREFERRED)), name

    return sorted(names, key=rank)
