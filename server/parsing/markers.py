"""Fixed texts that mean something, looked for in a text that comes in pieces."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Final


class MarkerScanner:
    """Searches for markers. None may lie inside another, except at its end: the leftmost is found, however the text
    arrives."""

    def __init__(self, markers: Iterable[str]) -> None:
        self._all: Final = sorted(set(markers), key=len, reverse=True)
        for marker in self._all:
            if any(marker in other[:-1] for other in self._all if other != marker):
                raise ValueError(f"The marker {marker!r} lies inside another.")
        self.search: Final = re.compile("|".join(map(re.escape, self._all)) or r"(?!)").search
        self._first: Final = re.compile("|".join({re.escape(marker[0]) for marker in self._all}) or r"(?!)")
        self._longest: Final = max(map(len, self._all), default=1) - 1
        self._beginnings: Final = {marker[:length] for marker in self._all for length in range(1, len(marker))}

    def apart(self, text: str) -> bool:
        """Whether a text surely has no part of a marker in it."""
        return self._first.search(text) is None

    def held(self, text: str, at: int = 0) -> int:
        """Position in ``text``, from ``at`` on, where an incomplete marker may have begun."""
        place = max(at, len(text) - self._longest)
        while (found := self._first.search(text, place)) is not None:
            if text[found.start() :] in self._beginnings:
                return found.start()
            place = found.end()
        return len(text)

    def all_but(self, text: str) -> bool:
        """Whether a text is most of a marker, so that it can hardly mean anything else."""
        return any(len(text) > max(3, len(marker) // 2) and marker.startswith(text) for marker in self._all)


scanner: Final = cache(MarkerScanner)
"""Cached scanners by their markers, which must be hashable; formats have few sets of them."""
