"""JSON, read while it comes: a value's own text, and strings decoded.

Nothing here recurses or keeps a stack, so nesting costs no memory. Text is handed on as it is and not judged: brackets
are counted, and a character that JSON has no use for outside of strings ends the value.
"""

import json
import re
from typing import Final

from .reader import WHITESPACE, Reader, Sink, Steps

_PLAIN: Final = re.compile(r"[\s\w,:.+\-]+")
_INSIDE: Final = re.compile(r'[^"\\]+')
_SCALAR: Final = re.compile(r"[\w.+\-]+")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_REPLACEMENT: Final = "\ufffd"


def escaped(text: str) -> str:
    """``text`` as it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_value(reader: Reader, sink: Sink) -> Steps[bool]:
    """Hands on the text of one value. False where what comes is none, or it is broken or cut short."""
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
    """Reads a string that comes next and hands on what it says. False where it is cut short."""
    yield from reader.character()
    high = ""
    while True:
        char = yield from reader.peek()
        if char not in {"\\", ""} and high:
            sink(_REPLACEMENT)
            high = ""
        if char == "\\":
            decoded = yield from _escape(reader)
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
        elif char == '"':
            yield from reader.character()
            return True
        elif not char:
            return False
        else:
            yield from reader.run(_INSIDE, sink)


def _join(high: str, low: str) -> str:
    return (high + low).encode("utf-16", "surrogatepass").decode("utf-16") if high else _REPLACEMENT


def _escape(reader: Reader) -> Steps[str]:
    """What an escape stands for; nothing where it is cut short."""
    yield from reader.character()
    letter = yield from reader.character()
    if letter != "u":
        return _ESCAPES.get(letter, letter)
    digits = ""
    while len(digits) < 4:
        digit = yield from reader.peek()
        if digit not in _HEX:
            return _REPLACEMENT if digit else ""
        digits += yield from reader.character()
    return chr(int(digits, 16))


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
    """What a string says, if that is an object; the string itself, if it says something else."""
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
