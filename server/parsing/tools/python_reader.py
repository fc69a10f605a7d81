"""Python's literals, read while they come and handed on as JSON; JSON itself is read as well."""

import re
from collections.abc import Callable
from typing import Final

from .json_reader import code_point, escaped, is_number, json_escape, quoted
from .reader import Reader, Sink, Steps

MAX_DEPTH: Final = 64
MAX_WORD: Final = 512
"""Characters of a name, a number or a constant."""
NAME: Final = re.compile(r"[\w.\-]")
_WORD: Final = re.compile(r"[\w.+\-]")
_CONSTANTS: Final = {
    "True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null",
}  # fmt: skip
_INSIDE: Final = {quote: re.compile(rf"[^{quote}\\]+") for quote in "'\""}
_OCTAL: Final = frozenset("01234567")
_LENGTHS: Final = {"x": 2, "u": 4, "U": 8}
_LEADING_ZEROS: Final = re.compile(r"^(-?)0+(?=[0-9])")
_BASED: Final = re.compile(r"-?0(?:[xX][0-9a-fA-F]+|[oO][0-7]+|[bB][01]+)")
_BLANK: Final = re.compile(r"[ \t\r\n]+")
_BEHIND_STRINGS: Final = frozenset({"", *",)]}:"})
_CLOSED_BY: Final = {"[": "]", "(": ")"}
_LETTERS: Final = {"a": "\a", "v": "\v", "\n": "", "/": "/", "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def word(reader: Reader, pattern: re.Pattern[str]) -> Steps[str]:
    """Characters that ``pattern`` matches, at most :data:`MAX_WORD`."""
    found: list[str] = []
    while len(found) < MAX_WORD:
        char = yield from reader.peek()
        if not char or not pattern.match(char):
            break
        found.append((yield from reader.character()))
    return "".join(found)


def python_value(reader: Reader, sink: Sink, depth: int = 0) -> Steps[bool]:
    """Passes on one value as JSON. False if there is none, or it is truncated or nested too deeply."""

    def inner(_: str) -> Steps[bool]:
        return (yield from python_value(reader, sink, depth + 1))

    char = yield from reader.space()
    if not char or depth > MAX_DEPTH:
        return False
    if char in "'\"":
        return (yield from _string(reader, sink, char))
    if char in _CLOSED_BY:
        return (yield from _items(reader, sink, "[]", _CLOSED_BY[char], inner))
    if char == "{":
        return (yield from _braces(reader, sink, depth))
    text = yield from word(reader, _WORD)
    value = _CONSTANTS.get(text) or _number(text)
    if value is None:
        return False
    sink(value)
    return True


def _number(text: str) -> str | None:
    plain = _LEADING_ZEROS.sub(r"\1", text.replace("_", "").removeprefix("+"))
    if is_number(plain):
        return plain
    if _BASED.fullmatch(plain):
        return str(int(plain, 0))
    if is_number(plain + "0") and plain.endswith("."):
        return plain + "0"
    if plain.lstrip("-").startswith(".") and is_number(plain.replace(".", "0.", 1)):
        return plain.replace(".", "0.", 1)
    return None


def _string(reader: Reader, sink: Sink, quote: str) -> Steps[bool]:
    opening = yield from reader.accept(quote * 3, quote * 2, quote)
    sink('"')
    whole = len(opening) == 2 or (
        yield from quoted(reader, lambda text: sink(escaped(text)), opening, _INSIDE[quote], _escape)
    )
    while whole and len(opening) < 3 and (behind := (yield from _behind_string(reader))) is not None:
        # a quote that the model did not escape
        sink(escaped(quote + behind))
        whole = yield from quoted(reader, lambda text: sink(escaped(text)), quote, _INSIDE[quote], _escape)
    if whole:
        sink('"')
    return whole


def _behind_string(reader: Reader) -> Steps[str | None]:
    """The white space behind a quote that does not end its string; None behind one that does."""
    space: list[str] = []
    yield from reader.run(_BLANK, space.append)
    return None if (yield from reader.peek()) in _BEHIND_STRINGS else "".join(space)


def _escape(reader: Reader) -> Steps[str]:
    letter = yield from reader.peek()
    if letter in _LENGTHS:
        yield from reader.character()
        return (yield from code_point(reader, _LENGTHS[letter]))
    if letter in _LETTERS:
        yield from reader.character()
        return _LETTERS[letter]
    if letter in _OCTAL:
        digits = ""
        while len(digits) < 3 and (yield from reader.peek()) in _OCTAL:
            digits += yield from reader.character()
        return chr(int(digits, 8))
    if letter in {"'", '"', "\\"}:
        return (yield from json_escape(reader))
    return "\\" if letter else ""


def _items(reader: Reader, sink: Sink, ends: str, close: str, item: Callable[[str], Steps[bool]]) -> Steps[bool]:
    """Items between brackets, with commas between them; ``ends`` are the brackets of JSON, ``close`` Python's."""
    yield from reader.character()
    sink(ends[0])
    any = False
    while True:
        char = yield from reader.space()
        if char == close:
            yield from reader.character()
            sink(ends[1])
            return True
        if any:
            if char != ",":
                return False
            yield from reader.character()
            char = yield from reader.space()
            if char == close:
                continue
            sink(", ")
        if not (yield from item(char)):
            return False
        any = True


def _braces(reader: Reader, sink: Sink, depth: int) -> Steps[bool]:
    """A dictionary, or a set as an array: what follows the first item decides."""
    first = True
    is_set = False

    def item(char: str) -> Steps[bool]:
        nonlocal first, is_set
        parts: list[str] = []
        take: Sink = sink if is_set else parts.append
        if not char or not (yield from python_value(reader, take, depth + 1)):
            return False
        if first:
            yield from reader.space()
            is_set = (yield from reader.peek()) in {",", "}"}
            sink("[" if is_set else "{")
            first = False
        if is_set:
            if parts:
                sink("".join(parts))
            return True
        key = "".join(parts)
        yield from reader.space()
        if key[0] in "[{" or not (yield from reader.accept(":")):
            return False
        sink(f"{key}: " if key[0] == '"' else f'"{key}": ')
        return (yield from python_value(reader, sink, depth + 1))

    def end(bracket: str) -> None:
        if bracket == "}":
            sink("{}" if first else "]" if is_set else "}")
        elif bracket != "{":
            sink(bracket)

    return (yield from _items(reader, end, "{}", "}", item))


def python_json(text: str) -> str | None:
    """The JSON of a text that is one Python literal; None if it is not."""
    reader = Reader()
    reader.feed(text)
    reader.ended = True
    parts: list[str] = []
    value = python_value(reader, parts.append)
    try:
        next(value)
    except StopIteration as stop:
        rest = reader.space()
        try:
            next(rest)
        except StopIteration as end:
            return "".join(parts) if stop.value and not end.value else None
    return None
