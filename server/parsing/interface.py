"""The interface of all parsers: text in, pieces out.

A parser serves one choice. The pieces do not depend on how the text is cut into pushes, once neighbours of one kind are
joined; so a stream and a whole answer are equal. It holds back only text that could still become part of a marker, and
it never raises: text that does not parse is content, or the arguments of a truncated call.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import msgspec


class Content(NamedTuple):
    """Text of the answer."""

    text: str


class Thought(NamedTuple):
    """Reasoning before the answer."""

    text: str


class CallStart(NamedTuple):
    name: str
    id: str | None = None
    """The call's id, if the format has one."""


class CallArguments(NamedTuple):
    """More arguments of the latest call, as JSON whatever the model's format."""

    text: str


class CallEnd(NamedTuple):
    """The call that began last is whole."""


Piece = Content | Thought | CallStart | CallArguments | CallEnd


class Parser(Protocol):
    """The parser of one choice."""

    @property
    def thinking(self) -> bool:
        """Whether the next text is reasoning, as far as is known; a token that arrives now counts as such."""

    def push(self, text: str) -> list[Piece]:
        """Takes more text and returns the pieces that became certain."""

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """The rest, at the end of the text. The parser is spent afterwards.

        ``cut``: the text was truncated. A call that has begun without its name is then dropped; otherwise it was no
        call, and is content.
        """


class ReasoningParser(Parser, Protocol):
    """Text in; thoughts and content out."""

    @property
    def done(self) -> bool:
        """All that still comes is content, and nothing is held back."""


class Tool(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    """JSON schema of the arguments; None: no arguments."""
    strict: bool = False
    grammar: str | None = None
    """The Lark grammar of a tool whose only argument is text of that grammar."""
