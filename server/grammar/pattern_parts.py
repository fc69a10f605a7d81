r"""Patterns of text inside a JSON string in parts, and as rules of Lark where one terminal would not do.

llguidance's lexer is greedy and never backtracks. At a backslash it cannot know the escape yet: a terminal such as
``.*`` would consume it, expecting ``\\t``, and fail at the ``\\n`` of another terminal. So a text that could end before
a backslash or continue with one consists of terminals that cannot do both: runs of plain characters, and single
escaped characters.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

_NONE: Final = re.compile(r"[*?]|\{0*(,|\})|\{0+$")
_UNBOUNDED: Final = re.compile(r"\{([0-9]+),\}")


class Part(Protocol):
    """A part of a pattern."""

    @property
    def begins_changed(self) -> bool:
        """It may begin with a backslash."""

    @property
    def may_be_empty(self) -> bool: ...

    @property
    def open(self) -> bool:
        """Whether it may continue with a backslash where it could end."""

    def pattern(self) -> str:
        """The whole pattern, in a form that can be repeated."""

    def rules(self) -> str:
        """An expression of Lark, for rules, of which no terminal is open, as far as that can be had."""


class One(msgspec.Struct, frozen=True):
    """One character."""

    plain: str
    """A pattern for characters that are written unchanged; the empty text without any."""
    changed: str
    """And for the others."""

    may_be_empty = False
    open = False

    @property
    def begins_changed(self) -> bool:
        return bool(self.changed)

    def pattern(self) -> str:
        return f"(?:{self.plain}|{self.changed})" if self.plain and self.changed else self._either()

    def _either(self) -> str:
        return self.plain or f"(?:{self.changed})"

    def rules(self) -> str:
        return f"/{self.pattern()}/"

    def any_number(self) -> str:
        """In runs of plain characters, and each other one separately."""
        options = ([f"/(?:{self.plain})+/"] if self.plain else []) + ([f"/{self.changed}/"] if self.changed else [])
        return f"({' | '.join(options)})"


def _reached(parts: Iterable[Part]) -> Iterator[Part]:
    """Parts that may come first, since all before them may be empty."""
    for part in parts:
        yield part
        if not part.may_be_empty:
            return


class Row(msgspec.Struct, frozen=True):
    parts: Sequence[Part]

    @property
    def begins_changed(self) -> bool:
        return any(part.begins_changed for part in _reached(self.parts))

    @property
    def may_be_empty(self) -> bool:
        return all(part.may_be_empty for part in self.parts)

    @property
    def open(self) -> bool:
        return any(part.open for part in _reached(reversed(self.parts)))

    def pattern(self) -> str:
        return f"(?:{''.join(part.pattern() for part in self.parts)})"

    def rules(self) -> str:
        if not self.open:
            return f"/{self.pattern()}/" if self.parts else '""'
        closed = len(self.parts)
        while closed and (self.parts[closed - 1].open or self.parts[closed - 1].may_be_empty):
            closed -= 1
        written = [f"/{Row(self.parts[:closed]).pattern()}/"] if closed else []
        return " ".join([*written, *(part.rules() for part in self.parts[closed:])])


class Either(msgspec.Struct, frozen=True):
    parts: Sequence[Part]

    @property
    def begins_changed(self) -> bool:
        return any(part.begins_changed for part in self.parts)

    @property
    def may_be_empty(self) -> bool:
        return any(part.may_be_empty for part in self.parts)

    @property
    def open(self) -> bool:
        return any(part.open for part in self.parts) or (self.may_be_empty and self.begins_changed)

    def pattern(self) -> str:
        return f"(?:{'|'.join(part.pattern() for part in self.parts)})"

    def rules(self) -> str:
        return f"({' | '.join(part.rules() for part in self.parts)})" if self.open else f"/{self.pattern()}/"


class Many(msgspec.Struct, frozen=True):
    part: Part
    times: str
    """``*``, ``+``, ``?`` or numbers in braces."""

    @property
    def begins_changed(self) -> bool:
        return self.part.begins_changed

    @property
    def may_be_empty(self) -> bool:
        return self.part.may_be_empty or _NONE.match(self.times) is not None

    @property
    def open(self) -> bool:
        return self.part.open or self.part.begins_changed

    def pattern(self) -> str:
        return f"(?:{self.part.pattern()}{self.times})"

    def rules(self) -> str:
        if not self.open:
            return f"/{self.pattern()}/"
        if isinstance(self.part, One) and self.times in "*+":
            return f"{self.part.any_number()}{self.times}"
        if isinstance(self.part, One) and (least := _UNBOUNDED.fullmatch(self.times)):
            return f"/{self.part.pattern()}{{{least[1]}}}/ {self.part.any_number()}*"
        if self.times in "*+?":
            return f"({self.part.rules()}){self.times}"
        return f"/{self.pattern()}/"  # to count characters one by one would take too much of a parser


def either(options: Sequence[Sequence[Part]]) -> Part:
    """One of several rows; where each is a single character, one of these."""
    rows = [parts[0] if len(parts) == 1 else Row(tuple(parts)) for parts in options]
    if len(rows) == 1:
        return rows[0]
    ones = [row for row in rows if isinstance(row, One)]
    if len(ones) < len(rows):
        return Either(tuple(rows))
    plain = "|".join(one.plain for one in ones if one.plain)
    changed = "|".join(one.changed for one in ones if one.changed)
    return One(f"(?:{plain})" if plain else "", f"(?:{changed})" if changed else "")
