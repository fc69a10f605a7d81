"""From a WebSocket to a session, and to its end: who speaks which dialect, what the session begins as, how long it lasts."""

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import anyio
import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from stentor.protocols.openai.errors import BadRequest
from stentor.protocols.openai.realtime.session import RealtimeSession, Session

from ..auth import caller_of, secret_of
from ..errors import describe
from ..responses.ids import random_id
from ..state import ServerState
from .beta import Beta
from .connection import Connection
from .opening import EarOpener
from .outbox import Current, Dialect, Outbox
from .pacing import PlaybackPacer
from .session import SessionRules

logger = logging.getLogger(__name__)

MAX_SECONDS: Final = 3600.0
"""That a session lasts."""
SUBPROTOCOL: Final = "realtime"
BETA_SUBPROTOCOL: Final = "openai-beta.realtime-v1"
_BETA_HEADER: Final = "realtime=v1"
_LINGER_SECONDS: Final = 5.0
"""For what is still to be told when a session ends."""
_BAD_DATA: Final = 1003
_POLICY: Final = 1008


class ServedModels:
    """What sessions ask of the models of one server; satisfies :class:`.session.Voices`."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    @property
    def can_speak(self) -> bool:
        return self._state.speech is not None

    @property
    def default_voice(self) -> str | None:
        speech = self._state.speech
        return None if speech is None else speech.default_voice

    def check_voice(self, name: str, field: str) -> None:
        """Raises BadRequest for one that is not there."""
        if self._state.speech is not None:
            self._state.speech.voice(name, field)

    def chat_model(self, name: str | None, field: str) -> str:
        return self._state.catalogue.resolve(name, "chat", field)

    def transcription_model(self, name: str | None, field: str) -> str:
        return self._state.catalogue.resolve(name, "transcription", field)


class RealtimeServing:
    """The sessions of one server."""

    def __init__(self, state: ServerState, max_seconds: float = MAX_SECONDS) -> None:
        self._state = state
        self.max_seconds: Final = max_seconds
        self._ears = EarOpener(state)
        self.rules: Final = SessionRules(ServedModels(state), state.limits)

    async def serve(self, socket: WebSocket) -> None:
        """One connection, from its handshake to its end."""
        with self._state.metrics.server.websocket():
            offered: Sequence[str] = socket.scope.get("subprotocols", ())
            await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
            beta = BETA_SUBPROTOCOL in offered or socket.headers.get("openai-beta") == _BETA_HEADER
            await self._serve(socket, Beta() if beta else Current())

    async def _serve(self, socket: WebSocket, dialect: Dialect) -> None:
        outbox = Outbox(dialect)
        send = partial(_send, socket)
        receive = partial(_receive, socket)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outbox.write, send)
            try:
                refused = await self._session(socket, dialect, outbox, receive)
            except WebSocketDisconnect:
                refused = False
            outbox.close()
            tasks.cancel_scope.deadline = anyio.current_time() + _LINGER_SECONDS
        if socket.application_state is WebSocketState.CONNECTED:
            await socket.close(_POLICY if refused else 1000)

    async def _session(self, socket: WebSocket, dialect: Dialect, outbox: Outbox, receive: Any) -> bool:
        """Returns whether there was to be none."""
        state, query = self._state, socket.query_params
        caller = caller_of(socket.scope)
        connection = None
        try:
            connection = Connection(
                state,
                caller,
                self.rules,
                self._begun(socket),
                dialect,
                outbox,
                open_ears=partial(self._ears.open, caller),
                make_pacer=PlaybackPacer,
            )
        except BadRequest as error:
            outbox.tell(describe(error)[1])
            return True
        undecided = "model" not in query and "intent" not in query and secret_of(socket.scope) is None
        connection.begin(foreign=undecided)
        with anyio.move_on_after(self.max_seconds) as lifetime:
            await connection.serve(receive)
        if lifetime.cancelled_caught:
            connection.expire()
        return False

    def _begun(self, socket: WebSocket) -> Session:
        """Raises BadRequest."""
        query, rules = socket.query_params, self.rules
        model = query.get("model") or None
        id, expires_at = random_id("sess"), int(time.time() + self.max_seconds)
        secret = secret_of(socket.scope)
        if secret is not None:
            session = msgspec.json.decode(secret.session, type=Session)  # type: ignore[arg-type]  # it is a union
            if (
                isinstance(session, RealtimeSession)
                and model
                and rules.models.chat_model(model, "model") != session.model
            ):
                raise BadRequest(
                    f"`model`: this client secret is for `{session.model}`.", "model", "invalid_value", 403
                )
            return msgspec.structs.replace(session, id=id, expires_at=expires_at)
        known = self._state.catalogue
        if query.get("intent") == "transcription" or (model and known.find(model).kind == "transcription"):
            if model and known.find(model).kind != "transcription":
                model = None  # which names the model of a session that it would otherwise be
            return rules.transcription(id, expires_at, model)
        return rules.realtime(id, model, expires_at)


async def _receive(socket: WebSocket) -> bytes | None:
    """None once the client has gone."""
    try:
        message = await socket.receive()
    except WebSocketDisconnect:
        return None
    if message["type"] == "websocket.disconnect":
        return None
    text: str | None = message.get("text")
    if text is None:
        await socket.close(_BAD_DATA, "messages are text")
        return None
    return text.encode()


async def _send(socket: WebSocket, message: bytes) -> None:
    if socket.application_state is WebSocketState.CONNECTED:
        try:
            await socket.send_text(message.decode())
        except WebSocketDisconnect:
            pass  # whoever reads finds out too
