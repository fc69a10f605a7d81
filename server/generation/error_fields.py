"""Refusals in the words of the protocol that a client speaks."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

from stentor.protocols.common.errors import BadRequest

_NAMED: Final = re.compile(r"`([a-z_][^`]*)`")
_INDEX: Final = r"\[(\d+)\]"


@contextmanager
def map_error_fields(fields: Mapping[str, str]) -> Iterator[None]:
    """Gives a BadRequest that is raised inside the client's names in place of chat completions'.

    ``fields`` maps paths, of which the longest that fits counts; what follows it (``[0].content``) stays. A path may
    go through lists: ``{"tools[].function": "tools[]"}`` makes ``tools[3].function.name`` to ``tools[3].name``.
    """
    try:
        yield
    except BadRequest as error:
        rules = _rules(tuple(fields.items()))
        message = _NAMED.sub(lambda named: f"`{_rename(named[1], rules)}`", error.message)
        param = error.param and _rename(error.param, rules)
        raise BadRequest(message, param, error.code, error.status) from None


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
