"""Lists that come a page at a time."""

from collections.abc import Sequence
from typing import TypeVar

from starlette.requests import Request

from stentor.protocols.common.errors import wrong

T = TypeVar("T")


def limit_of(request: Request, default: int, most: int) -> int:
    """The query's ``limit``. Raises BadRequest."""
    text = request.query_params.get("limit")
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise wrong("limit", f"must be a number from 1 to {most}", "invalid_value")
    return int(text)


def order_of(request: Request) -> str:
    """The query's ``order``. Raises BadRequest."""
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise wrong("order", "must be asc or desc", "invalid_value")
    return order


def page_of(rows: Sequence[T], limit: int) -> tuple[list[T], bool]:
    """The first ``limit`` of one more than that, and whether there are more."""
    return list(rows[:limit]), len(rows) > limit
