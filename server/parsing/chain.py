"""Reasoning, then tool calls in what is left: two parsers as one."""

from .interface import Content, Parser, Piece
from .reasoning.format import ReasoningParser


class Chain:
    """What the first takes for content, the second reads."""

    __slots__ = ("_calls", "_reasoning")

    def __init__(self, reasoning: ReasoningParser, calls: Parser) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def thinking(self) -> bool:
        return self._reasoning.thinking

    def push(self, text: str) -> list[Piece]:
        if self._reasoning.done:
            return self._calls.push(text)
        return self._read(self._reasoning.push(text))

    def finish(self, *, cut: bool = False) -> list[Piece]:
        pieces = self._read(self._reasoning.finish(cut=cut))
        pieces += self._calls.finish(cut=cut)
        return pieces

    def _read(self, pieces: list[Piece]) -> list[Piece]:
        read: list[Piece] = []
        for piece in pieces:
            if type(piece) is Content:
                read += self._calls.push(piece.text)
            else:
                read.append(piece)
        return read
