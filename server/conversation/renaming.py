"""Refusals in the words of the protocol that a client speaks."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from stentor.protocols.openai.errors import BadRequest

_NAMED: Final = re.compile(r"`([a-z_]+)([^`]*)`")
_FIRST: Final = re.compile(r"[a-z_]+")


@contextmanager
def renamed(fields: Mapping[str, str]) -> Iterator[None]:
    """Gives a BadRequest that is raised inside the client's names in place of chat completions'.

    ``fields`` maps top-level fields; what follows a name (``[0].content``) stays.
    """
    try:
        yield
    except BadRequest as error:
        message = _NAMED.sub(lambda m: f"`{fields.get(m[1], m[1])}{m[2]}`", error.message)
        param = error.param and _FIRST.sub(lambda m: fields.get(m[0], m[0]), error.param, count=1)
        raise BadRequest(message, param, error.code, error.status) from None
