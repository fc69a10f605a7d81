"""Maps errors of the translated chat request to fields of the Responses API."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from stentor.protocols.openai.responses.tools import places_of

from ...generation.error_fields import rename_error_fields

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
_TOOL: Final = re.compile(r"tools\[(\d+)\]")
"""A tool offered to the model; a tool of the request may be none or several of them."""
_QUOTED: Final = re.compile(r"`([a-z_]+(?:\[\d+\]|\.[a-z_]+)*)`")


def map_response_fields(tools: Sequence[dict[str, Any]] | None = None) -> AbstractContextManager[None]:
    """Gives a BadRequest that is raised inside the names of this API's fields.

    ``tools`` are the request's own; further ones come from searches, in its ``input``.
    """
    return rename_error_fields(lambda field: _renamed(field, tools), _QUOTED)


def _renamed(field: str, tools: Sequence[dict[str, Any]] | None) -> str:
    for pattern, replacement in _RULES:
        field = pattern.sub(replacement, field)
    place = _TOOL.match(field)
    if place is None or tools is None:
        return field
    places = places_of(tools)
    return places[int(place[1])] + field[place.end() :] if int(place[1]) < len(places) else "input"
