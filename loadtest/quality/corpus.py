"""The fixed text that the check reads, and how it is cut."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

TEXTS: Final = Path(__file__).parent / "texts"
ORDER: Final = ("alice.txt", "loomings.txt", "lamp.txt", "code.txt")


def corpus() -> str:
    """Prose of three hands, then code; where each comes from stands in ``texts/SOURCES.md``."""
    return "\n\n".join((TEXTS / name).read_text(encoding="utf-8").strip() for name in ORDER) + "\n"


def windows(tokens: Sequence[int], length: int, most: int | None = None) -> list[list[int]]:
    """Consecutive windows of ``length`` tokens, the last one what is left if that is at least half as long."""
    cut = [list(tokens[at : at + length]) for at in range(0, len(tokens), length)]
    return [window for window in cut if len(window) >= max(length // 2, 2)][:most]
