"""Query parameters of a URL, and paginated lists."""

from collections.abc import Sequence
from typing import Final, TypeVar

from starlette.requests import Request

from stentor.protocols.common.errors import wrong

T = TypeVar("T")
_SWITCHES: Final = {"true": True, "1": True, "false": False, "0": False}


def switch_of(request: Request, name: str, default: bool = False) -> bool:
    """Raises BadRequest."""
    value = request.query_params.get(name)
    if value is None:
        return default
    if value.lower() not in _SWITCHES:
        raise wrong(name, "must be true or false", "invalid_value")
    return _SWITCHES[value.lower()]


def choice_of(request: Request, name: str, choices: Sequence[str]) -> str:
    """A word of the query; the first of ``choices`` is the default. Raises BadRequest."""
    value = request.query_params.get(name, choices[0])
    if value not in choices:
        raise wrong(name, f"must be one of {', '.join(choices)}", "invalid_value")
    return value


def limit_of(request: Request, default: int, most: int) -> int:
    """The query's ``limit``. Raises BadRequest."""
    text = request.query_params.get("limit")
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise wrong("limit", f"must be a number from 1 to {most}", "invalid_value")
    return int(text)


def order_of(request: Request, default: str = "desc") -> str:
    """The query's ``order``. Raises BadRequest."""
    order = request.query_params.get("order", default)
    if order not in ("asc", "desc"):
        raise wrong("order", "must be asc or desc", "invalid_value")
    return order


def page_of(rows: Sequence[T], limit: int) -> tuple[list[T], bool]:
    """The first ``limit`` of up to one row more, and whether there are more."""
    return list(rows[:limit]), len(rows) > limit
