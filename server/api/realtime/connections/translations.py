"""``/v1/realtime/translations``: sessions that interpret, on a WebSocket and over WebRTC, and their client secrets."""

import time
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import anyio
import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from stentor.protocols.common.decoding import decode
from stentor.protocols.common.errors import BadRequest, missing, refused
from stentor.protocols.openai.realtime.live import SessionClosed
from stentor.protocols.openai.realtime.secrets import CallForm, ExpiresAfter
from stentor.protocols.openai.realtime.session import RealtimeSession
from stentor.protocols.openai.realtime.translation import (
    TranslationConfig,
    TranslationSecret,
    TranslationSecretRequest,
    read_config,
    secret_decoder,
)

from ....common.keys import Caller
from ....http.error_responses import describe
from ....middleware.auth import caller_of, secret_of
from ....middleware.client_secrets import ClientSecret
from ...common.described import Operation, Operations
from ...common.endpoint import json_response, read_counted_body
from ...common.sockets import Receive as ReceiveText
from ...common.sockets import choose_engine
from ...responses.ids import short_id
from ..common.audio_budget import AudioShare
from ..common.services import RealtimeServices
from . import calls
from .event_queue import EventQueue
from .serving import NO_SPEECH_MODEL, SUBPROTOCOL, PlayedSession, RealtimeServing, made_secret
from .translation_dialect import TranslationDialect

_TURNS: Final = {"type": "semantic_vad", "eagerness": "high", "create_response": False, "interrupt_response": False}
"""A sentence is translated as soon as it has been said; nothing interrupts the translation."""

OPERATIONS: Final[Operations] = {
    "/v1/realtime/translations/client_secrets": Operation(
        "Create a client secret that opens translation sessions until it expires",
        TranslationSecret,
        TranslationSecretRequest,
        not_found=True,
    ),
    "/v1/realtime/translations/calls": Operation(
        "Begin a translation session over WebRTC: answer an SDP offer",
        str,
        takes_file=True,
        file_field="sdp",
        form=CallForm,
        raw=calls.SDP,
        media_type=calls.SDP,
        status=HTTPStatus.CREATED,
        not_found=True,
    ),
}

_configs: Final = msgspec.json.Decoder(TranslationConfig)


def routes(services: RealtimeServices, serving: RealtimeServing) -> list[BaseRoute]:
    translating = TranslationServing(services, serving)
    return [
        WebSocketRoute("/v1/realtime/translations", translating.serve),
        Route("/v1/realtime/translations/client_secrets", translating.client_secret, methods=["POST"]),
        Route("/v1/realtime/translations/calls", translating.call, methods=["POST"]),
    ]


class TranslationServing:
    """The translation sessions of one server."""

    def __init__(self, services: RealtimeServices, serving: RealtimeServing) -> None:
        self._services = services
        self._serving = serving

    async def serve(self, socket: WebSocket) -> None:
        """Runs one connection from its handshake to its end. Raises Unavailable and BadRequest before it is
        accepted."""
        self._services.admission.check_available()
        choose_engine(socket.scope, self._services.admission)
        with self._services.metrics.server.websocket():
            await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.scope.get("subprotocols", ()) else None)
            caller = caller_of(socket.scope)
            refusal = None
            try:
                config = self._config(socket.query_params.get("model"), secret_of(socket.scope))
                dialect = TranslationDialect(config, carries_sound=False)
                session = self._session_of(caller, config, carries_sound=False)
            except BadRequest as error:
                refusal, session = error, None
                dialect = TranslationDialect(TranslationConfig(), carries_sound=False)

            async def run(event_queue: EventQueue, receive: ReceiveText, audio: AudioShare) -> bool:
                if session is None:
                    assert refusal is not None
                    event_queue.tell(describe(refusal)[1])
                    return True
                connection = self._serving.paced(
                    session, caller, dialect, event_queue, audio, keeps_type=True, language=lambda: dialect.language
                )
                connection.begin()
                with anyio.move_on_after(self._serving.max_seconds) as lifetime:
                    await self._serving.serve_session(connection, receive)
                if lifetime.cancelled_caught:
                    connection.expire()
                return False

            await self._serving.serve_socket(socket, dialect, run)

    async def client_secret(self, request: Request) -> Response:
        body = decode(secret_decoder, await read_counted_body(request, self._services.admission), self._services.limits)
        config = read_config(body.session)
        if config.model is None:
            raise missing("session.model")
        session = self._session_of(caller_of(request.scope), config, carries_sound=False)
        config = replace(config, model=session.model)
        shown = TranslationDialect(config, carries_sound=False).shown(session)
        seconds = (body.expires_after or ExpiresAfter()).seconds
        value, expires_at = made_secret(
            self._services.secrets, request, msgspec.json.encode(config), seconds, "translation"
        )
        return json_response(TranslationSecret(value, expires_at, shown))

    async def call(self, request: Request) -> Response:
        """Begins a session over WebRTC. Raises BadRequest, Overloaded and Unavailable."""
        calls.check_available(self._services)
        choose_engine(request.scope, self._services.admission)
        offer, given = await calls.read_offer_form(self._services, request)
        caller, secret = caller_of(request.scope), secret_of(request.scope)
        if secret is not None and given is not None:
            raise refused("session", "the client secret has a session already; leave it out", "invalid_value")
        config = self._config(request.query_params.get("model"), secret, given)
        dialect = TranslationDialect(config, carries_sound=True)
        session = self._session_of(caller, config, carries_sound=True)
        connect = partial(self._serving.playing, session, caller, dialect, language=lambda: dialect.language)
        played = PlayedSession(dialect, connect, SessionClosed())
        return await calls.begun(self._services, self._serving, request, offer, played)

    def _config(
        self, model: str | None, secret: ClientSecret | None, given: dict[str, Any] | None = None
    ) -> TranslationConfig:
        """What is asked for by the model in a query, a client secret, or a call's form. Raises BadRequest."""
        if secret is not None:
            config = _configs.decode(secret.session)
            if model and config.model is not None:
                self._serving.check_secret_model(model, config.model)
            return config
        return read_config({**({"model": model} if model else {}), **(given or {})})

    def _session_of(self, caller: Caller, config: TranslationConfig, *, carries_sound: bool) -> RealtimeSession:
        """Raises BadRequest."""
        self._serving.transcriber(caller)  # or its first audio would tell that there is none
        rules = self._serving.call_rules if carries_sound else self._serving.rules
        if not rules.models.can_speak:
            raise refused("session", NO_SPEECH_MODEL, "unsupported")
        expires_at = int(time.time() + self._serving.max_seconds)
        begun = rules.realtime(short_id("sess"), config.model, expires_at, "session.model")
        given = {
            "type": "realtime",
            "output_modalities": ["audio"],
            "audio": {"input": {"turn_detection": _TURNS, **config.input}},
        }
        session = rules.updated(begun, given, pristine=True, has_spoken=False)
        assert isinstance(session, RealtimeSession)
        return session
