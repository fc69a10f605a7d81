"""The OpenAPI 3.1 document, made from the routes and their wire types.

msgspec derives schemas from these types, so they agree with the checks. Constraints across fields (``min_tokens`` and
``max_tokens``), the operator's limits and the rules for messages are not part of the types: a body that fits its schema
can still be refused, with a 400 that names the field.
"""

import re
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import stentor

from ..api.common.described import JSON, Operation, Operations
from ..http.error_shapes import ANTHROPIC, COHERE, LLAMA_CPP, OLLAMA, OPENAI, SHAPES, TEXT_GENERATION, ErrorShape
from ..http.sse import LINES
from ..middleware.access_control import AccessControl
from ..middleware.auth import AdminRoute, is_open
from ..overload.request_context import RANK_HEADER, SESSION_HEADER, TIMEOUT_HEADER

_REF: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{(\w+)(:\w+)?\}")
_READING: Final = (400, 408, 413, 415)
"""Errors of any body."""
_GENERATING: Final = (429, 504)
_ANYWHERE: Final = (431, 500)

_MEANINGS: Final = {
    400: "What was sent cannot be served; the message, and `param` where there is one, names the field at fault.",
    401: "A key is missing, or is none of this server's.",
    403: "A web page of this origin may not use the server; or an admin key is needed, which the server may not have.",
    404: "There is no such model.",
    408: "The body did not come in time.",
    413: "The body is larger than this server reads.",
    415: "The body is encoded; it must be sent as it is.",
    429: "As much waits as may; try again after `retry-after` seconds.",
    431: "The headers are larger than this server reads.",
    500: "The server failed on this request; its log says why.",
    503: "The model is still loading, the engine is away, or the server is about to end.",
    504: "The request's time was up before it was done.",
    507: "The disk is full, or the caller's share of the store is.",
}
_STREAM: Final = (
    "Where `stream` is true. Each event is `data: ` and a chunk in JSON; after the last comes `data: [DONE]`. "
    "What fails once the stream has begun is an event with an `error` as in other responses, and ends it."
)
_NAMED_STREAM: Final = (
    "Where `stream` is true. Each event is a line `event: ` with its type and a line `data: ` with JSON. What fails "
    "once the stream has begun is an event of type `error`, as in other responses, and ends it."
)
_LINES: Final = (
    "Where `stream` is not false. Each line is a chunk in JSON, and `done` is true in the last. What fails once the "
    "stream has begun is a line with an `error`, as in other responses, and ends it."
)
_STOPPING: Final = (
    "Where `stream` is true. Each event is `data: ` and a chunk in JSON, and `stop` is true in the last. What fails "
    "once the stream has begun is an event with an `error`, as in other responses, and ends it."
)
_TOKENS: Final = (
    "Where `stream` is true. Each event is `data: ` and a token in JSON; the last has `generated_text`. What fails "
    "once the stream has begun is an event with an `error`, as in other responses, and ends it."
)
_ENDED: Final = (
    "Where `stream` is true. Each event is `data: ` and JSON with a `type`; `data: [DONE]` follows `message-end`. What "
    "fails once the stream has begun is a `message-end` with the `finish_reason` ERROR, and ends it."
)
_STREAMS: Final = {
    OPENAI: ("text/event-stream", _STREAM),
    ANTHROPIC: ("text/event-stream", _NAMED_STREAM),
    OLLAMA: (LINES, _LINES),
    LLAMA_CPP: ("text/event-stream", _STOPPING),
    TEXT_GENERATION: ("text/event-stream", _TOKENS),
    COHERE: ("text/event-stream", _ENDED),
}
"""Content type and description of streams, by the shape of their errors."""
_SCHEMES: Final[dict[str, Any]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_RETRY_AFTER: Final = {"retry-after": {"description": "In seconds.", "schema": {"type": "integer"}}}
_HEADERS: Final[dict[int, dict[str, Any]]] = {
    401: {"www-authenticate": {"schema": {"type": "string"}}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}


class Document:
    """Made on the first request, and again after a reload of keys that changes it."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._rendered: dict[tuple[bool, str], bytes] = {}

    def render(self, routes: Sequence[BaseRoute], access: AccessControl) -> bytes:
        """The document as JSON. Raises ``KeyError`` for a route without a description."""
        key = access.keys.required, access.root_path
        if key not in self._rendered:
            self._rendered[key] = msgspec.json.encode(describe(routes, self._operations, *key))
        return self._rendered[key]


def describe(
    routes: Sequence[BaseRoute], operations: Operations, keys_required: bool = False, root_path: str = ""
) -> dict[str, Any]:
    """The document, ready for JSON. Raises ``KeyError`` for a route that is not in ``operations``."""
    described = [route for route in routes if isinstance(route, Route)]
    schemas = _Schemas(operations)
    paths: dict[str, Any] = {}
    for route in described:
        path = _PARAMETER.sub(r"{\1}", route.path)
        # HEAD is implied by GET
        for method in sorted((route.methods or set()) - {"HEAD"}):
            operation = operations.get(f"{method} {route.path}") or operations[route.path]
            writer = _Writer(route, operation, schemas, keys_required)
            paths.setdefault(path, {})[method.lower()] = writer.write(method)
    errors = {_error_name(status, shape): _error(status, shape.struct) for status in _MEANINGS for shape in SHAPES}
    components: dict[str, Any] = {"schemas": schemas.components, "responses": errors}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Stentor", "version": stentor.__version__},
        "paths": paths,
        "components": components,
    }
    if root_path:
        document["servers"] = [{"url": root_path}]
    if keys_required or any(isinstance(route, AdminRoute) for route in described):
        components["securitySchemes"] = _SCHEMES
    return document


class _Schemas:
    """Schemas of all types of the operations."""

    def __init__(self, operations: Operations) -> None:
        types = [kind for operation in operations.values() for kind in (operation.body, operation.answer)]
        others = [operation.other for operation in operations.values() if operation.other is not None]
        types += [kind for other in others for kind in (other.body, *other.answers)]
        self._types = [kind for kind in types if kind is not None]
        found, self.components = msgspec.json.schema_components(
            [*self._types, *(shape.struct for shape in SHAPES)], ref_template=_REF
        )
        self._found = list(found)

    def of(self, kind: Any, *others: Any) -> dict[str, Any]:
        """The schema of a type, or of any of several."""
        found = [self._found[self._types.index(one)] for one in (kind, *others)]
        return {"anyOf": found} if others else found[0]


class _Writer:
    """Writes the description of one route."""

    def __init__(self, route: Route, operation: Operation, schemas: _Schemas, keys_required: bool) -> None:
        self._route = route
        self._operation = operation
        self._schemas = schemas
        self._admin = isinstance(route, AdminRoute)
        # with keys, pages of other origins need one
        self._forbids = self._admin or not keys_required
        self._guarded = self._admin or (keys_required and not is_open(route.path, min(route.methods or ("GET",))))

    def write(self, method: str) -> dict[str, Any]:
        operation = self._operation
        name = re.sub(r"\W+", "_", _PARAMETER.sub(r"\1", self._route.path)).strip("_")
        written: dict[str, Any] = {
            "operationId": f"{method.lower()}_{name}",
            "summary": operation.summary,
            "responses": self._responses(),
        }
        if parameters := self._parameters():
            written["parameters"] = parameters
        if operation.body is not None and method == "POST":
            other = [] if operation.other is None else [operation.other.body]
            written["requestBody"] = {
                "required": True,
                "content": {JSON: {"schema": self._schemas.of(operation.body, *other)}},
            }
        if operation.takes_file and method == "POST":
            content: dict[str, Any] = {"multipart/form-data": {"schema": self._form()}}
            if operation.raw:
                content[operation.raw] = {"schema": {"type": "string"}}
            written["requestBody"] = {"required": True, "content": content}
        if self._guarded:
            written["security"] = [{scheme: []} for scheme in _SCHEMES]
        return written

    def _form(self) -> dict[str, Any]:
        named = {self._operation.file_field: {"type": "string", "description": "Its bytes."}}
        if self._operation.form is None:
            return {"type": "object", "properties": named, "required": [*named]}
        said = msgspec.json.schema(self._operation.form, ref_template=_REF)
        fields = said["$defs"][self._operation.form.__name__]
        required = [*named, *fields.get("required", ())]
        return {**fields, "properties": {**named, **fields["properties"]}, "required": required}

    def _parameters(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name, _ in _PARAMETER.findall(self._route.path)
        ]
        for name, kind in self._operation.query.items():
            found.append({"name": name, "in": "query", "schema": msgspec.json.schema(kind)})
        if self._operation.queued:
            found.append(
                {
                    "name": TIMEOUT_HEADER,
                    "in": "header",
                    "description": "Seconds that the request may take, to its last token.",
                    "schema": {"type": "number", "exclusiveMinimum": 0},
                }
            )
            found.append(
                {
                    "name": RANK_HEADER,
                    "in": "header",
                    "description": "Number of the engine that serves the request (`--data-parallel-size`).",
                    "schema": {"type": "integer", "minimum": 0},
                }
            )
            found.append(
                {
                    "name": SESSION_HEADER,
                    "in": "header",
                    "description": "Requests of one session go to the engine that served it before.",
                    "schema": {"type": "string"},
                }
            )
        return found

    def _responses(self) -> dict[str, Any]:
        operation = self._operation
        responses: dict[str, Any] = {}
        if operation.answer is not None:
            others = () if operation.other is None else operation.other.answers
            content: dict[str, Any] = {operation.media_type: {"schema": self._schemas.of(operation.answer, *others)}}
            if operation.streams:
                kind, told = _STREAMS[operation.errors]
                if operation.other is not None:
                    told = f"{told} Of the other protocol: {_STREAMS[operation.other.errors][1]}"
                content[kind] = {"schema": {"type": "string", "description": told}}
            responses[str(operation.status)] = {"description": operation.status.phrase, "content": content}
        for status in self._refusals():
            if operation.other is None:
                responses[str(status)] = {"$ref": f"#/components/responses/{_error_name(status, operation.errors)}"}
            else:
                responses[str(status)] = _error(status, operation.errors.struct, operation.other.errors.struct)
        return responses

    def _refusals(self) -> list[int]:
        operation = self._operation
        found = set(_ANYWHERE)
        if operation.body is not None or operation.takes_file:
            found.update(_READING)
        if operation.query or operation.answer is None:
            found.add(HTTPStatus.BAD_REQUEST)
        if operation.queued:
            found.update(_GENERATING)
        if operation.needs_engine or operation.queued:
            found.add(503)
        if operation.takes_file or operation.writes_store:
            found.add(507)
        if operation.not_found:
            found.add(404)
        if self._guarded:
            found.add(401)
        if self._forbids:
            found.add(403)
        return sorted(found)


def _error_name(status: int, shape: ErrorShape) -> str:
    """Name in the document for the response of a status."""
    return f"{shape.name}_{status}" if shape.name else str(status)


def _error(status: int, *kinds: type[Any]) -> dict[str, Any]:
    found = [{"$ref": _REF.format(name=kind.__name__)} for kind in kinds]
    schema = found[0] if len(found) == 1 else {"anyOf": found}
    written: dict[str, Any] = {"description": _MEANINGS[status], "content": {JSON: {"schema": schema}}}
    if status in _HEADERS:
        written["headers"] = _HEADERS[status]
    return written


OPERATIONS: Final[Operations] = {
    "/openapi.json": Operation("OpenAPI 3.1 description of every endpoint", dict[str, Any]),
}


def routes(access: AccessControl, operations: Operations) -> list[Route]:
    """``operations`` describes all other endpoints."""
    document = Document({**operations, **OPERATIONS})
    return [Route("/openapi.json", partial(openapi, access, document), methods=["GET"])]


async def openapi(access: AccessControl, document: Document, request: Request) -> Response:
    app = request.app
    assert isinstance(app, Starlette)
    return Response(document.render(app.routes, access), media_type=JSON)
