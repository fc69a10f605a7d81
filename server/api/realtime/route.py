"""``/v1/realtime`` and ``/v1/live``: the WebSockets, calls, and keys for the clients that open them."""

from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from stentor.protocols.common.decoding import decode
from stentor.protocols.openai.realtime.secrets import (
    BetaSession,
    BetaSessionRequest,
    ClientSecretRequest,
    ExpiresAfter,
    beta_decoder,
    secret_decoder,
)
from stentor.protocols.openai.realtime.server import ClientSecret
from stentor.protocols.openai.realtime.session import RealtimeSession, Session

from ...generation.error_fields import map_error_fields
from ..common.described import Operation, Operations
from ..common.endpoint import json_response, read_counted_body
from .common.services import RealtimeServices
from .connections import calls, live, translations
from .connections.beta import FLAT_ERROR_FIELDS, session_now, session_then
from .connections.serving import RealtimeServing, made_secret

_TRANSCRIBING: Final = ("type", "threshold", "prefix_padding_ms", "silence_duration_ms")


OPERATIONS: Final[Operations] = {
    "/v1/realtime/client_secrets": Operation(
        "Create a client secret that opens realtime sessions until it expires",
        ClientSecret,
        ClientSecretRequest,
        not_found=True,
    ),
    "/v1/realtime/sessions": Operation(
        "Create a client secret for realtime sessions, in the beta's shape",
        BetaSession,
        BetaSessionRequest,
        not_found=True,
    ),
    "/v1/realtime/transcription_sessions": Operation(
        "Create a client secret for transcription sessions, in the beta's shape",
        BetaSession,
        BetaSessionRequest,
        not_found=True,
    ),
    **calls.OPERATIONS,
    **live.OPERATIONS,
    **translations.OPERATIONS,
}


def routes(services: RealtimeServices) -> list[BaseRoute]:
    serving = RealtimeServing(services)
    return [
        WebSocketRoute("/v1/realtime", serving.serve),
        Route("/v1/realtime/client_secrets", partial(client_secret, services, serving), methods=["POST"]),
        Route("/v1/realtime/sessions", partial(beta_session, services, serving, "realtime"), methods=["POST"]),
        Route(
            "/v1/realtime/transcription_sessions",
            partial(beta_session, services, serving, "transcription"),
            methods=["POST"],
        ),
        *calls.routes(services, serving),
        *live.routes(services, serving),
        *translations.routes(services, serving),
    ]


async def client_secret(services: RealtimeServices, serving: RealtimeServing, request: Request) -> Response:
    body = decode(secret_decoder, await read_counted_body(request, services.admission) or b"{}", services.limits)
    session = serving.asked(body.session or {"type": "realtime"})
    seconds = (body.expires_after or ExpiresAfter()).seconds
    value, expires_at = made_secret(services.secrets, request, msgspec.json.encode(session), seconds, "realtime")
    return json_response(ClientSecret(value, expires_at, _shown(session)))


async def beta_session(services: RealtimeServices, serving: RealtimeServing, kind: str, request: Request) -> Response:
    body = decode(beta_decoder, await read_counted_body(request, services.admission) or b"{}", services.limits)
    given = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}
    with map_error_fields(FLAT_ERROR_FIELDS):
        session = serving.asked(session_now(given, kind))
    seconds = ExpiresAfter().seconds
    value, expires_at = made_secret(services.secrets, request, msgspec.json.encode(session), seconds, "realtime")
    shown = session_then(msgspec.to_builtins(session))
    return json_response({**shown, "client_secret": {"value": value, "expires_at": expires_at}})


def _shown(session: Session) -> Any:
    """Turn detection without fields for responses, if the session never answers."""
    if isinstance(session, RealtimeSession):
        return session
    shown = msgspec.to_builtins(session)
    detection = shown["audio"]["input"]["turn_detection"]
    if detection is not None:
        shown["audio"]["input"]["turn_detection"] = {
            name: value for name, value in detection.items() if name in _TRANSCRIBING
        }
    return shown
