"""Allowed white space in JSON. It is bounded everywhere, so that no model writes it without end.

A client's pattern is rewritten: unbounded repeats become bounded ones.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from stentor.protocols.common.errors import BadRequest, refused

from ..config.models import JsonWhitespace

INDENTED: Final[Mapping[str, Any]] = MappingProxyType(
    {"whitespace_flexible": False, "whitespace_pattern": r"\n?(?:\x20{0,32}|\t{0,8})"}
)
"""Between any two tokens of JSON: a line's end, and an indentation or spaces behind it."""
WHITESPACE: Final[Mapping[JsonWhitespace, Mapping[str, Any]]] = MappingProxyType(
    {
        "indented": INDENTED,
        "compact": {"whitespace_flexible": False, "key_separator": ": ?", "item_separator": ", ?"},
        "none": {"whitespace_flexible": False},
    }
)
"""llguidance's options. ``indented`` lets a model choose its own form, as other servers do."""
MAX_REPEATS: Final = 16
"""Replaces ``*`` and ``+``, and bounds ``{m,n}``."""
MAX_LENGTH: Final = 64
"""Characters of white space in one place."""

_CHARACTERS: Final = {" ": r"\x20", "\t": r"\t", "\n": r"\n", "\r": r"\r"}
_ESCAPES: Final = {"t": r"\t", "n": r"\n", "r": r"\r", " ": r"\x20"}
_ALL: Final = r"\x20\t\n\r"
_SPELLED: Final = {"x20": r"\x20", "x0A": r"\n", "x0a": r"\n", "x0D": r"\r", "x0d": r"\r", "x09": r"\t"}
_MAX_DEPTH: Final = 16


def bounded_whitespace(pattern: str, field: str) -> str:
    """The pattern with bounded repeats. Raises BadRequest for one that matches anything but white space."""
    reader = _Reader(pattern, field)
    written, longest = reader.alternatives(0)
    if reader.left:
        raise reader.refusal("a bracket is closed that was not opened")
    if longest > MAX_LENGTH:
        raise reader.refusal(f"it may match up to {longest} characters, and {MAX_LENGTH} is the most that is supported")
    return written


class _Reader:
    """The small part of a regular expression's syntax that white space needs."""

    def __init__(self, pattern: str, field: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._field = field

    @property
    def left(self) -> bool:
        return self._at < len(self._pattern)

    def refusal(self, why: str) -> BadRequest:
        return refused(self._field, why, "invalid_value")

    def alternatives(self, depth: int) -> tuple[str, int]:
        """Up to a closing bracket: the pattern, and how long its matches may be."""
        if depth > _MAX_DEPTH:
            raise self.refusal("its brackets are nested too deeply")
        options: list[str] = []
        longest, most = 0, 0
        option = ""
        while self.left and self._pattern[self._at] != ")":
            if self._pattern[self._at] == "|":
                self._at += 1
                options.append(option)
                longest, most, option = max(longest, most), 0, ""
                continue
            part, length = self._part(depth)
            option += part
            most += length
        return "|".join([*options, option]), max(longest, most)

    def _part(self, depth: int) -> tuple[str, int]:
        character = self._pattern[self._at]
        if character == "(":
            self._at += 3 if self._pattern.startswith("(?:", self._at) else 1
            inner, length = self.alternatives(depth + 1)
            if not self.left:
                raise self.refusal("a bracket is not closed")
            self._at += 1
            return self._repeated(f"(?:{inner})", length)
        if character == "[":
            end = self._pattern.find("]", self._at)
            if end <= self._at + 1:
                raise self.refusal("a class is empty or not closed")
            stop, members = end, ""
            self._at += 1
            while self._at < stop:
                members += self._character()
            self._at = end + 1
            return self._repeated(f"[{members}]", 1)
        return self._repeated(f"[{self._character()}]", 1)

    def _character(self) -> str:
        character = self._pattern[self._at]
        self._at += 1
        if character in _CHARACTERS:
            return _CHARACTERS[character]
        if character == "\\":
            following = self._pattern[self._at : self._at + 1]
            if following == "s":
                self._at += 1
                return _ALL
            if following in _ESCAPES:
                self._at += 1
                return _ESCAPES[following]
            if (spelled := self._pattern[self._at : self._at + 3]) in _SPELLED:
                self._at += 3
                return _SPELLED[spelled]
        raise self.refusal(r"it may match white space only (space, \t, \n, \r, and \s for all of them)")

    def _repeated(self, part: str, length: int) -> tuple[str, int]:
        at = self._pattern[self._at : self._at + 1]
        if at and at in "?*+":
            self._at += 1
            least, most = {"?": (0, 1), "*": (0, MAX_REPEATS), "+": (1, MAX_REPEATS)}[at]
        elif at == "{":
            least, most = self._counts()
        else:
            return part, length
        return f"(?:{part}){{{least},{most}}}", length * most

    def _counts(self) -> tuple[int, int]:
        end = self._pattern.find("}", self._at)
        low, comma, high = self._pattern[self._at + 1 : max(end, self._at + 1)].partition(",")
        if end < 0 or not _is_count(low or "0") or not _is_count(high or "0") or not (low or high):
            raise self.refusal("a repeat is not of the form {m}, {m,} or {m,n}")
        self._at = end + 1
        least = min(int(low or 0), MAX_REPEATS)
        most = min(int(high), MAX_REPEATS) if high else MAX_REPEATS if comma else least
        if least > most:
            raise self.refusal("a repeat has more at least than at most")
        return least, max(most, 1)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
