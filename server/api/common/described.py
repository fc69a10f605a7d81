"""What a route takes and gives, in words that the document of the API is made of (:mod:`...app.openapi`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from ...http.error_shapes import OPENAI, ErrorShape

JSON: Final = "application/json"


@dataclass(frozen=True)
class Operation:
    """One path, or one method of it."""

    summary: str
    answer: Any
    """Type of what comes with 200; ``str`` for what is no JSON; None: it always refuses."""
    body: Any = None
    """Type of the body of a POST; None: it is not read."""
    query: Mapping[str, Any] = field(default_factory=dict)
    """Types of what the query may say."""
    takes_file: bool = False
    """A POST brings a form with a file."""
    file_field: str = "file"
    """In which it stands."""
    form: Any = None
    """Type of what such a form says besides."""
    media_type: str = JSON
    """Of the answer."""
    raw: str = ""
    """Media type of a body that may come instead of the form: what stands in its file."""
    status: HTTPStatus = HTTPStatus.OK
    """Of the answer."""
    streams: bool = False
    """Sends events or lines instead, where the body's ``stream`` is true."""
    queued: bool = False
    """Waits in the admission queue, and has a deadline."""
    needs_engine: bool = False
    """Answers 503 while an engine cannot run."""
    not_found: bool = False
    """Names a model or an object that may not exist: then it answers 404."""
    writes_store: bool = False
    """Writes to the store."""
    errors: ErrorShape = OPENAI
    """The shape of what goes wrong, and so of streams."""


generation = partial(Operation, queued=True, not_found=True)
"""Of a POST that a model answers (:func:`.endpoint.generation_route`)."""
Operations = Mapping[str, Operation]
"""By path, as the route has it; by method and path (``DELETE /v1/files/{id}``) where a method answers otherwise."""
