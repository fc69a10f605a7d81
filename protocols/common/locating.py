"""Which field of a JSON body a byte belongs to, for bodies that cannot be decoded."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final

MAX_SCANNED: Final = 1 << 20
"""Scanned bytes; faults further in are not located."""
MAX_TOKENS: Final = 1 << 11
"""Strings, brackets and marks that are read, a few milliseconds of work; likewise."""
_MAX_DEPTH: Final = 32

_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?|[{}\[\],:]', re.DOTALL)
_NAME: Final = re.compile(rb'"([A-Za-z_][A-Za-z0-9_]{0,63})"')
_UNICODE_ESCAPE: Final = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F])|\\.", re.DOTALL)


def path_at(body: bytes, at: int) -> str | None:
    """The path (``messages[0].content``) of the value that contains the byte ``at``, or would contain it.

    None outside of all values and beyond the bounds. The path ends before a key that is no plain name, so that a
    client's text is not repeated.
    """
    if at > MAX_SCANNED:
        return None
    # One entry per open container: the index of the value in an array, the key of the value in an
    # object, or None between values.
    open_values: list[int | bytes | None] = []
    key: bytes | None = None
    for number, token in enumerate(_TOKEN.finditer(body, 0, at)):
        text = token[0]
        if number == MAX_TOKENS:
            return None
        if text in (b"{", b"["):
            if len(open_values) == _MAX_DEPTH:
                return None
            open_values.append(0 if text == b"[" else None)
        elif not open_values:
            return None
        elif text in (b"}", b"]"):
            open_values.pop()
            _end_value(open_values)
        elif text == b":":
            open_values[-1] = key
        elif text == b",":
            place = open_values[-1]
            open_values[-1] = place + 1 if isinstance(place, int) else None
        elif token.end() < at or (text.endswith(b'"') and len(text) > 1):
            if open_values[-1] is None:
                key = text
            else:
                _end_value(open_values)
    return _spell(open_values)


def _end_value(open_values: list[int | bytes | None]) -> None:
    """Behind a value of an array comes nothing but the next; of an object, the key is done with."""
    if open_values and isinstance(open_values[-1], bytes):
        open_values[-1] = None


def _spell(open_values: list[int | bytes | None]) -> str | None:
    path = ""
    for place in open_values:
        if place is None:
            break
        if isinstance(place, int):
            path += f"[{place}]"
            continue
        name = _NAME.fullmatch(place)
        if name is None:
            break
        path += ("." if path else "") + name[1].decode("ascii")
    return path or None


def deep_field(body: bytes) -> str | None:
    """The field of the outermost object that is the first to hold values deeper than anyone means."""
    return next((_name(key) for key, depth, _ in _tokens_of_fields(body) if depth > _MAX_DEPTH), None)


def crowded_field(body: bytes) -> str | None:
    """The field of the outermost object with the largest part of the body."""
    marks: Counter[bytes] = Counter()
    for key, _, text in _tokens_of_fields(body):
        if key is not None:
            marks[key] += 1 + text.count(b",") + text.count(b":")
    return _name(marks.most_common(1)[0][0]) if marks else None


def _tokens_of_fields(body: bytes) -> Iterator[tuple[bytes | None, int, bytes]]:
    """The key in the outermost object, the depth, and the token itself."""
    depth = 0
    key: bytes | None = None
    latest = b""
    for token in islice(_TOKEN.finditer(body, 0, MAX_SCANNED), MAX_TOKENS):
        text = token[0]
        if text in (b"{", b"["):
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
        elif depth == 1:
            if text == b":":
                key = latest
            elif text == b",":
                key = None
            else:
                latest = text
        yield key, depth, text


def _name(key: bytes | None) -> str | None:
    """None for a key that is no plain name, so that a client's text is not repeated."""
    name = _NAME.fullmatch(key or b"")
    return None if name is None else name[1].decode("ascii")


def half_a_character(body: bytes) -> int | None:
    r"""Position of an escape (``\ud83d``) that is one half of a surrogate pair without the other."""
    for escape in islice(_UNICODE_ESCAPE.finditer(body, 0, MAX_SCANNED), MAX_TOKENS):
        if escape[1] is not None:
            return escape.start()
    return None
