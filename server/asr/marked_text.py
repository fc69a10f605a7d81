"""A transcript out of what a chat model writes: behind a marker, where it writes one."""

from collections.abc import Sequence
from typing import Final

from .streaming import Piece, TextToken

_MOST_HEAD: Final = 64
"""Characters after which a model is not believed to write its marker any more."""


class MarkedText:
    """What a model has written so far."""

    def __init__(self, marker: str) -> None:
        """``marker``: "" where all is transcript."""
        self._marker = marker
        self._held = ""
        self._tokens: list[TextToken] = []
        self.head = ""
        """What stood before the marker."""

    def add(self, text: str, tokens: Sequence[TextToken]) -> Piece | None:
        """What the transcript grows by; None while nothing is known to be transcript."""
        if not self._marker:
            return Piece(text, list(tokens))
        self._held += text
        self._tokens += tokens
        head, marker, rest = self._held.partition(self._marker)
        if not marker:
            return self.end() if len(self._held) > _MOST_HEAD else None
        own = marker.encode()
        places = [place for place, token in enumerate(self._tokens) if token.bytes == own]
        behind = self._tokens[places[0] + 1 :] if places else []
        self.head, self._marker = head, ""
        return Piece(rest, behind)

    def end(self) -> Piece | None:
        """What was held back, where there is no more: all of it was transcript."""
        if not self._marker or not self._held:
            return None
        self._marker = ""
        return Piece(self._held, self._tokens)
