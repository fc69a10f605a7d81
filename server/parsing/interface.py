"""The one interface of all parsers: text in, pieces out.

A parser serves one choice. For every way to cut a text into pushes, the pieces that come out, neighbours of one kind
joined, are the same; so a stream and a whole answer cannot differ. It holds back only what could still turn out to be
part of a marker, and it never raises: what does not parse is content, or the arguments of a call that is cut short.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Content(NamedTuple):
    """Of the answer itself."""

    text: str


class Thought(NamedTuple):
    """Of what comes before the answer."""

    text: str


class CallStart(NamedTuple):
    name: str
    id: str | None = None
    """Where the model's format has one."""


class CallArguments(NamedTuple):
    """More of the arguments of the call that began last: JSON, whatever the model's format writes."""

    text: str


class CallEnd(NamedTuple):
    """The call that began last is whole."""


Piece = Content | Thought | CallStart | CallArguments | CallEnd


class Parser(Protocol):
    """Of one choice."""

    @property
    def thinking(self) -> bool:
        """Whether what comes next is reasoning, as far as is known; a token that comes now counts as such."""

    def push(self, text: str) -> list[Piece]:
        """Takes more text and returns what became certain."""

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """What is left, once no more text comes. The parser is spent afterwards.

        ``cut``: it was not the model that ended the text. What had begun as a call, and not come as far as its name,
        is then dropped; otherwise it was none, and is content.
        """


class ReasoningParser(Parser, Protocol):
    """Text in; thoughts and content out."""

    @property
    def done(self) -> bool:
        """All that still comes is content, and nothing is held back."""


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    """JSON schema of the arguments; None takes none."""
    strict: bool = False
    grammar: str | None = None
    """Of a tool whose one argument is text that is held to this grammar, in Lark."""
