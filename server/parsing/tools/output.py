"""The pieces that a parser of tool calls hands out."""

from typing import Final

from ..interface import CallArguments, CallEnd, CallStart, Content, Piece
from .reader import WHITESPACE

MAX_SPACE: Final = 4096
"""Characters of whitespace held back because they may only separate calls."""


class Output:
    """Collects pieces. White space before a call is dropped, and so is text behind the last one."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._texts: list[str] = []
        self._arguments: list[str] = []
        self._space = ""
        self._written = False
        self._ids: set[str] = set()
        self.calls = 0

    def text(self, text: str) -> None:
        """Adds content, or text between calls."""
        body = text.rstrip(WHITESPACE)
        if body:
            self._flush_arguments()
            self._texts.append(self._space + body)
            self._space = text[len(body) :]
            self._written = True
        else:
            self._space += text
        if len(self._space) > MAX_SPACE:
            self._flush_arguments()
            self._texts.append(self._space[:-MAX_SPACE])
            self._space = self._space[-MAX_SPACE:]

    def drop_space(self) -> None:
        """Drops white space before a call."""
        self._space = ""

    def start(self, name: str, id: str | None = None) -> None:
        """A call begins. An ``id`` that an earlier one has is none."""
        self.drop_space()
        self._written = False
        self._flush()
        self._pieces.append(CallStart(name, None if id in self._ids else id))
        if id is not None:
            self._ids.add(id)
        self.calls += 1

    def arguments(self, text: str) -> None:
        """More arguments of the call that began last."""
        if text:
            self._flush_texts()
            self._arguments.append(text)

    def end(self) -> None:
        """The call that began last is whole."""
        self._flush()
        self._pieces.append(CallEnd())

    def finish(self) -> None:
        """No more comes."""
        if self._space and (self._written or not self.calls):
            self._texts.append(self._space)
        self._space = ""

    def take(self) -> list[Piece]:
        """The pieces since the last time."""
        self._flush()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _flush(self) -> None:
        self._flush_texts()
        self._flush_arguments()

    def _flush_texts(self) -> None:
        if self._texts:
            self._pieces.append(Content("".join(self._texts)))
            self._texts.clear()

    def _flush_arguments(self) -> None:
        if self._arguments:
            self._pieces.append(CallArguments("".join(self._arguments)))
            self._arguments.clear()
