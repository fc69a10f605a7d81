"""gpt-oss's channels: https://cookbook.openai.com/articles/openai-harmony.

After the prompt's ``<|start|>assistant`` the model writes messages, each a header and a body::

    <|channel|>analysis<|message|>…<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>…<|return|>

A recipient may also precede the channel. ``analysis`` is reasoning, ``final`` is the answer, and ``commentary`` without
a recipient is text for the user before a call.
"""

import json
import re
from collections.abc import Sequence
from enum import Enum
from typing import Final

from .interface import CallArguments, CallEnd, CallStart, Content, Piece, Thought, Tool
from .markers import MarkerScanner

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKERS: Final = frozenset((START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN))
FUNCTIONS: Final = "functions."
PYTHON: Final = "python"
PYTHON_CODE: Final = "python.python"
"""Recipient of plain code, and the function with one argument ``code`` that it calls."""

_IN_HEADER: Final = MarkerScanner((MESSAGE, END, CALL, RETURN))
_IN_BODY: Final = MarkerScanner((START, END, CALL, RETURN))
_BETWEEN: Final = MarkerScanner((START, CHANNEL, MESSAGE))
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT: Final = re.compile(r"(?:^|\s)to=([^\s<]+)")
_BEGINNINGS: Final = (" to=", "to=", CHANNEL, MESSAGE, START, CONSTRAIN)
"""Possible beginnings of a header, behind ``<|start|>assistant``."""

_LONGEST_HEADER: Final = 4096
"""Characters; a longer text without a message is no header."""


class _Phase(Enum):
    OPENING = 1  # the first header, or a text that has none
    HEADER = 2
    BODY = 3
    BETWEEN = 4  # behind the end of a message


class _Kind(Enum):
    THOUGHT = 1
    CONTENT = 2
    CALL = 3


class HarmonyParser:
    """Parses one answer. Consecutive messages of one kind are joined with a line break."""

    __slots__ = ("_begun", "_code", "_empty", "_functions", "_held", "_kind", "_names", "_phase")

    def __init__(self, tools: Sequence[Tool], *, opened: bool) -> None:
        self._names = frozenset(tool.name for tool in tools)
        self._functions = bool(tools)
        """Without tools, text for one is only shown as reasoning."""
        self._code = False
        """The body of the call is code, which becomes JSON on its way."""
        self._phase = _Phase.BODY if opened else _Phase.OPENING
        self._kind = _Kind.THOUGHT
        self._held = ""
        self._begun: set[_Kind] = set()
        self._empty = True
        """The message has no text yet."""

    @property
    def thinking(self) -> bool:
        return self._phase is _Phase.BODY and self._kind is _Kind.THOUGHT

    @property
    def done(self) -> bool:
        return False

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        if self._phase is _Phase.BODY and not self._held and _IN_BODY.apart(text):
            self._say(text, pieces)
            return pieces
        self._held += text
        while self._held:
            phase = self._phase
            match phase:
                case _Phase.OPENING:
                    self._open()
                case _Phase.HEADER:
                    self._read_header(pieces)
                case _Phase.BODY:
                    self._read_body(pieces)
                case _Phase.BETWEEN:
                    self._skip()
            if self._phase is phase:
                break
        return pieces

    def finish(self, *, cut: bool = False) -> list[Piece]:
        pieces: list[Piece] = []
        held, self._held = self._held, ""
        if self._phase is _Phase.OPENING:
            self._kind = _Kind.CONTENT
        if self._phase in (_Phase.OPENING, _Phase.BODY):
            self._say(held, pieces)
        return pieces

    def _open(self) -> None:
        held = self._held
        if held.startswith(_BEGINNINGS):
            self._phase = _Phase.HEADER
        elif not any(beginning.startswith(held) for beginning in _BEGINNINGS):
            self._kind = _Kind.CONTENT
            self._phase = _Phase.BODY

    def _read_header(self, pieces: list[Piece]) -> None:
        held = self._held
        found = _IN_HEADER.search(held)
        if found is None or found.start() > _LONGEST_HEADER:
            if len(held) > _LONGEST_HEADER + len(MESSAGE):
                self._kind, self._phase, self._empty = _Kind.CONTENT, _Phase.BODY, True
            return
        header, self._held = held[: found.start()], held[found.end() :]
        if found.group() != MESSAGE:  # a message of nothing
            self._phase = _Phase.BETWEEN
            return
        self._begin_message(header, pieces)

    def _begin_message(self, header: str, pieces: list[Piece]) -> None:
        named = _CHANNEL.search(header)
        channel = named[1] if named is not None else ""
        to = _RECIPIENT.search(header.replace(CHANNEL, " "))
        recipient = to[1] if to is not None else ""
        self._phase = _Phase.BODY
        self._empty = True
        self._code = recipient == PYTHON and PYTHON_CODE in self._names
        name = PYTHON_CODE if self._code else recipient.removeprefix(FUNCTIONS)
        if self._functions and (name != recipient or name in self._names):
            self._kind = _Kind.CALL
            pieces.append(CallStart(name))
        elif channel == "analysis" or (recipient and recipient not in ("assistant", "user", "all")):
            self._kind = _Kind.THOUGHT
        else:
            self._kind = _Kind.CONTENT

    def _read_body(self, pieces: list[Piece]) -> None:
        held = self._held
        found = _IN_BODY.search(held)
        if found is None:
            settled = _IN_BODY.held(held)
            self._held = held[settled:]
            self._say(held[:settled], pieces)
            return
        self._say(held[: found.start()], pieces)
        self._held = held[found.end() :]
        if self._kind is _Kind.CALL:
            if self._code:
                pieces.append(CallArguments('{"code": ""}' if self._empty else '"}'))
            elif self._empty:
                pieces.append(CallArguments("{}"))
            pieces.append(CallEnd())
        self._phase = _Phase.HEADER if found.group() == START else _Phase.BETWEEN

    def _say(self, text: str, pieces: list[Piece]) -> None:
        if not text:
            return
        kind = self._kind
        if kind is _Kind.CALL:
            if self._code:
                text = ('{"code": "' if self._empty else "") + json.dumps(text, ensure_ascii=False)[1:-1]
            elif self._empty:
                text = text.lstrip()
                if not text:
                    return
            self._empty = False
            pieces.append(CallArguments(text))
            return
        if self._empty and kind in self._begun:
            text = "\n" + text
        self._empty = False
        self._begun.add(kind)
        pieces.append(Thought(text) if kind is _Kind.THOUGHT else Content(text))

    def _skip(self) -> None:
        held = self._held
        found = _BETWEEN.search(held)
        if found is None:
            self._held = held[_BETWEEN.held(held) :]
            return
        self._held = held[found.end() if found.group() == START else found.start() :]
        self._phase = _Phase.HEADER
