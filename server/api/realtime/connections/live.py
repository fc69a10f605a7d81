"""``/v1/live/sessions``: on a WebSocket, where audio is sent as it is played, and over WebRTC as calls are."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from stentor.protocols.common.decoding import decode, decoded_bytes
from stentor.protocols.common.errors import ErrorBody, refused
from stentor.protocols.openai.realtime.client import event_id_of
from stentor.protocols.openai.realtime.given import encode_audio
from stentor.protocols.openai.realtime.live import (
    BackendConfig,
    ClientDelegation,
    CreatedSession,
    Delegation,
    LiveAudio,
    LiveConfig,
    LiveCreated,
    LiveCreateRequest,
    LiveOffer,
    LiveOutput,
    LivePcm,
    LiveSession,
    OutputAudio,
    ResponsesDelegation,
    SessionClosed,
    create_decoder,
    history_item,
    read_config,
)
from stentor.protocols.openai.realtime.session import RealtimeSession

from ....audio.resample import Resampler
from ....common.keys import Caller
from ....generation.admission import context_length
from ....http.error_responses import describe
from ....middleware.auth import caller_of
from ...common.described import Operation, Operations
from ...common.endpoint import json_response, read_counted_body
from ...common.sockets import ReadPace, choose_engine
from ...common.sockets import Receive as ReceiveText
from ...responses.ids import short_id
from ..answering.delegations import DELEGATE
from ..answering.responses_backend import CONFIG, request_of
from ..common.audio_budget import AudioShare
from ..common.formats import Wire
from ..common.services import RealtimeServices
from . import calls
from .connection import Connection
from .event_queue import SESSION_EXPIRED, EventQueue
from .live_dialect import SOUND_RATE, LiveDialect
from .playback import BYTES_A_MS, CallPlayer
from .serving import NO_SPEECH_MODEL, OnPlayer, PlayedSession, RealtimeServing

LEAD_SECONDS: Final = 0.2
"""Audio that is sent ahead of its time. Clients play all that they get, and are not told of interruptions."""
_PIECE_MS: Final = 100

_NOT_STARTED: Final = "No session was started in time; connect again and send `session.start`."


class _Begun(NamedTuple):
    connection: Connection
    player: CallPlayer


OPERATIONS: Final[Operations] = {
    "/v1/live/sessions": Operation(
        "Begin a session of the Live API over WebRTC", LiveCreated, LiveCreateRequest, not_found=True
    ),
    "/v1/live/sessions/{call_id}/hangup": Operation(
        "End a session of the Live API over WebRTC", str, media_type="text/plain", not_found=True
    ),
}


def routes(services: RealtimeServices, serving: RealtimeServing) -> list[BaseRoute]:
    live = LiveServing(services, serving)
    return [
        WebSocketRoute("/v1/live/sessions", live.serve),
        Route("/v1/live/sessions", live.create, methods=["POST"]),
        Route("/v1/live/sessions/{call_id}/hangup", partial(calls.hang_up, services), methods=["POST"]),
    ]


class LiveServing:
    """The Live sessions of one server."""

    def __init__(self, services: RealtimeServices, serving: RealtimeServing) -> None:
        self._services = services
        self._serving = serving

    async def serve(self, socket: WebSocket) -> None:
        """Runs one connection from its handshake to its end. Raises Unavailable and BadRequest before it is
        accepted."""
        self._services.admission.check_available()
        choose_engine(socket.scope, self._services.admission)
        with self._services.metrics.server.websocket():
            await socket.accept()
            dialect = LiveDialect(self._backend)
            caller = caller_of(socket.scope)
            await self._serving.serve_socket(socket, dialect, partial(self._session, caller, dialect))

    async def create(self, request: Request) -> Response:
        """Begins a session over WebRTC. Raises BadRequest, Overloaded and Unavailable."""
        calls.check_available(self._services)
        choose_engine(request.scope, self._services.admission)
        body = await read_counted_body(request, self._services.admission)
        given = decode(create_decoder, body, self._services.limits)
        caller = caller_of(request.scope)
        config = read_config(given.session, carries_sound=True)
        id, played = self.played(caller, LiveDialect(self._backend), config, carries_sound=True)
        call = calls.Call(self._services, self._serving, played)
        answer = await call.answer(calls.offer_of(given.transport.sdp.encode(), "transport.sdp"), request)
        self._services.calls.start(id, caller.owner, call)
        return json_response(LiveCreated(CreatedSession(id), LiveOffer("webrtc", answer)))

    async def _session(
        self, caller: Caller, dialect: LiveDialect, event_queue: EventQueue, receive: ReceiveText, audio: AudioShare
    ) -> bool:
        begin = partial(self._begin, caller, dialect, event_queue, audio)
        begun = None
        with anyio.move_on_after(self._serving.max_seconds) as lifetime:
            begun = await self._started(dialect, event_queue, receive, begin)
            if begun is None:
                return False
            begun.connection.begin()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_send_audio, begun.player, dialect.output, event_queue)
                await self._serving.serve_session(begun.connection, receive)
                tasks.cancel_scope.cancel()
        if lifetime.cancelled_caught and begun is not None:
            begun.connection.expire()
        elif lifetime.cancelled_caught:
            event_queue.tell(ErrorBody(_NOT_STARTED, "invalid_request_error", None, SESSION_EXPIRED))
        return begun is None

    async def _started(
        self,
        dialect: LiveDialect,
        event_queue: EventQueue,
        receive: ReceiveText,
        begin: Callable[[LiveConfig], _Begun],
    ) -> _Begun | None:
        """The session that the client starts; None if it has gone before. Refused starts are told, and may be
        repeated."""
        pace = ReadPace(self._services.connection.max_messages_per_second)
        while (message := await receive()) is not None:
            try:
                with self._services.admission.memory.share() as share:
                    share.add(len(message) + decoded_bytes(message, self._services.limits))
                    return begin(read_config(dialect.decode_start(message, self._services.limits).session))
            except Exception as error:
                event_queue.tell(describe(error)[1], event_id_of(message))
            await event_queue.room()
            await pace.wait()
        return None

    def _begin(
        self, caller: Caller, dialect: LiveDialect, event_queue: EventQueue, audio: AudioShare, config: LiveConfig
    ) -> _Begun:
        """Raises BadRequest."""
        players: list[CallPlayer] = []
        _, played = self.played(caller, dialect, config)
        return _Begun(played.connect(event_queue, audio, players.append), players[0])

    def played(
        self, caller: Caller, dialect: LiveDialect, config: LiveConfig, *, carries_sound: bool = False
    ) -> tuple[str, PlayedSession]:
        """The id of a session, and how it begins. Raises BadRequest."""
        self._serving.transcriber(caller)  # or its first audio would tell that there is none
        session, live = self._session_of(config, carries_sound=carries_sound)
        history = [history_item(item, f"session.input[{index}]") for index, item in enumerate(config.input or ())]

        def connect(event_queue: EventQueue, audio: AudioShare, on_player: OnPlayer) -> Connection:
            dialect.start(live, context_length(self._services.chat))
            connection = self._serving.playing(
                session,
                caller,
                dialect,
                event_queue,
                audio,
                on_player,
                delegation=lambda: dialect.delegation,
            )
            connection.remember(history)
            return connection

        return live.id, PlayedSession(dialect, connect, SessionClosed())

    def _session_of(self, config: LiveConfig, *, carries_sound: bool) -> tuple[RealtimeSession, LiveSession]:
        """The session that a client describes, for the server and for the client. Raises BadRequest."""
        rules = self._serving.call_rules
        if not rules.models.can_speak:
            raise refused("session", NO_SPEECH_MODEL, "unsupported")
        id, expires_at = short_id("live"), int(time.time() + self._serving.max_seconds)
        audio = config.audio or LiveAudio()
        begun = rules.realtime(id, config.model, expires_at, "session.model")
        given: dict[str, Any] = {
            "type": "realtime",
            "instructions": config.instructions,
            "output_modalities": ["audio"],
            "tools": [DELEGATE],
            "audio": {"input": {"transcription": {}, "turn_detection": {"type": "semantic_vad"}}},
        }
        if audio.output is not None and audio.output.voice is not None:
            given["audio"]["output"] = {"voice": msgspec.to_builtins(audio.output.voice)}
        session = rules.updated(begun, given, pristine=True, has_spoken=False)
        assert isinstance(session, RealtimeSession)
        live = LiveSession(
            id=id,
            expires_at=expires_at,
            model=session.model,
            audio=LiveAudio(
                format=None if carries_sound else audio.format or LivePcm(),
                output=LiveOutput(session.audio.output.voice),
            ),
            delegation=self._delegation(config),
            input=config.input,
            instructions=session.instructions or None,
            safety_identifier=config.safety_identifier,
        )
        return session, live

    def _delegation(self, config: LiveConfig) -> Delegation:
        """Raises BadRequest for a backend that cannot be asked."""
        given = config.delegation if isinstance(config.delegation, Delegation) else ClientDelegation()
        given = replace(given, acknowledgement_delay_ms=given.acknowledgement_delay_ms or 0)
        if isinstance(given, ResponsesDelegation):
            return replace(given, responses=self._backend(given.responses))
        return given

    def _backend(self, config: BackendConfig) -> BackendConfig:
        """With the model that is served. Raises BadRequest."""
        config = replace(config, model=self._serving.rules.models.chat_model(config.model, f"{CONFIG}.model"))
        request_of(config, [], self._services.limits)
        return config


async def _send_audio(player: CallPlayer, wire: Wire, event_queue: EventQueue) -> None:
    """Sends what is played, at the pace at which it is heard. Cancelled from outside."""
    resampler = Resampler(SOUND_RATE, wire.rate)
    sent_until = 0.0
    while True:
        await event_queue.room()
        await anyio.sleep(max(0.0, sent_until - LEAD_SECONDS - anyio.current_time()))
        piece = player.next_piece(_PIECE_MS * BYTES_A_MS)
        if piece:
            audio = resampler.push(piece)
            sent_until = max(sent_until, anyio.current_time()) + len(piece) / BYTES_A_MS / 1000
        else:
            audio = resampler.finish()
            resampler = Resampler(SOUND_RATE, wire.rate)
        if audio:
            event_queue.put(OutputAudio(delta=encode_audio(wire.encode(audio))))
        if not piece:
            await player.news()
