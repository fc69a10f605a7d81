"""Incremental reading of JSON: a value's own text, and decoded strings.

Nothing here recurses or keeps a stack, so nesting costs no memory. Text is passed on unchanged and unchecked: brackets
are counted, and a character that JSON does not allow outside of strings ends the value.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Final

from .reader import WHITESPACE, Reader, Sink, Steps

_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_PLAIN: Final = re.compile(r"[\s\w,:.+\-]+")
_INSIDE: Final = re.compile(r'[^"\\]+')
_SCALAR: Final = re.compile(r"[\w.+\-]+")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_REPLACEMENT: Final = "\ufffd"
_MAX_CODE_POINT: Final = 0x10FFFF


def escaped(text: str) -> str:
    """``text`` escaped for a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_value(reader: Reader, sink: Sink) -> Steps[bool]:
    """Passes on the text of one value. False if there is none, or it is broken or truncated."""
    depth = 0
    while True:
        char = yield from reader.peek()
        if char == '"':
            if not (yield from _string(reader, sink)):
                return False
        elif char and char in "{[":
            yield from reader.character()
            sink(char)
            depth += 1
            continue
        elif char and char in "}]" and depth:
            yield from reader.character()
            sink(char)
            depth -= 1
        elif depth and char and _PLAIN.match(char):
            yield from reader.run(_PLAIN, sink)
            continue
        elif not depth and char and _SCALAR.match(char):
            yield from reader.run(_SCALAR, sink)
        else:
            return False
        if not depth:
            return True


def json_string(reader: Reader, sink: Sink) -> Steps[bool]:
    """Reads the next string and passes on its decoded text. False if it is truncated."""
    yield from reader.character()
    return (yield from quoted(reader, sink, '"', _INSIDE, json_escape))


def quoted(
    reader: Reader, sink: Sink, close: str, inside: re.Pattern[str], escape: Callable[[Reader], Steps[str]]
) -> Steps[bool]:
    """The decoded rest of a string behind its opening quotes. False if it is truncated.

    ``inside`` matches characters other than backslash and quote; ``escape`` reads a letter behind a backslash, and
    more.
    """
    high = ""
    while True:
        char = yield from reader.peek()
        if char not in {"\\", ""} and high:
            sink(_REPLACEMENT)
            high = ""
        if not char:
            return False
        if char == "\\":
            yield from reader.character()
            decoded = yield from escape(reader)
            if high and not "\udc00" <= decoded <= "\udfff":
                sink(_REPLACEMENT)
                high = ""
            if "\ud800" <= decoded <= "\udbff":
                high = decoded
            elif "\udc00" <= decoded <= "\udfff":
                sink(_join(high, decoded))
                high = ""
            else:
                sink(decoded)
        elif inside.match(char):
            yield from reader.run(inside, sink)
        elif (yield from reader.accept(close)):
            return True
        else:
            sink((yield from reader.character()))


def _join(high: str, low: str) -> str:
    return (high + low).encode("utf-16", "surrogatepass").decode("utf-16") if high else _REPLACEMENT


def json_escape(reader: Reader) -> Steps[str]:
    """The decoded escape of the letter behind a backslash, with its digits; empty if it is truncated."""
    letter = yield from reader.character()
    if letter != "u":
        return _ESCAPES.get(letter, letter)
    return (yield from code_point(reader, 4))


def code_point(reader: Reader, length: int) -> Steps[str]:
    """The character of ``length`` hexadecimal digits; "" where they are cut short."""
    digits = ""
    while len(digits) < length:
        digit = yield from reader.peek()
        if digit not in _HEX:
            return _REPLACEMENT if digit else ""
        digits += yield from reader.character()
    number = int(digits, 16)
    return chr(number) if number <= _MAX_CODE_POINT else _REPLACEMENT


def _string(reader: Reader, sink: Sink) -> Steps[bool]:
    """Hands on a string's own text."""
    sink((yield from reader.character()))
    while True:
        char = yield from reader.peek()
        if char == '"':
            sink((yield from reader.character()))
            return True
        if char == "\\":
            first = yield from reader.character()
            second = yield from reader.character()
            sink(first + second)
        elif not char:
            return False
        else:
            yield from reader.run(_INSIDE, sink)


def arguments(reader: Reader, sink: Sink) -> Steps[bool]:
    """Hands on arguments as the text of a JSON object, also where a model wrote them as a string or as null."""
    char = yield from reader.peek()
    if char == '"':
        return (yield from _unwrapped(reader, sink))
    if (yield from reader.accept("null")):
        sink("{}")
        return True
    return (yield from json_value(reader, sink))


def _unwrapped(reader: Reader, sink: Sink) -> Steps[bool]:
    """The object in a string's text, if it is one; otherwise the string itself."""
    settled: Sink | None = None
    quoted = False

    def take(text: str) -> None:
        nonlocal settled, quoted
        if settled is None:
            text = text.lstrip(WHITESPACE)
            if not text:
                return
            quoted = text[0] != "{"
            settled = (lambda more: sink(escaped(more))) if quoted else sink
            if quoted:
                sink('"')
        settled(text)

    whole = yield from json_string(reader, take)
    if settled is None and whole:
        sink("{}")
    elif quoted and whole:
        sink('"')
    return whole


def is_number(text: str) -> bool:
    """Whether a text is a number as JSON writes them, and a finite one."""
    return _NUMBER.fullmatch(text) is not None and math.isfinite(float(text))


def is_json(text: str) -> bool:
    """Whether a text is one JSON value, with finite numbers."""
    try:
        json.loads(text, parse_constant=_refuse, parse_int=str, parse_float=_finite)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(_: str) -> None:
    raise ValueError


def _finite(text: str) -> None:
    if not math.isfinite(float(text)):
        raise ValueError
