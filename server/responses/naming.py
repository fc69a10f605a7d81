"""Refusals in the words of the Responses API, of what is checked as a request for a chat completion."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from stentor.protocols.openai.errors import BadRequest

_RULES: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^messages\b.*$", "input"),  # messages are counted otherwise than items
        (r"^max_(completion_)?tokens\b", "max_output_tokens"),
        (r"^response_format\.json_schema\b", "text.format"),
        (r"^response_format\b", "text.format"),
        (r"^reasoning_effort\b", "reasoning.effort"),
        (r"^(tools\[\d+\])\.(function|custom)\b", r"\1"),
        (r"^(tools\[\d+\]\.format)\.grammar\b", r"\1"),
        (r"^tool_choice\.allowed_tools\b", "tool_choice"),
        (r"^(tool_choice(?:\.tools\[\d+\])?)\.(function|custom)\b", r"\1"),
    )
)
_QUOTED: Final = re.compile(r"`([a-z_]+(?:\[\d+\]|\.[a-z_]+)*)`")


@contextmanager
def in_our_words() -> Iterator[None]:
    """Gives a BadRequest that is raised inside the names of this API's fields."""
    try:
        yield
    except BadRequest as error:
        message = _QUOTED.sub(lambda match: f"`{_renamed(match[1])}`", error.message)
        param = None if error.param is None else _renamed(error.param)
        raise BadRequest(message, param, error.code, error.status) from None


def _renamed(field: str) -> str:
    for pattern, replacement in _RULES:
        field = pattern.sub(replacement, field)
    return field
