"""WebSocket mode of ``/v1/responses``: responses in sequence, or in parallel lanes.

A client sends ``response.create`` with the fields of a request, and gets each event of the response as one message.
Responses with one ``stream_id`` run in order; events repeat it. A response that is not stored can be continued on the
same connection while it is among the last few. ``response.steer`` brings input for one that runs (:mod:`.steering`).
"""

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from stentor.protocols.common.decoding import decode, decoded_bytes
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest, refused, wrong
from stentor.protocols.openai.responses.items import Item
from stentor.protocols.openai.responses.request import ResponseRequest
from stentor.protocols.openai.sampling import Name

from ...http.error_responses import describe, headers_of
from ...middleware.auth import caller_of
from ...observability.request import current_request_id, note_error
from ...overload.memory_budget import MemoryFull, MemoryShare
from ..common.sockets import ReadPace, choose_engine, receive_text
from .encoder import ResponseEncoder
from .items import items_of
from .preparing import Prepared, prepare
from .services import ResponseServices
from .starting import AttachedStream, run_of
from .steering import Steered, Steering, successor, with_steers

MAX_PENDING: Final = 32
"""Responses of one connection that run or wait."""
MAX_KEPT: Final = 8
"""Conversations of one connection that are not stored, and can be gone on from."""
MAX_KEPT_BYTES: Final = 64 << 20
"""Bytes of the messages that created them, with their history."""
MAX_SECONDS: Final = 3600.0
"""Lifetime of a connection, as OpenAI's, also of a silent one."""
_KEPT_FACTOR: Final = 4
"""Memory factor of a message: one wide character makes its whole text wide."""


class _Kind(msgspec.Struct):
    type: str
    stream_id: Name | None = None
    input: Any = None
    previous_response_id: Name | None = None


class _Create(ResponseRequest, kw_only=True):
    generate: bool | None = None


_kind_decoder: Final = msgspec.json.Decoder(_Kind)
_create_decoder: Final = msgspec.json.Decoder(_Create)


class _Kept(NamedTuple):
    items: list[Item]
    size: int
    """Bytes of the messages that they came with."""
    share: MemoryShare


class ResponseSocket:
    """One connection. It reads no more than ``max_events`` messages a second, 0: as many as come.

    What it holds of them is counted among the bodies of all requests.
    """

    def __init__(self, services: ResponseServices, socket: WebSocket, max_events: int) -> None:
        self._services = services
        self._socket = socket
        self._max_events = max_events
        self._caller = caller_of(socket.scope)
        self._lanes: dict[str | None, anyio.Event] = {}
        self._pending = 0
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._steering = Steering(services.limits, partial(services.admission.memory.share, 0), self._send)

    async def serve(self) -> None:
        """Serves until the client disconnects, which ends its responses. Raises Unavailable and BadRequest before it is
        accepted."""
        self._services.admission.check_available()
        choose_engine(self._socket.scope, self._services.admission)
        await self._socket.accept()
        try:
            async with anyio.create_task_group() as tasks:
                with anyio.move_on_after(MAX_SECONDS) as lifetime:
                    await self._read(tasks.start_soon)
                if lifetime.cancelled_caught:
                    await self._expire()
                tasks.cancel_scope.cancel()
        finally:
            self._steering.close()
            while self._kept:
                self._forget_oldest()

    async def _read(self, start: Callable[..., object]) -> None:
        pace = ReadPace(self._max_events)
        while (message := await receive_text(self._socket)) is not None:
            kind = _Kind("")
            try:
                kind = decode(_kind_decoder, message, self._services.limits, "The message")
                await self._take(kind, message, start)
            except Exception as error:
                await self._tell(error, kind.stream_id)
            await pace.wait()

    async def _expire(self) -> None:
        """Running responses finish; no more is read."""
        with contextlib.suppress(WebSocketDisconnect):
            await self._tell(
                BadRequest(
                    f"This connection has lasted for {MAX_SECONDS / 60:g} minutes, as long as one may; open another.",
                    code="websocket_connection_limit_reached",
                ),
                None,
            )
            for done in tuple(self._lanes.values()):
                await done.wait()
            await self._socket.close()

    async def _take(self, kind: _Kind, message: bytes, start: Callable[..., object]) -> None:
        match kind.type:
            case "response.create":
                if self._pending >= MAX_PENDING:
                    raise BadRequest(
                        f"{self._pending} responses of this connection run or wait, as many as may.",
                        code="too_many_responses",
                        status=429,
                    )
                share = self._services.admission.memory.share()
                share.add(len(message) + decoded_bytes(message, self._services.limits))
                before, done = self._lanes.get(kind.stream_id), anyio.Event()
                self._lanes[kind.stream_id] = done
                self._pending += 1
                start(self._create, kind, message, share, before, done)
            case "response.steer":
                size = len(message) + decoded_bytes(message, self._services.limits)
                await self._steering.take(kind.stream_id, kind.previous_response_id, kind.input, size)
            case other:
                raise refused("type", f"there is no event `{other[:80]}`; send response.create or response.steer")

    async def _create(
        self, kind: _Kind, message: bytes, share: MemoryShare, before: anyio.Event | None, done: anyio.Event
    ) -> None:
        lane = kind.stream_id
        try:
            with share:
                if before is not None:
                    await before.wait()
                await self._answer_all(
                    lane, decode(_create_decoder, message, self._services.limits, "The message"), len(message)
                )
        except WebSocketDisconnect:
            pass  # the reader notices too
        except Exception as error:
            self._forget(kind.previous_response_id)
            await self._tell(error, lane)
        finally:
            self._pending -= 1
            done.set()
            if self._lanes.get(lane) is done:
                del self._lanes[lane]

    async def _answer_all(self, lane: str | None, body: _Create, size: int) -> None:
        """The response, and the successors of those that are steered."""
        if body.background:
            raise wrong("background", "is not for WebSockets; send the request by POST")
        one = self._steering.waiting(body, lane)
        if one is not None:
            body = with_steers(body, one.steers)
        steered = await self._answer(lane, body, size, one)
        while steered is not None and (steers := await self._steering.ended(steered)):
            body = successor(body, steered.response.id, steers)
            size = sum(steer.share.size for steer in steers)
            before, steered.steers = steered, steers
            try:
                steered = await self._answer(lane, body, size, before)
            except WebSocketDisconnect:
                raise
            except Exception as error:
                await self._steering.fail(before, steers, describe(error)[1].message)
                return

    async def _answer(self, lane: str | None, body: _Create, size: int, before: Steered | None) -> Steered | None:
        """One response, which takes over what waits of ``before``. Returns it if it may have been steered."""
        services = self._services
        kept = self._kept.get(body.previous_response_id or "")
        extra = None if kept is None else kept.items
        size += 0 if kept is None else kept.size
        with services.admission.admit() as context:
            with context.bounded():
                prepared = await prepare(services, body, self._caller, context.queue_slot.memory, extra=extra)
                if body.generate is False:
                    await self._only_prepare(prepared, lane, size)
                    self._steering.commit(before)
                    return None
                run = await run_of(services, prepared, context, watched=True)
            with self._steering.of(run, lane, body) as steered:
                async with aclosing(AttachedStream(run, context.bounded)) as events:
                    async for batch in events:
                        self._steering.commit(before)
                        for event in batch:
                            await self._send(event, lane)
        if not body.stored:
            self._keep(prepared, items_of(run.response.output), size)
        return steered

    async def _only_prepare(self, prepared: Prepared, lane: str | None, size: int) -> None:
        """A response without output, to go on from on this connection."""
        encoder = ResponseEncoder(prepared.response, prepared.ids.new)
        for event in [*encoder.begin(), *encoder.leave_empty()]:
            await self._send(event, lane)
        self._keep(prepared, [], size)

    def _keep(self, prepared: Prepared, output: list[Item], size: int) -> None:
        while self._kept and (
            len(self._kept) >= MAX_KEPT or size + sum(kept.size for kept in self._kept.values()) > MAX_KEPT_BYTES
        ):
            self._forget_oldest()
        if size > MAX_KEPT_BYTES:
            return
        share = self._services.admission.memory.share()
        said = prepared.conversation
        with contextlib.suppress(MemoryFull, BadRequest):  # as if it had been forgotten already
            share.add(_KEPT_FACTOR * size)
            self._kept[prepared.response.id] = _Kept([*said.history, *said.given, *output], size, share)

    def _forget(self, name: str | None) -> None:
        """After an error, as OpenAI does: nothing goes on from the response that it named."""
        kept = self._kept.pop(name or "", None)
        if kept is not None:
            kept.share.close()

    def _forget_oldest(self) -> None:
        self._forget(next(iter(self._kept)))

    async def _tell(self, error: Exception, lane: str | None) -> None:
        status, body = describe(error)
        if status >= 500:
            note_error(body.code or body.type)
        headers = {"x-request-id": current_request_id(), **headers_of(error)}
        fields = {**msgspec.to_builtins(body), "headers": headers}
        with contextlib.suppress(WebSocketDisconnect):  # the reader notices too
            await self._send(encode({"type": "error", "status": status, "error": fields}), lane)

    async def _send(self, event: bytes, lane: str | None) -> None:
        if lane is not None:
            event = event[:-1] + b',"stream_id":' + encode(lane) + b"}"
        if self._socket.application_state is WebSocketState.CONNECTED:
            await self._socket.send_text(event.decode())
