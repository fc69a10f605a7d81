"""Which field of a JSON body a byte belongs to, for bodies that cannot be decoded."""

import re
from typing import Final

MAX_SCANNED: Final = 1 << 20
"""Bytes looked at; what lies further in is not located."""
_MAX_DEPTH: Final = 32

_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?|[{}\[\],:]', re.DOTALL)
_NAME: Final = re.compile(rb'"([A-Za-z_][A-Za-z0-9_]{0,63})"')
_UNICODE_ESCAPE: Final = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F])|\\.", re.DOTALL)


def path_at(body: bytes, at: int) -> str | None:
    """The path (``messages[0].content``) of the value that holds the byte ``at``, or would hold it.

    None outside of all values, and beyond the bounds. Of a key that is no plain name, the path ends
    before it: a client's own words are not repeated.
    """
    if at > MAX_SCANNED:
        return None
    # One entry per open container: the index of the value in an array, the key of the value in an
    # object, or None between values.
    open_values: list[int | bytes | None] = []
    key: bytes | None = None
    for token in _TOKEN.finditer(body, 0, at):
        text = token[0]
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
            open_values[-1] = _next_value(open_values[-1])
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


def _next_value(place: int | bytes | None) -> int | None:
    return place + 1 if isinstance(place, int) else None


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


def half_a_character(body: bytes) -> int | None:
    r"""Where an escape stands (``\ud83d``) that is one half of a character without the other."""
    for escape in _UNICODE_ESCAPE.finditer(body, 0, MAX_SCANNED):
        if escape[1] is not None:
            return escape.start()
    return None
