"""What a chat template may use up, and the checks that stop it before it does.

Each check runs before the operation that could make a value long, since afterwards the memory is
gone already. A value that is long on its own but was given by the client is bounded by the size of
the request.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

MAX_CHARS: Final = 8 << 20
"""Characters of a rendered chat, and of any text on the way."""
MAX_ITEMS: Final = 1_000_000
"""Of a list on the way."""
MAX_NUMBER: Final = 1_000_000
"""Of a number that is a width or a count."""
MAX_INT_BITS: Final = 256

_WIDE_FORMAT: Final = re.compile(r"\d{7}|\*")
_DEADLINE: Final = threading.local()


class Overrun(Exception):
    """A template used more than it may; the argument says of what: ``time`` or ``size``."""


def set_deadline(at: float) -> None:
    """Bounds what this thread renders from now on; ``at`` is in ``time.monotonic()`` seconds."""
    _DEADLINE.at = at


def check_time() -> None:
    if time.monotonic() > getattr(_DEADLINE, "at", float("inf")):
        raise Overrun("time")


def check_chars(count: int) -> None:
    if count > MAX_CHARS:
        raise Overrun("size")


def bounded(value: Any) -> Any:
    """``value`` itself, if it is not too large to go on with."""
    if isinstance(value, str):
        check_chars(len(value))
    elif isinstance(value, list | tuple | dict):
        if len(value) > MAX_ITEMS:
            raise Overrun("size")
    elif isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
        raise Overrun("size")
    return value


def measure(value: Any) -> int:
    """At least the characters that printing ``value`` takes; raises as soon as they are too many.

    A list may hold one inner list many times over, and so print far longer than it is in memory.
    """
    if isinstance(value, str):
        return len(value)
    total = items = 0
    pending = [value]
    while pending:
        item = pending.pop()
        items += 1
        if items > MAX_ITEMS:
            raise Overrun("size")
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, list | tuple):
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        check_chars(total + len(pending))
    return total + items


def concat(pieces: Iterable[str]) -> str:
    """The pieces joined, as many as they may be."""
    taken: list[str] = []
    total = 0
    for piece in pieces:
        total += len(piece)
        check_chars(total)
        taken.append(piece)
    return "".join(taken)


def check_binary(operator: str, left: Any, right: Any) -> None:
    """Before ``left operator right``."""
    match operator, left, right:
        case "**", _, int() if abs(right) > MAX_INT_BITS:
            raise Overrun("size")
        case ("*", str() | list() | tuple() as sequence, int() as times) | (
            "*",
            int() as times,
            str() | list() | tuple() as sequence,
        ):
            if len(sequence) * times > (MAX_CHARS if isinstance(sequence, str) else MAX_ITEMS):
                raise Overrun("size")
        case "%", str(), _:
            check_format(left, right)
        case _:
            pass


def check_format(pattern: str, *values: Any) -> None:
    """Before ``values`` are written into ``pattern``, by ``%`` or by ``format``."""
    if _WIDE_FORMAT.search(pattern):
        raise Overrun("size")
    places = pattern.count("%") + pattern.count("{")
    check_chars(len(pattern) + places * sum(measure(value) for value in values))


def _check_width(text: Any, *sizes: Any) -> None:
    for size in sizes:
        if isinstance(size, int) and abs(size) > MAX_NUMBER:
            raise Overrun("size")
        if isinstance(size, str) and isinstance(text, str):
            check_chars(len(size) * (text.count("\n") + 1))


def _check_indent(text: Any, *sizes: Any) -> None:
    _check_width(text, *sizes)
    width = next((size for size in sizes if isinstance(size, int) and not isinstance(size, bool)), 4)
    check_chars(width * str(text).count("\n"))


def _check_tabs(text: str, size: int = 8) -> None:
    _check_width(text, size)
    check_chars(size * text.count("\t"))


def _check_replace(text: Any, old: Any = "", new: Any = "", *_: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        check_chars(len(text) + text.count(old) * len(new))


def _check_filter_join(items: Any, separator: Any = "", *_: Any) -> None:
    if isinstance(items, list | tuple | dict):
        check_chars(measure(items) + len(str(separator)) * len(items))


def _check_method_join(separator: str, items: Any = (), *_: Any) -> None:
    _check_filter_join(items, separator)


def _check_printed(value: Any, *_: Any) -> None:
    measure(value)


FILTER_CHECKS: Final[dict[str, Callable[..., None]]] = {
    **dict.fromkeys(("batch", "center", "slice", "truncate", "wordwrap"), _check_width),
    **dict.fromkeys(("escape", "e", "forceescape", "safe", "string", "striptags", "tojson"), _check_printed),
    "format": check_format,
    "indent": _check_indent,
    "join": _check_filter_join,
    "replace": _check_replace,
}
"""Filter → the check before it, called with the filter's own arguments."""

METHOD_CHECKS: Final[dict[str, Callable[..., None]]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _check_width),
    **dict.fromkeys(("format", "format_map"), check_format),
    "expandtabs": _check_tabs,
    "join": _check_method_join,
    "replace": _check_replace,
}
"""Method of a text → the check before it, called with the text and the arguments."""
