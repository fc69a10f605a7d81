"""The first steps of every endpoint: reads the body within its limits, counts the request as live."""

from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar

import anyio
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.engine.client.replicas import engine_choice
from stentor.protocols.common.decoding import decoded_bytes
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.protocols.ipc.actors import Stats

from ...common.errors import Overloaded
from ...config.model_registry import ModelRole
from ...http.error_shapes import is_anthropic_request
from ...http.root_path import route_path
from ...http.sse import unless_disconnected
from ...observability.request import SANE_ID, SCOPE_KEY, current_record, new_request_id
from ...overload.memory_budget import MemoryShare
from ...overload.request_context import RequestContext, engine_choice_of, priority_of, timeout_of
from ...state.admission_control import AdmissionControl

Begin = Callable[[Request, MemoryShare, RequestContext], Awaitable[Awaitable[ASGIApp]]]
"""Reads a request, counted in the share, and returns the work that answers it; only that keeps the request."""


class _Services(Protocol):
    @property
    def admission(self) -> AdmissionControl: ...


Services = TypeVar("Services", bound=_Services)

_LENGTH_DIGITS: Final = 19
LOAD_FORMAT: Final = "endpoint-load-metrics-format"
"""The header by which a client asks for :func:`load_report`."""


class GenerationEndpoint:
    """An ASGI app around a handler; the request is live until the last byte of its response.

    The work ends at the request's deadline, and as soon as the client disconnects: while it waits for the tokenizer, or
    for a whole answer. A response that continues afterwards handles both itself.
    """

    def __init__(self, admission: AdmissionControl, begin: Begin, kind: ModelRole) -> None:
        """``kind`` is that of the model which must have been loaded."""
        self._admission = admission
        self._begin = begin
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        admission = self._admission
        timeout = timeout_of(scope["headers"], admission.overload.request_timeout)
        engine_choice.set(engine_choice_of(scope["headers"], admission.engines_of(self._kind)))
        priority = priority_of(scope["headers"])
        with admission.admit(timeout, self._kind, body_to_come=True, priority=priority) as context:
            with context.bounded():
                with admission.memory.share() as share:
                    handling = await self._begin(Request(scope, receive, send), share, context)
                    _take_slot(context, handling)
                    response = await unless_disconnected(receive, handling)
                del handling
            if headers := self._headers(scope):
                send = _with_headers(send, headers)
            await response(scope, receive, send)

    def _headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """What the head of an answer says of its engine."""
        weights = self._admission.weight_header
        headers = [weights] if weights is not None and self._kind == "chat" else []
        wanted = Headers(scope=scope).get(LOAD_FORMAT, "").upper()
        if wanted in ("TEXT", "JSON") and (stats := self._admission.stats_of(self._kind)) is not None:
            headers.append((b"endpoint-load-metrics", load_report(stats, wanted)))
        return headers


def load_report(stats: Stats, form: str) -> bytes:
    """The load of an engine for balancers, as ORCA writes it, with the metrics that vLLM gives."""
    metrics = {"kv_cache_usage_perc": stats.kv_usage, "num_requests_waiting": float(stats.waiting)}
    if form == "JSON":
        return b"JSON " + encode({"named_metrics": metrics})
    return f"TEXT {', '.join(f'named_metrics.{name}={value}' for name, value in metrics.items())}".encode()


def _with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers]}
        await send(message)

    return with_headers


def _take_slot(context: RequestContext, handling: Awaitable[ASGIApp]) -> None:
    """Raises Overloaded, and closes the work that is not begun."""
    try:
        context.queue_slot.arrived()
    except Overloaded:
        if isinstance(handling, Coroutine):
            handling.close()
        raise


def generation_route(
    path: str,
    services: Services,
    handler: Callable[[Services, Request, bytes, RequestContext], Awaitable[ASGIApp]],
    kind: ModelRole = "chat",
) -> Route:
    """A POST to ``path`` whose body ``handler`` answers, by a :class:`GenerationEndpoint`."""
    admission = services.admission

    async def begin(request: Request, share: MemoryShare, context: RequestContext) -> Awaitable[ASGIApp]:
        return handler(services, request, await read_body(request, admission.limits, share), context)

    return Route(path, GenerationEndpoint(admission, begin, kind), methods=["POST"])


Transfer = Callable[[Request], Awaitable[ASGIApp]]
"""The handler of a request with an upload or download."""


class TransferEndpoint:
    """An ASGI app around a transfer, which is live until the last byte of its response: a server that drains waits."""

    def __init__(self, admission: AdmissionControl, transfer: Transfer) -> None:
        self._admission = admission
        self._transfer = transfer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._admission.transfer() as context, context.bounded():
            response = await self._transfer(Request(scope, receive, send))
            await response(scope, receive, send)


async def read_body(request: Request, limits: Limits, share: MemoryShare) -> bytes:
    """The whole body, counted in ``share`` with the memory of decoding it.

    Raises BadRequest for an encoded body (415), for one that is too long (413), as soon as that is known, and for one
    that is not complete in time (408); and MemoryFull.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise BadRequest(
            "The body must be sent as it is, without `Content-Encoding`.",
            code="unsupported_encoding",
            status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and (len(declared) > _LENGTH_DIGITS or int(declared) > limits.max_body_bytes):
        raise _too_large(limits.max_body_bytes)
    chunks = []
    try:
        with anyio.fail_after(limits.body_timeout):
            async for chunk in request.stream():
                if share.add(len(chunk)) > limits.max_body_bytes:
                    raise _too_large(limits.max_body_bytes)
                chunks.append(chunk)
    except TimeoutError:
        raise BadRequest(
            f"The body did not come in whole within {limits.body_timeout:g} seconds.",
            code="request_timeout",
            status=HTTPStatus.REQUEST_TIMEOUT,
        ) from None
    body = b"".join(chunks)
    share.add(decoded_bytes(body, limits))
    return body


async def read_counted_body(request: Request, admission: AdmissionControl) -> bytes:
    """Read a body that is counted against the memory budget only while it is read, since the request holds far more
    afterwards. Raises as :func:`read_body`."""
    with admission.memory.share() as share:
        return await read_body(request, admission.limits, share)


def wants_anthropic(request: Request) -> bool:
    """Whether the client expects Anthropic's response on a path that OpenAI has too."""
    return is_anthropic_request(route_path(request.scope), request.scope["headers"])


def json_response(value: Any) -> Response:
    return Response(encode(value), media_type="application/json")


def _too_large(limit: int) -> BadRequest:
    return BadRequest(
        f"The body is larger than the {limit} bytes that this server reads.",
        code="request_too_large",
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    )


def response_id(prefix: str, request: Request, wanted: str | None) -> str:
    """``prefix`` and the request's id; a valid ``request_id`` in the body replaces that id."""
    name_anew(request, wanted)
    return f"{prefix}-{request_id(request)}"


def request_id(request: Request) -> str:
    """The request's id; a new one for a request that came over no connection."""
    named: str = request.scope.get(SCOPE_KEY) or new_request_id()
    return named


def name_anew(request: Request, wanted: str | None) -> None:
    """Gives the request the id that its body wishes for, if that is sane."""
    if wanted is not None and SANE_ID.fullmatch(wanted.encode()):
        request.scope[SCOPE_KEY] = wanted
        if (record := current_record.get()) is not None:
            record.request_id = wanted
