"""What a chat template may use up, and the checks that stop it before it does.

Each check runs before the operation that could make a value long, since afterwards the memory is
gone already. A value that is long on its own but was given by the client is bounded by the size of
the request.
"""

import re
import string
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import jinja2.runtime
import jinja2.utils
from jinja2.exceptions import SecurityError

from ..config.config import DEFAULT_CHARS

MAX_ITEMS: Final = 1_000_000
"""Of a list on the way."""
MAX_NUMBER: Final = 1_000_000
"""Of a number that is a width or a count."""
SHORT: Final = 256
"""Characters of a text that is not worth counting: time runs out before the memory does."""
MAX_STRIPPED: Final = 256
"""Different characters to take off the ends of a text."""
MAX_INT_BITS: Final = 256
MAX_BYTES: Final = 1 << 30
"""Of all that one rendering makes, roughly, with what it has let go of: it cannot be told what it still holds."""

_WIDE_FORMAT: Final = re.compile(r"\d{7}|\*")
_WIDTH: Final = re.compile(r"\d+")
_NUMBERS: Final = (int, float, type(None))
_ITEMS_A_LOOK: Final = 4096
"""Items that are visited between two looks at the clock."""
_VIEWS: Final[tuple[type, ...]] = (type({}.keys()), type({}.values()), type({}.items()))
_BOUNDS: Final = threading.local()


class Overrun(Exception):
    """A template used more than it may; the argument says of what: ``time`` or ``size``."""


def set_bounds(deadline: float, max_chars: int = DEFAULT_CHARS) -> None:
    """Of what this thread renders from now on; ``deadline`` is in ``time.thread_time()`` seconds: on a
    machine that is busy with other things a template takes no more of them."""
    _BOUNDS.deadline = deadline
    _BOUNDS.max_chars = max_chars
    _BOUNDS.bytes_left = float("inf") if deadline == float("inf") else MAX_BYTES


def check_time() -> None:
    if time.thread_time() > getattr(_BOUNDS, "deadline", float("inf")):
        raise Overrun("time")


def check_chars(count: int) -> None:
    if count > getattr(_BOUNDS, "max_chars", DEFAULT_CHARS):
        raise Overrun("size")


def spend(count: int) -> None:
    """Counts bytes that have been taken."""
    left = getattr(_BOUNDS, "bytes_left", float("inf")) - count
    if left < 0:
        raise Overrun("size")
    _BOUNDS.bytes_left = left


def bounded(value: Any, item_bytes: int = 8) -> Any:
    """``value`` itself, which has just been made, if it is not too large to go on with.

    ``item_bytes`` is what an item of a list takes: the reference alone, where the item was there before.
    """
    if isinstance(value, str):
        if len(value) > SHORT:
            check_chars(len(value))
            spend(len(value) if value.isascii() else 4 * len(value))
    elif isinstance(value, list | tuple | dict):
        if len(value) > MAX_ITEMS:
            raise Overrun("size")
        spend(item_bytes * len(value))
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
    most = getattr(_BOUNDS, "max_chars", DEFAULT_CHARS)
    pending = [value]
    while pending:
        item = pending.pop()
        items += 1
        if isinstance(item, str):
            total += len(item)
        elif not isinstance(item, _NUMBERS):
            pending.extend(_inner(item))
        if items + len(pending) > MAX_ITEMS or total + len(pending) > most:
            raise Overrun("size")
        if not items % _ITEMS_A_LOOK:
            check_time()
    return total + items


def _inner(value: Any) -> Iterable[Any]:
    """What is visited with a value."""
    if isinstance(value, (list, tuple)) or type(value) in _VIEWS:
        return value  # type: ignore[no-any-return]
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    if isinstance(value, jinja2.utils.Namespace):
        return value._Namespace__attrs.values()  # type: ignore[no-any-return]
    if isinstance(value, jinja2.utils.Cycler):
        return value.items
    if isinstance(value, jinja2.runtime.LoopContext):
        raise SecurityError("a loop is no value")
    return ()


def concat(pieces: Iterable[str]) -> str:
    """The pieces joined, as many as they may be."""
    taken: list[str] = []
    total = 0
    for piece in pieces:
        total += len(piece)
        check_chars(total)
        taken.append(piece)
    text = "".join(taken)
    spend(len(text) if text.isascii() else 4 * len(text))
    return text


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
            if isinstance(sequence, str):
                check_chars(len(sequence) * times)
            elif len(sequence) * times > MAX_ITEMS:
                raise Overrun("size")
        case "%", str(), _:
            check_format(left, right)
        case _:
            pass


def check_format(pattern: str, *values: Any) -> None:
    """Before ``values`` are written into ``pattern``, by ``%`` or by ``format``."""
    if _WIDE_FORMAT.search(pattern):
        raise Overrun("size")
    widths = sum(map(int, _WIDTH.findall(pattern)))
    places = pattern.count("%") + pattern.count("{")
    check_chars(len(pattern) + widths + places * sum(measure(value) for value in values))


def _check_method_format(pattern: str, *values: Any) -> None:
    """As :func:`check_format`, and without widths that are values themselves (``{:{}}``)."""
    check_format(pattern, *values)
    try:
        fields = [(field or "", spec or "") for _, field, spec, _ in string.Formatter().parse(pattern)]
    except ValueError:
        return  # and the method will say so
    for field, spec in fields:
        if "." in field:
            raise SecurityError("a format may not look up attributes")
        if "{" in spec:
            raise Overrun("size")


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


def _check_strip(_text: Any, chars: Any = None, *_: Any) -> None:
    """Each end is compared with every one of ``chars``."""
    if isinstance(chars, str) and len(chars) > MAX_STRIPPED:
        raise Overrun("size")


def _check_words(text: Any, *_: Any) -> None:
    """Before a text is taken apart into many small ones."""
    if isinstance(text, str) and len(text) > MAX_NUMBER:
        raise Overrun("size")


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
    **dict.fromkeys(("escape", "e", "forceescape", "safe", "string", "tojson"), _check_printed),
    "format": check_format,
    "indent": _check_indent,
    "join": _check_filter_join,
    "replace": _check_replace,
    "trim": _check_strip,
    **dict.fromkeys(("striptags", "title", "urlencode", "wordcount"), _check_words),
}
"""Filter → the check before it, called with the filter's own arguments."""

METHOD_CHECKS: Final[dict[str, Callable[..., None]]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _check_width),
    **dict.fromkeys(("format", "format_map"), _check_method_format),
    "expandtabs": _check_tabs,
    "join": _check_method_join,
    "replace": _check_replace,
    **dict.fromkeys(("lstrip", "rstrip", "strip"), _check_strip),
}
"""Method of a text → the check before it, called with the text and the arguments."""
