"""Runs a session on a WebSocket or a call: its dialect, its initial settings, its time limit."""

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.realtime.live import Delegation
from stentor.protocols.openai.realtime.server import ServerEvent
from stentor.protocols.openai.realtime.session import RealtimeSession, Session

from ....asr.languages import code_of
from ....asr.model import TranscriptionModel
from ....asr.streaming import StreamingTranscriptionModel
from ....audio.vad import SpeechProbabilities
from ....common.errors import Overloaded
from ....common.keys import Caller
from ....config.model_registry import ModelRole
from ....generation.transcription import ChatTranscriber
from ....http.error_responses import describe
from ....middleware.auth import caller_of, secret_of
from ....middleware.client_secrets import ClientSecret, ClientSecrets, SecretKind, SecretsFull
from ....observability.realtime_figures import SessionKind
from ....observability.request import current_request_id
from ...common.sockets import Receive as ReceiveText
from ...common.sockets import choose_engine, receive_text
from ...responses.ids import short_id
from ..common.audio_budget import AudioShare, HeldAudio
from ..common.interfaces import InputAudio, OnPartial, OnPlayed, OnSpeechEvent, SessionAudio
from ..common.services import RealtimeServices
from ..conversation.machine import State
from ..conversation.pacing import PlaybackPacer
from ..conversation.session import SessionRules
from ..listening.input_audio_pipeline import InputAudioPipeline
from ..listening.partial_pace import PartialPace
from ..listening.streamed import AnyTranscriber, StreamTranscriber
from ..listening.transcribing import ChatTurnTranscriber, ModelTranscriber
from .beta import BetaDialect
from .connection import APPENDS, Connection, Receive
from .event_queue import CurrentDialect, Dialect, EventQueue
from .playback import CallPlayer
from .vllm import VllmSession, is_vllm_client, refusal

logger = logging.getLogger(__name__)

SUBPROTOCOL: Final = "realtime"
BETA_SUBPROTOCOL: Final = "openai-beta.realtime-v1"
_BETA_HEADER: Final = "realtime=v1"
_LINGER_SECONDS: Final = 5.0
"""Time for sending the remaining events when a session ends."""
_RETRY_SECONDS: Final = 10
_SHOWN_CHARS: Final = 80
_POLICY: Final = 1008

NO_TRANSCRIPTION_MODEL: Final = (
    "Audio input needs a transcription model, and none is served; start the server with --transcription-model, or send "
    "text in a session of the Realtime API."
)

NO_SPEECH_MODEL: Final = "it speaks, and no speech model is served; start the server with --speech-model"

ServeSession = Callable[[EventQueue, ReceiveText, AudioShare], Awaitable[bool]]
OnPlayer = Callable[[CallPlayer], None]


class PlayedSession(NamedTuple):
    """A session whose audio is played here, before it begins."""

    dialect: Dialect
    connect: Callable[[EventQueue, AudioShare, OnPlayer], Connection]
    farewell: ServerEvent | None = None
    """Sent when the call is hung up by a request."""


_sessions: Final[msgspec.json.Decoder[Session]] = msgspec.json.Decoder(Session)


class ServedModels:
    """The server's models for sessions; satisfies :class:`..conversation.session.Models`."""

    def __init__(self, services: RealtimeServices) -> None:
        self._services = services

    @property
    def can_speak(self) -> bool:
        return self._services.speech is not None

    @property
    def default_voice(self) -> str | None:
        speech = self._services.speech
        return None if speech is None else speech.default_voice

    def check_voice(self, name: str, field: str) -> None:
        """Raises BadRequest for one that is not there."""
        if self._services.speech is not None:
            self._services.speech.voice(name, field)

    def check_speed(self, speed: float, field: str) -> None:
        """Raises BadRequest for one that the speech model does not have."""
        if self._services.speech is not None:
            self._services.speech.check_speed(speed, field)

    def chat_model(self, name: str | None, field: str) -> str:
        return self._served(name, "chat", field)

    def same_chat_model(self, one: str, other: str) -> bool:
        known = self._services.chat.registry
        return one == other or known.find(one, kind="chat") == known.find(other, kind="chat")

    def transcription_model(self, name: str | None, field: str) -> str:
        return self._served(name, "transcription", field)

    def _served(self, name: str | None, kind: ModelRole, field: str) -> str:
        """Raises BadRequest. An unknown name means the model of that role: every client of the Realtime API sends
        OpenAI's names by default, and the session names the actual model."""
        known = self._services.chat.registry
        only = known.of_kind(kind)
        if only is None or name is None or name in known or known.fitting(name, kind) is not None:
            return known.resolve(name, kind, field)
        logger.warning(
            "a realtime session asked for the %s model %r, which is not served: it has %r",
            kind,
            name[:_SHOWN_CHARS],
            only.names[0],
        )
        return only.names[0]

    def language(self, name: str, field: str) -> str:
        model = self._services.transcription
        if model is None or isinstance(model, StreamingTranscriptionModel):
            return code_of(name) or name
        if isinstance(model, ChatTranscriber):
            return model.asking.language(name, field)
        return model.language(name, field)


class RealtimeServing:
    """The sessions of one server."""

    def __init__(self, services: RealtimeServices) -> None:
        self._services = services
        self.max_seconds: Final = services.config.max_seconds
        figures = services.metrics.realtime
        self._pace = PartialPace(figures.partial_interval.observe)
        self.audio: Final = HeldAudio(services.config.max_audio_bytes, figures.audio_refused.inc)
        figures.audio_held.set_function(lambda: self.audio.bytes)
        self.rules: Final = SessionRules(ServedModels(services), services.limits)
        self.call_rules: Final = replace(self.rules, carries_sound=True)

    async def serve(self, socket: WebSocket) -> None:
        """Runs one connection from its handshake to its end. Raises Unavailable and BadRequest before it is
        accepted."""
        self._services.admission.check_available()
        choose_engine(socket.scope, self._services.admission)
        with self._services.metrics.server.websocket():
            offered: Sequence[str] = socket.scope.get("subprotocols", ())
            await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
            beta = BETA_SUBPROTOCOL in offered or socket.headers.get("openai-beta") == _BETA_HEADER
            dialect = BetaDialect() if beta else CurrentDialect()
            await self.serve_socket(socket, dialect, partial(self._session, socket, dialect))

    async def serve_socket(self, socket: WebSocket, dialect: Dialect, serve: ServeSession) -> None:
        """Runs an accepted connection: ``serve`` reads it, and says whether no session was possible."""
        event_queue = EventQueue(dialect)
        send = partial(_send, socket)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(event_queue.write, send)
            try:
                with self.audio.share() as audio:
                    refused = await serve(event_queue, partial(receive_text, socket), audio)
            except WebSocketDisconnect:
                refused = False
            event_queue.close()
            tasks.cancel_scope.deadline = anyio.current_time() + _LINGER_SECONDS
        if socket.application_state is WebSocketState.CONNECTED:
            with contextlib.suppress(WebSocketDisconnect):
                await socket.close(_POLICY if refused else 1000)

    async def _session(
        self, socket: WebSocket, dialect: Dialect, event_queue: EventQueue, receive: ReceiveText, audio: AudioShare
    ) -> bool:
        """Returns whether no session was possible."""
        query = socket.query_params
        caller, secret = caller_of(socket.scope), secret_of(socket.scope)
        connection = None
        try:
            session = self.begun(query, secret)
            connection = self.paced(session, caller, dialect, event_queue, audio, keeps_type=secret is not None)
        except BadRequest as error:
            event_queue.tell(describe(error)[1])
            return True
        undecided = "model" not in query and "intent" not in query and secret is None
        connection.begin(foreign=undecided)
        with anyio.move_on_after(self.max_seconds) as lifetime:
            first = await receive() if undecided else None
            if undecided and first is None:
                return False
            if first is not None and is_vllm_client(first):
                await self._serve_vllm(caller, event_queue, receive, first, audio)
            else:
                await self.serve_session(connection, receive, first)
        if lifetime.cancelled_caught:
            connection.expire()
        return False

    def call_of(self, session: Session, caller: Caller) -> PlayedSession:
        """A session of the Realtime API whose transport carries audio."""
        dialect = CurrentDialect()
        return PlayedSession(dialect, partial(self.playing, session, caller, dialect))

    async def serve_call(
        self,
        played: PlayedSession,
        receive: Receive,
        send: Callable[[bytes], Awaitable[None]],
        on_player: OnPlayer,
    ) -> None:
        """Runs a session whose transport carries audio. ``on_player`` gets its player."""
        event_queue = EventQueue(played.dialect)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(event_queue.write, send)
            with self.audio.share() as audio:
                connection = played.connect(event_queue, audio, on_player)
                connection.begin()
                with anyio.move_on_after(self.max_seconds) as lifetime:
                    await self.serve_session(connection, receive)
                if lifetime.cancelled_caught:
                    connection.expire()
            event_queue.close()
            tasks.cancel_scope.deadline = anyio.current_time() + _LINGER_SECONDS

    def paced(
        self,
        session: Session,
        caller: Caller,
        dialect: Dialect,
        event_queue: EventQueue,
        audio: AudioShare,
        *,
        keeps_type: bool,
        language: Callable[[], str] | None = None,
    ) -> Connection:
        """A connection whose client plays its audio. ``language``: see :class:`.connection.Connection`."""
        ahead = self._services.config.audio_ahead
        common = None if language is None else PlaybackPacer(ahead)  # nothing interrupts: one answer follows another
        return Connection(
            self._services,
            caller,
            self.rules,
            session,
            dialect,
            event_queue,
            SessionAudio(
                partial(self._open_input_audio, caller, audio),
                make_pacer=lambda _response: common or PlaybackPacer(ahead),
                share=audio,
            ),
            keeps_type=keeps_type,
            language=language,
        )

    def playing(
        self,
        session: Session,
        caller: Caller,
        dialect: Dialect,
        event_queue: EventQueue,
        audio: AudioShare,
        on_player: OnPlayer,
        *,
        delegation: Callable[[], Delegation] | None = None,
        language: Callable[[], str] | None = None,
    ) -> Connection:
        """A connection whose audio is played here. ``delegation``: of the Live API, which is told of what
        is played. ``language``: see :class:`.connection.Connection`."""

        def make_player(
            on_started: Callable[[str], None], on_stopped: Callable[[str], None], on_played: OnPlayed
        ) -> CallPlayer:
            ahead = self._services.config.audio_ahead
            is_live = delegation is not None
            player = CallPlayer(on_started, on_stopped, ahead, audio, on_played if is_live else None)
            on_player(player)
            return player

        sound = SessionAudio(partial(self._open_input_audio, caller, audio), make_player=make_player, share=audio)
        return Connection(
            self._services,
            caller,
            self.call_rules,
            session,
            dialect,
            event_queue,
            sound,
            keeps_type=True,
            delegation=delegation,
            language=language,
        )

    def transcriber(self, caller: Caller) -> AnyTranscriber:
        """Raises BadRequest without a transcription model."""
        model, passes = self._services.transcription, self._services.metrics.realtime.passes
        if model is None:
            raise BadRequest(NO_TRANSCRIPTION_MODEL, "audio", "unsupported")
        if isinstance(model, ChatTranscriber):
            return ChatTurnTranscriber(model, passes, caller)
        streamed = model if isinstance(model, StreamingTranscriptionModel) else model.streamed
        if streamed is not None:
            return StreamTranscriber(streamed, passes, caller.salt, current_request_id())
        assert isinstance(model, TranscriptionModel)
        adapter_of = self._services.chat.registry.adapter_of
        return ModelTranscriber(model, passes, caller.salt, current_request_id(), adapter_of)

    def _open_input_audio(
        self, caller: Caller, share: AudioShare, on_partial: OnPartial, on_speech_event: OnSpeechEvent
    ) -> InputAudio:
        """Raises BadRequest without a transcription model."""
        return InputAudioPipeline(
            self.transcriber(caller),
            SpeechProbabilities,
            self._pace,
            on_partial,
            on_speech_event,
            on_lag=self._services.metrics.realtime.transcription_lag.observe,
            max_seconds=self._services.config.max_input_seconds,
            share=share,
        )

    async def serve_session(self, connection: Connection, receive: Receive, first: bytes | None = None) -> None:
        """Until the client has gone, or has closed it."""
        kind: SessionKind = "transcription" if connection.state is State.TRANSCRIBING else "realtime"
        try:
            with self._services.metrics.realtime.session(kind):
                await connection.serve(receive, first)
        finally:
            logger.info("%s session ended: %s", kind, connection.figures)

    async def _serve_vllm(
        self, caller: Caller, event_queue: EventQueue, receive: ReceiveText, first: bytes, audio: AudioShare
    ) -> None:
        try:
            transcribe = self.transcriber(caller)
        except BadRequest as error:
            event_queue.put_message(refusal(error))
            return
        session = VllmSession(
            transcribe,
            self._pace,
            lambda name: self.rules.models.transcription_model(name, "model"),
            event_queue.put_message,
            event_queue.room,
            max_messages=self._services.connection.max_messages_per_second * APPENDS,
            share=audio,
        )
        with self._services.metrics.realtime.session("vllm"):
            await session.serve(receive, first)

    def asked(self, given: dict[str, Any]) -> Session:
        """The session that a client describes. Raises BadRequest."""
        rules = self.rules
        id, expires_at = short_id("sess"), int(time.time() + self.max_seconds)
        begun: Session
        if given.get("type") == "transcription":
            begun = rules.transcription(id, expires_at)
        else:
            model = given.get("model")
            begun = rules.realtime(id, model if isinstance(model, str) and model else None, expires_at, "session.model")
        return rules.updated(begun, given, pristine=True, has_spoken=False)

    def check_secret_model(self, model: str, own: str) -> None:
        """Raises BadRequest if ``model``, which a client names, is not ``own``, the served name of its client
        secret's."""
        if self.rules.models.chat_model(model, "model") != own:
            raise BadRequest(f"`model`: this client secret is for `{own}`.", "model", "invalid_value", 403)

    def begun(self, query: Mapping[str, str], secret: ClientSecret | None) -> Session:
        """The session that the request to open describes. Raises BadRequest."""
        rules = self.rules
        model = query.get("model") or None
        id, expires_at = short_id("sess"), int(time.time() + self.max_seconds)
        if secret is not None:
            session = _sessions.decode(secret.session)
            if isinstance(session, RealtimeSession) and model:
                self.check_secret_model(model, session.model)
            return msgspec.structs.replace(session, id=id, expires_at=expires_at)
        known = self._services.chat.registry
        named = known.find(model).kind if model and model in known else None
        if query.get("intent") == "transcription" or named == "transcription":
            if named == "chat":
                model = None  # which names the model of a session that it would otherwise be
            return rules.transcription(id, expires_at, model)
        return rules.realtime(id, model, expires_at)


def made_secret(
    secrets: ClientSecrets, request: Request, session: bytes, seconds: int, kind: SecretKind
) -> tuple[str, int]:
    """A client secret for such sessions, and when it expires. Raises Overloaded."""
    try:
        return secrets.make(caller_of(request.scope), session, seconds, kind)
    except SecretsFull as error:
        raise Overloaded(str(error), "client_secrets_full", _RETRY_SECONDS) from None


async def _send(socket: WebSocket, message: bytes) -> None:
    if socket.application_state is WebSocketState.CONNECTED:
        with contextlib.suppress(WebSocketDisconnect):  # the reader notices too
            await socket.send_text(message.decode())
