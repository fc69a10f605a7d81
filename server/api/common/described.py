"""Description of a route's request and response, for the OpenAPI document (:mod:`...app.openapi`)."""

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import msgspec

from ...http.error_shapes import OPENAI, ErrorShape

JSON: Final = "application/json"


class OtherProtocol(msgspec.Struct, frozen=True):
    """What a path takes and answers for the clients of another server with the same path."""

    body: Any
    answers: tuple[Any, ...]
    errors: ErrorShape


class Operation(msgspec.Struct, frozen=True):
    """One path, or one method of it."""

    summary: str
    answer: Any
    """Type of the body with status 200; ``str`` for other than JSON; None: the route always refuses."""
    body: Any = None
    """Type of the body of a POST; None: it is not read."""
    query: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Types of the query's fields."""
    takes_file: bool = False
    """Whether a POST has a form with a file."""
    file_field: str = "file"
    """The form's field of the file."""
    form: Any = None
    """Type of the form's other fields."""
    media_type: str = JSON
    """Media type of the response."""
    raw: str = ""
    """Media type of a body that may replace the form: the content of its file."""
    status: HTTPStatus = HTTPStatus.OK
    """Status of the response."""
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
    """The shape of errors, and so of streams."""
    other: OtherProtocol | None = None


generation = partial(Operation, queued=True, not_found=True)
"""A POST that a model answers (:func:`.endpoint.generation_route`)."""
Operations = Mapping[str, Operation]
"""By the route's path, or by method and path (``DELETE /v1/files/{id}``) for methods that differ."""
