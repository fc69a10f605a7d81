"""Guards for values that hold other values.

A template builds in sixty lines a list that holds itself sixty levels deep, twice on each: small in
memory, but whoever compares, sorts, hashes, prints or encodes it visits 2^60 values, within a single
call into C that no clock interrupts. So such values are measured before any of that; what they cost
to measure they would have cost anyway.
"""

from collections.abc import Callable, Iterable, Sized
from typing import Any, Final

from .limits import MAX_ITEMS, Overrun, check_chars, check_time, measure

STR_METHODS: Final = frozenset(
    {
        *("capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "format", "format_map"),
        *("index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
        *("isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition"),
        *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip"),
        *("split", "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill"),
    }
)
METHODS: Final[tuple[tuple[Any, frozenset[str]], ...]] = (
    (str, STR_METHODS),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    ((list, tuple), frozenset({"copy", "count", "index"})),
    ((int, float, complex, bytes, bytearray, memoryview, range), frozenset()),
)
"""What a template may call on a value of Python's own. Without ``encode`` and ``to_bytes`` there are no bytes,
which no check here knows; ``translate`` makes a text as long as it likes of any other."""

COMPARING_TESTS: Final = frozenset(
    {
        *("eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<="),
        *("gt", "greaterthan", ">", "ge", ">=", "in"),
    }
)
_PLAIN: Final = (str, int, float, type(None))
MAX_DIGITS: Final = 400
"""To which a number may be rounded: as many as the largest has."""


def is_callable_method(owner: object, name: str) -> bool:
    """Whether a template may call the method ``name`` of ``owner``, as far as its type is one of Python's own."""
    for kind, names in METHODS:
        if isinstance(owner, kind):
            return name in names
    return True


LAZY_FILTERS: Final = frozenset(
    {
        *("attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map"),
        *("reject", "rejectattr", "reverse", "select", "selectattr", "slice"),
    }
)
"""Those that hand values on without looking into them."""


def measured(value: Any) -> Any:
    """``value`` itself, if all that it holds can be visited."""
    if not isinstance(value, _PLAIN):
        measure(value)
    return value


def take(values: Iterable[Any]) -> list[Any]:
    """All of them now, as many as they may be: what comes bit by bit would come where nothing is checked."""
    taken: list[Any] = []
    for value in values:
        check_time()
        taken.append(value)
        if len(taken) > MAX_ITEMS:
            raise Overrun("size")
    return taken


def check_indented(value: Any, width: int) -> None:
    """Before a value is written as JSON with ``width`` characters for each level."""
    total = 0
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        total += depth * width
        check_chars(total)
        if isinstance(item, list | tuple):
            pending.extend((inner, depth + 1) for inner in item)
        elif isinstance(item, dict):
            pending.extend((inner, depth + 1) for inner in item.values())


def check_round(_value: Any, *sizes: Any) -> None:
    """Before a number is rounded: ten is raised to that power."""
    for size in sizes:
        if isinstance(size, int) and abs(size) > MAX_DIGITS:
            raise Overrun("size")


def check_join(items: Any, separator: Any = "", *_: Any) -> None:
    """Before ``items`` are joined, also the characters of a text."""
    if isinstance(items, Sized):
        measure(separator)
        check_chars(measure(items) + len(str(separator)) * len(items))


def guard_test(name: str, test: Callable[..., Any]) -> Callable[..., Any]:
    """The same test, within its time, and within its size where it compares."""
    compares = name in COMPARING_TESTS

    def run(*args: Any, **kwargs: Any) -> Any:
        check_time()
        if compares:
            for value in args:
                measured(value)
        return test(*args, **kwargs)

    # what jinja hands to the test before its arguments
    if hasattr(test, "jinja_pass_arg"):
        run.jinja_pass_arg = test.jinja_pass_arg  # type: ignore[attr-defined]
    return run
