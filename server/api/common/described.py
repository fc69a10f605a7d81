"""What a route takes and gives, in words that the document of the API is made of (:mod:`...app.openapi`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

JSON: Final = "application/json"


@dataclass(frozen=True)
class Operation:
    """One path, or one method of it."""

    summary: str
    answer: Any
    """Type of what comes with 200; ``str`` for what is no JSON."""
    body: Any = None
    """Type of the body of a POST; None: it is not read."""
    takes_file: bool = False
    """A POST brings a form with a file."""
    form: Any = None
    """Type of what such a form says besides."""
    media_type: str = JSON
    """Of the answer."""
    streams: bool = False
    """Sends events instead, where the body's ``stream`` is true."""
    generates: bool = False
    """Waits in the queue for its turn, and has a deadline."""
    unavailable: bool = False
    """Needs the engine."""
    finds: bool = False
    """Names a model, which there need not be."""
    keeps: bool = False
    """Writes to the store."""
    anthropic: bool = False
    """Tells errors in the shape of Anthropic's protocol."""


Operations = Mapping[str, Operation]
"""By path, as the route has it; by method and path (``DELETE /v1/files/{id}``) where a method answers otherwise."""
