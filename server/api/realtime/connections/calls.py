"""``/v1/realtime/calls``: sessions over WebRTC. The offer comes by HTTP, everything else by the peer connection."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import anyio
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message

from stentor.protocols.common.decoding import decode
from stentor.protocols.common.errors import BadRequest, missing, wrong
from stentor.protocols.openai.realtime.secrets import CallForm, secret_decoder
from stentor.protocols.openai.realtime.server import ErrorEvent, RealtimeError, ServerEvent

from ....common.errors import Overloaded
from ....http.connections import Connections
from ....middleware.auth import caller_of, secret_of
from ...common.described import Operation, Operations
from ...common.endpoint import read_body
from ...common.sockets import choose_engine
from ...responses.ids import short_id
from ..common.interfaces import Sound
from ..common.services import RealtimeServices
from .playback import BYTES_A_MS, CallPlayer
from .serving import PlayedSession, RealtimeServing

if TYPE_CHECKING:
    from ....webrtc.peer import Peer
    from ....webrtc.sdp import Offer

CONNECT_SECONDS: Final = 15.0
"""In which a client must have opened its data channel."""
CHANNEL: Final = "oai-events"
SDP: Final = "application/sdp"
MAX_MESSAGES: Final = 1024
MAX_MESSAGE_BYTES: Final = 4 << 20
"""Bytes of a client's messages that wait to be handled. A data channel cannot be left unread as a socket can, so the
call ends beyond it."""
MAX_AUDIO: Final = 5_000 * BYTES_A_MS
"""Bytes of received audio that wait; later audio is dropped."""
_CLOSE_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 10
_ANY_HOST: Final = ("", "0.0.0.0", "::")

OPERATIONS: Final[Operations] = {
    "/v1/realtime/calls": Operation(
        "Begin a realtime session over WebRTC: answer an SDP offer",
        str,
        takes_file=True,
        file_field="sdp",
        form=CallForm,
        raw=SDP,
        media_type=SDP,
        status=HTTPStatus.CREATED,
        not_found=True,
    ),
    "/v1/realtime/calls/{call_id}/hangup": Operation(
        "End a realtime session over WebRTC", str, media_type="text/plain", not_found=True
    ),
}


def routes(services: RealtimeServices, serving: RealtimeServing) -> list[Route]:
    return [
        Route("/v1/realtime/calls", partial(create, services, serving), methods=["POST"]),
        Route("/v1/realtime/calls/{call_id}/hangup", partial(hang_up, services), methods=["POST"]),
    ]


def available() -> bool:
    """Whether the packages for calls are installed."""
    return find_spec("aiortc") is not None


def check_available(services: RealtimeServices) -> None:
    """Raises BadRequest where calls are not possible, and Unavailable."""
    if not available():
        raise BadRequest(
            "WebRTC needs the package `aiortc` here; the operator adds it with `pip install stentor[webrtc]`.",
            None,
            "unsupported",
        )
    services.admission.check_available()


async def create(services: RealtimeServices, serving: RealtimeServing, request: Request) -> Response:
    check_available(services)
    choose_engine(request.scope, services.admission)
    offer, given = await read_offer_form(services, request)
    caller, secret = caller_of(request.scope), secret_of(request.scope)
    if given is None or secret is not None:
        session = serving.begun(request.query_params, secret)
        if given is not None:
            session = serving.rules.updated(session, given, pristine=False, has_spoken=False)
    else:
        model = request.query_params.get("model")
        session = serving.asked({"model": model, **given} if model else given)
    played = serving.call_of(serving.call_rules.carried(session), caller)
    return await begun(services, serving, request, offer, played)


async def begun(
    services: RealtimeServices, serving: RealtimeServing, request: Request, offer: "Offer", played: PlayedSession
) -> Response:
    """The answer to the offer; the session begins with its connection. Raises Overloaded."""
    call = Call(services, serving, played)
    answer = await call.answer(offer, request)
    id = short_id("rtc")
    services.calls.start(id, caller_of(request.scope).owner, call)
    headers = {"location": f"/v1/realtime/calls/{id}"}
    return Response(answer, HTTPStatus.CREATED, headers, media_type=SDP)


async def hang_up(services: RealtimeServices, request: Request) -> Response:
    id = request.path_params["call_id"]
    if not await services.calls.hang_up(id, caller_of(request.scope).owner):
        raise BadRequest(f"There is no call `{id[:80]}`.", "call_id", "call_not_found", HTTPStatus.NOT_FOUND)
    return Response(media_type="text/plain")


def offer_of(sdp: bytes, field: str = "sdp") -> "Offer":
    """Raises BadRequest naming ``field``."""
    from ....webrtc.sdp import SdpError, read_offer

    if not sdp:
        raise missing(field)
    try:
        return read_offer(sdp.decode())
    except UnicodeDecodeError:
        raise wrong(field, "is not valid UTF-8", "invalid_sdp") from None
    except SdpError as error:
        raise wrong(field, str(error), "invalid_sdp") from None


async def read_offer_form(services: RealtimeServices, request: Request) -> "tuple[Offer, dict[str, Any] | None]":
    """The offer, and the session in the same form. Raises BadRequest."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    session = b""
    with services.admission.memory.share() as share:
        body = await read_body(request, services.limits, share)
        if kind == "multipart/form-data":
            body, session = await _parts(request, body)
        elif kind != SDP:
            raise BadRequest(f"An offer is brought as {SDP}, or in the field `sdp` of multipart/form-data.", "sdp")
        given = None
        if session:
            wrapped = b'{"session":' + session + b"}"
            given = decode(secret_decoder, wrapped, services.limits).session
    return offer_of(body), given


async def _parts(request: Request, body: bytes) -> tuple[bytes, bytes]:
    """``sdp`` and ``session`` of a form; empty where they are missing."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    whole = Request(request.scope, receive)
    try:
        form = await whole.form(max_files=2, max_fields=8, max_part_size=len(body))
    except HTTPException as error:
        raise BadRequest(f"The form cannot be read: {error.detail}", "sdp") from None
    except UnicodeError:
        raise BadRequest("The form cannot be read: its names are no text in its charset; use UTF-8.", "sdp") from None
    try:
        found = []
        for name in ("sdp", "session"):
            part = form.get(name, "")
            found.append(await part.read() if isinstance(part, UploadFile) else part.encode("utf-8", "replace"))
    finally:
        await form.close()
    return found[0], found[1]


class Call:
    """One session over WebRTC, from the answer to its end."""

    def __init__(self, services: RealtimeServices, serving: RealtimeServing, session: PlayedSession) -> None:
        self._services = services
        self._serving = serving
        self._session = session
        self._peer: Peer | None = None
        self._player: CallPlayer | None = None
        self._messages: deque[bytes] = deque()
        self._message_bytes = 0
        self._audio = bytearray()
        self._news = anyio.Event()
        self._leave: Callable[[], None] | None = None
        self._last_word: ServerEvent | None = None
        self._life = anyio.CancelScope()

    async def answer(self, offer: "Offer", request: Request) -> str:
        """Begins to listen; :meth:`run` must follow. Raises Overloaded."""
        # aiortc takes a second to import, and most servers never need it
        await anyio.to_thread.run_sync(_import_peer)
        from ....webrtc.ice import AnsweringIce, NoPort, own_addresses
        from ....webrtc.peer import Handlers, Peer

        config = self._services.config
        self._enter(request)
        try:
            addresses = _addresses(self._services.host, request.scope.get("server"), own_addresses)
            ice = AnsweringIce(addresses, config.webrtc_address, config.webrtc_ports)
            self._peer = Peer(offer, ice, CHANNEL, Handlers(self._take_audio, self._take, self._wake, self._next_frame))
            return await self._peer.answer()
        except BaseException as error:
            await self._close()
            if isinstance(error, NoPort):
                why = "No UDP port is free for another call (--webrtc-ports); try again later."
                raise Overloaded(why, "no_free_port", _RETRY_SECONDS) from None
            raise

    def _enter(self, request: Request) -> None:
        """A call has a place among the connections, as a WebSocket has. Raises Overloaded."""
        connections = self._services.metrics.server.connections
        if not isinstance(connections, Connections):
            return
        slot = connections.enter(request.scope.get("client"))
        if slot.refusal is not None:
            slot.leave()
            raise Overloaded(slot.refusal, "too_many_connections", _RETRY_SECONDS)
        self._leave = slot.leave

    async def run(self) -> None:
        """Runs until the client disconnects, or the connection cannot be established."""
        assert self._peer is not None
        try:
            with self._life:
                with anyio.move_on_after(CONNECT_SECONDS) as connecting:
                    await self._peer.connect()
                if not (connecting.cancelled_caught or self._peer.ended.is_set()):
                    await self._serving.serve_call(self._session, self._receive, self._send, self._plays)
        finally:
            await self._close()

    def end(self, why: RealtimeError | None = None) -> None:
        """Ends :meth:`run`; may be called repeatedly. The client gets ``why``."""
        self._last_word = self._session.farewell if why is None else ErrorEvent(error=why)
        self._life.cancel()

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            if self._peer is not None:
                if self._last_word is not None:
                    await self._tell(self._last_word)
                await self._peer.close()
        if self._leave is not None:
            self._leave()

    # ---- for the session

    async def _receive(self) -> bytes | Sound | None:
        """Audio comes before messages: a client commits it behind it."""
        assert self._peer is not None
        while True:
            if self._audio:
                pcm = bytes(self._audio)
                self._audio.clear()
                return Sound(pcm)
            if self._messages:
                message = self._messages.popleft()
                self._message_bytes -= len(message)
                return message
            if self._peer.ended.is_set():
                return None
            self._news = anyio.Event()
            await self._news.wait()

    async def _send(self, message: bytes) -> None:
        assert self._peer is not None
        most = self._peer.max_message_bytes
        if len(message) > most:
            why = f"An event has {len(message)} bytes, and this client takes at most {most} at once over WebRTC."
            error = RealtimeError("invalid_request_error", "event_too_large", why, None, None)
            await self._tell(ErrorEvent(error=error))
            return
        await self._peer.send(message.decode())

    async def _tell(self, event: ServerEvent) -> None:
        """Beside the session's own events."""
        event.event_id = short_id("event")
        message = self._session.dialect.encode(event)
        if message is not None:
            assert self._peer is not None
            await self._peer.send(message.decode())

    def _plays(self, player: CallPlayer) -> None:
        self._player = player

    # ---- for the peer

    def _take_audio(self, pcm: bytes) -> None:
        if self._player is not None and len(self._audio) + len(pcm) <= MAX_AUDIO:  # otherwise there is no session yet
            self._audio += pcm
            self._wake()

    def _take(self, message: bytes) -> None:
        assert self._peer is not None
        self._messages.append(message)
        self._message_bytes += len(message)
        if len(self._messages) > MAX_MESSAGES or self._message_bytes > MAX_MESSAGE_BYTES:
            self._peer.end()
        self._wake()

    def _wake(self) -> None:
        self._news.set()

    def _next_frame(self, size: int) -> bytes:
        return bytes(size) if self._player is None else self._player.next_frame(size)


def _import_peer() -> None:
    import_module("....webrtc.peer", __package__)


def _addresses(host: str, server: Any, own: Callable[[], Sequence[str]]) -> list[str]:
    """Addresses that the client can reach if it reached the listener: all of this machine's if that listens on all.

    ``server`` is the local end of the request's connection, from ASGI.
    """
    reached = [server[0]] if server and server[1] else []
    if host in _ANY_HOST or not reached:
        return list(dict.fromkeys([*reached, *own()]))
    return reached
