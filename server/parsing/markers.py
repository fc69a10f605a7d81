"""Fixed texts that mean something, looked for in a text that comes in pieces."""

import re
from collections.abc import Iterable
from typing import Final


class Markers:
    """Finds the first of some markers. None may lie inside another."""

    __slots__ = ("_first", "_longest", "_pattern", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts: Final = tuple(dict.fromkeys(texts))
        longest_first = sorted(self.texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._first = re.compile("[" + "".join(sorted({re.escape(text[0]) for text in self.texts})) + "]")
        self._longest = len(longest_first[0])

    def search(self, text: str) -> re.Match[str] | None:
        return self._pattern.search(text)

    def apart(self, text: str) -> bool:
        """Whether a text surely has no part of a marker in it."""
        return self._first.search(text) is None

    def settled(self, text: str) -> int:
        """How much of a text, in which there is no marker, cannot become part of one."""
        place = max(0, len(text) - self._longest + 1)
        while (found := self._first.search(text, place)) is not None:
            rest = text[found.start() :]
            if any(marker.startswith(rest) for marker in self.texts):
                return found.start()
            place = found.end()
        return len(text)
