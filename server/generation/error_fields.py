"""Errors in the field names of the client's protocol."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Final

from stentor.protocols.common.errors import BadRequest

_NAMED: Final = re.compile(r"`([a-z_][^`]*)`")
_INDEX: Final = r"\[(\d+)\]"


def map_error_fields(fields: Mapping[str, str]) -> AbstractContextManager[None]:
    """Maps the field of a BadRequest that is raised inside from chat completions' names to the client's.

    ``fields`` maps paths, of which the longest match counts; the rest of the path (``[0].content``) is kept. A path may
    go through lists: ``{"tools[].function": "tools[]"}`` maps ``tools[3].function.name`` to ``tools[3].name``.
    """
    return rename_error_fields(lambda path: _rename(path, _rules(tuple(fields.items()))))


def renamed(message: str, param: str | None, fields: Mapping[str, str]) -> tuple[str, str | None]:
    """The message and the field of an error, as :func:`map_error_fields` maps them."""
    return _renamed(message, param, lambda path: _rename(path, _rules(tuple(fields.items()))), _NAMED)


@contextmanager
def rename_error_fields(rename: Callable[[str], str], named: re.Pattern[str] = _NAMED) -> Iterator[None]:
    """Renames the field of a BadRequest that is raised inside by ``rename``, also the paths that ``named`` finds in its
    message."""
    try:
        yield
    except BadRequest as error:
        message, param = _renamed(error.message, error.param, rename, named)
        raise BadRequest(message, param, error.code, error.status, error.kind, lengths=error.lengths) from None


def _renamed(
    message: str, param: str | None, rename: Callable[[str], str], named: re.Pattern[str]
) -> tuple[str, str | None]:
    return named.sub(lambda match: f"`{rename(match[1])}`", message), param and rename(param)


@lru_cache(16)
def _rules(fields: tuple[tuple[str, str], ...]) -> list[tuple[re.Pattern[str], str]]:
    longest_first = sorted(fields, key=lambda pair: -len(pair[0]))
    return [(re.compile(re.escape(old).replace(r"\[\]", _INDEX) + r"(?![a-z_])"), new) for old, new in longest_first]


def _rename(path: str, rules: list[tuple[re.Pattern[str], str]]) -> str:
    for pattern, new in rules:
        if (match := pattern.match(path)) is not None:
            for index in match.groups():
                new = new.replace("[]", f"[{index}]", 1)
            return new + path[match.end() :]
    return path
