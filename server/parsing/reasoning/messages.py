"""Reasoning, texts and calls in messages of their own, in any order: Inkling's and Muse's.

::

    <|message_model|> name <|content_thinking|> reasoning <|end_message|>
    <|message_model|> <|content_text|> text <|end_message|>
    <|message_model|> <|content_invoke_tool_json|> {"name": …, "args": …} <|end_message|>

    <|start|>assistant to=self<|message|> reasoning <|eom|>
    <|start|>assistant to=tool<|message|> call <|eom|>
    <|start|>assistant to=user<|message|> text <|eot|>

The prompt ends before the text in front of the second marker of a message, or behind it.
"""

from enum import Enum
from functools import cached_property
from typing import Final

from ..interface import Content, Piece, ReasoningParser, Thought
from ..markers import scanner
from .marked import ReasoningFormat

MAX_HEADER: Final = 160
"""Characters of a name between the markers that begin a message; a longer text is content."""


class MessageFormat(ReasoningFormat, frozen=True, dict=True):
    """``begins`` begin a message of reasoning, ``calls`` one of calls, and ``ends`` end every message."""

    headers: tuple[str, ...] = ()
    """Markers in front of a message."""
    contents: tuple[str, ...] = ()
    """Markers that begin a message of text."""
    body: str = ""
    """The marker that begins every message, where the recipient in front of it says what it is: reasoning, text,
    hidden, and otherwise a call. ``begins`` then only tells a prompt that ends inside reasoning."""
    thinks: tuple[str, ...] = ()
    """Recipients of reasoning; empty texts stand for none."""
    says: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()

    @cached_property
    def markers(self) -> frozenset[str]:
        begins = (self.body,) if self.body else self.begins
        return frozenset((*begins, *self.ends, *self.headers, *self.contents))

    def parser(self, *, opened: bool, calls: bool = False) -> ReasoningParser:
        return _MessageParser(self, opened)


class _Kind(Enum):
    HEADER = 1  # or outside of messages
    THOUGHT = 2
    CONTENT = 3
    CALL = 4  # is handed on, with its markers where they say so
    HIDDEN = 5


class _MessageParser:
    """Messages of calls are content with their markers, for the parser of calls."""

    __slots__ = ("_format", "_held", "_kind", "_scanner")

    done = False

    def __init__(self, format: MessageFormat, opened: bool) -> None:
        self._format = format
        self._kind = _Kind.THOUGHT if opened else _Kind.HEADER
        self._held = ""
        self._scanner = scanner(format.markers | (frozenset() if format.body else {*format.calls}))

    @property
    def thinking(self) -> bool:
        return self._kind is _Kind.THOUGHT

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        self._held += text
        while (found := self._scanner.search(self._held)) is not None:
            before, marker, self._held = self._held[: found.start()], found.group(), self._held[found.end() :]
            if self._kind is not _Kind.HEADER or marker in self._format.ends:
                self._add(before, pieces)
            self._meet(marker, before, pieces)
        settled = self._scanner.held(self._held)
        if self._kind is _Kind.HEADER:
            if settled <= MAX_HEADER:
                return pieces
            self._kind = _Kind.CONTENT
        self._add(self._held[:settled], pieces)
        self._held = self._held[settled:]
        return pieces

    def finish(self, *, cut: bool = False) -> list[Piece]:
        pieces: list[Piece] = []
        self._add(self._held, pieces)
        self._held = ""
        return pieces

    def _meet(self, marker: str, before: str, pieces: list[Piece]) -> None:
        format = self._format
        if marker == format.body:
            if self._kind is _Kind.HEADER:
                self._kind = self._addressed(before)
        elif marker in format.calls:
            self._kind = _Kind.CALL
            pieces.append(Content(marker))
        elif marker in format.begins:
            self._kind = _Kind.THOUGHT
        elif marker in format.contents:
            self._kind = _Kind.CONTENT
        else:
            if self._kind is _Kind.CALL and not format.body:
                pieces.append(Content(marker))
            self._kind = _Kind.HEADER

    def _addressed(self, header: str) -> _Kind:
        format, recipient = self._format, header.partition("to=")[2].strip()
        for recipients, kind in (
            (format.thinks, _Kind.THOUGHT),
            (format.says, _Kind.CONTENT),
            (format.hides, _Kind.HIDDEN),
        ):
            if recipient in recipients:
                return kind
        return _Kind.CALL

    def _add(self, text: str, pieces: list[Piece]) -> None:
        if self._kind is _Kind.HEADER and not text.strip():
            return
        if text and self._kind is not _Kind.HIDDEN:
            pieces.append(Thought(text) if self._kind is _Kind.THOUGHT else Content(text))
