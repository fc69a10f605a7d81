"""Steering: input for a response that runs, and for the successor that goes on from it.

A steer is accepted while its response runs, which then ends at the next safe place. The input goes to a successor; if
the response waits for results of the client's tools, to the request that brings them.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest, wrong
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.responses.client_tools import (
    ApplyPatchCallItem,
    LocalShellCallItem,
    ShellCallItem,
    ToolSearchCallItem,
)
from stentor.protocols.openai.responses.items import CLIENT_OUTPUTS, Item, read_items
from stentor.protocols.openai.responses.objects import (
    CustomToolCallItem,
    FunctionCallItem,
    McpApprovalRequestItem,
    OutputItem,
    ResponseObject,
)
from stentor.protocols.openai.responses.request import ResponseRequest

from ...http.error_responses import describe
from ...overload.memory_budget import MemoryShare
from .ids import random_id
from .running import ResponseTask

MAX_STEERS: Final = 8
"""Steers of one response that wait."""
MAX_ENDED: Final = 32
"""Ended responses of a connection that are told from unknown ones, and those whose steers wait for results of tools."""
_PARTS: Final = ("input_text", "input_image", "input_file")
_ANSWERS: Final = (*CLIENT_OUTPUTS, "mcp_approval_response")

Request = TypeVar("Request", bound=ResponseRequest)
Send = Callable[[bytes, str | None], Awaitable[None]]
"""Sends an event on a lane."""


class Steer(msgspec.Struct, frozen=True, eq=False):
    """Input that has been accepted."""

    id: str
    given: Any
    """What the client sent."""
    items: list[Item]
    share: MemoryShare
    """What it takes; closed once a request has taken the input, or it is dropped."""


class Steered(msgspec.Struct):
    """A response that may be steered, and what waits for its end."""

    response: ResponseObject
    lane: str | None
    refused: str | None
    """Why it cannot be steered."""
    stop: Callable[[], None]
    steers: list[Steer] = msgspec.field(default_factory=list)
    events: int = 0
    """Events about its steers, which they number."""


class Steering:
    """The steers of one connection."""

    def __init__(self, limits: Limits, share: Callable[[], MemoryShare], send: Send) -> None:
        """``share``: memory for one steer."""
        self._limits = limits
        self._share = share
        self._send = send
        self._steers: set[Steer] = set()
        """Steers without a running response."""
        self._running: dict[str, Steered] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._waiting: OrderedDict[str, Steered] = OrderedDict()
        """Ended responses whose steers wait for results of the client's tools."""

    @contextmanager
    def of(self, run: ResponseTask, lane: str | None, request: ResponseRequest) -> Iterator[Steered]:
        """Lets the response be steered in the block."""
        refused = None
        if request.conversation_id is not None:
            refused = "A response of a conversation cannot be steered; send another response.create."
        one = self._running[run.response.id] = Steered(run.response, lane, refused, run.steer)
        try:
            yield one
        finally:
            del self._running[run.response.id]
            self._ended[run.response.id] = None
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)

    async def take(self, lane: str | None, previous: str | None, given: Any, size: int) -> None:
        """A steer for the response ``previous``, of ``size`` bytes: accepts it, or says why not."""
        one = self._running.get(previous or "")
        if one is None:
            over = previous in self._ended
            code = "response_already_completed" if over else "response_not_found"
            message = "The response has ended." if over else "No response of this id runs on this connection."
            await self._fail(None, previous or "", given, code, message, lane)
            return
        if one.refused is not None:
            await self._fail(one, previous or "", given, "steering_not_supported", one.refused)
            return
        if len(one.steers) >= MAX_STEERS:
            message = f"{MAX_STEERS} steers of the response wait, as many as may."
            await self._fail(one, previous or "", given, "too_many_pending_steers", message)
            return
        share = self._share()
        try:
            share.add(size)
            items = _checked(given, self._limits)
        except Exception as error:
            share.close()
            if not isinstance(error, BadRequest):
                raise
            await self._fail(one, previous or "", given, "invalid_input", describe(error)[1].message)
            return
        steer = Steer(random_id("steer"), given, items, share)
        self._steers.add(steer)
        one.steers.append(steer)
        one.stop()
        await self._tell(one, "accepted", {"steer": _named(steer, one)})

    async def ended(self, one: Steered) -> list[Steer]:
        """Returns the steers that a successor is to begin with; it owns them. Others wait, or have failed."""
        steers = one.steers
        if not steers:
            return []
        if one.response.status not in ("completed", "incomplete"):
            await self.fail(one, steers, "The response did not end as one that can be gone on from.")
            return []
        required = list(_required(one.response))
        if not required:
            one.steers = []
            return steers
        self._waiting[one.response.id] = one
        for steer in steers:
            fields = {"reason": "waiting_for_required_input", "required_input": required, "steer": _named(steer, one)}
            await self._tell(one, "pending", fields)
        if len(self._waiting) > MAX_ENDED:
            oldest = self._waiting.popitem(last=False)[1]
            await self.fail(oldest, oldest.steers, "Too many steers of this connection wait for results of tools.")
        return []

    def waiting(self, request: ResponseRequest, lane: str | None) -> Steered | None:
        """The response with steers that ``request`` takes with it, as it goes on from it on the same lane."""
        one = self._waiting.get(request.previous_response_id or "")
        return one if one is not None and one.lane == lane else None

    def commit(self, one: Steered | None) -> None:
        """Its steers have become part of a running response."""
        if one is not None:
            self._waiting.pop(one.response.id, None)
            self._release(one.steers)

    async def fail(self, one: Steered, steers: Sequence[Steer], message: str) -> None:
        """No successor takes them."""
        self._release(steers)
        for steer in steers:
            name = one.response.id
            await self._fail(one, name, steer.given, "successor_creation_failed", message, steer=steer.id)

    def close(self) -> None:
        """Notifies no reader any more."""
        self._release(tuple(self._steers))

    def _release(self, steers: Sequence[Steer]) -> None:
        for steer in steers:
            steer.share.close()
            self._steers.discard(steer)

    async def _fail(
        self,
        one: Steered | None,
        previous: str,
        given: Any,
        code: str,
        message: str,
        lane: str | None = None,
        *,
        steer: str | None = None,
    ) -> None:
        error = {"type": "invalid_request_error", "code": code, "message": message}
        named = {"input": given, "previous_response_id": previous} | ({} if steer is None else {"id": steer})
        await self._tell(one, "failed", {"error": error, "steer": named}, lane)

    async def _tell(self, one: Steered | None, what: str, fields: dict[str, Any], lane: str | None = None) -> None:
        number = 0
        if one is not None:
            number, one.events, lane = one.events, one.events + 1, one.lane
        event = {"type": f"response.steer.{what}", **fields, "sequence_number": number}
        await self._send(encode(event), lane)


def successor(request: Request, previous: str, steers: Sequence[Steer]) -> Request:
    """The request that goes on from response ``previous`` of ``request`` with its steers."""
    items = [item for steer in steers for item in steer.items]
    return msgspec.structs.replace(request, input=items, previous_response_id=previous)


def with_steers(request: Request, steers: Sequence[Steer]) -> Request:
    """The request with the steers before its own input, but behind the results of tools that it begins with: many chat
    templates want these directly behind their calls."""
    given = request.input or []
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    results = 0
    while results < len(given) and given[results].get("type") in _ANSWERS:
        results += 1
    items = [item for steer in steers for item in steer.items]
    return msgspec.structs.replace(request, input=[*given[:results], *items, *given[results:]])


def _checked(given: Any, limits: Limits) -> list[Item]:
    """Raises BadRequest for items that are not user messages."""
    listed = isinstance(given, list) and all(isinstance(item, dict) for item in given)
    if not given or not (listed or isinstance(given, str)):
        raise wrong("input", "must be a text, or a list of at least one message")
    items = read_items(given, limits, random_id)
    for index, item in enumerate(items):
        if item["type"] != "message" or item["role"] != "user":
            raise wrong(f"input[{index}]", "must be a message of the user")
        for place, part in enumerate(item["content"]):
            if part["type"] not in _PARTS:
                raise wrong(f"input[{index}].content[{place}].type", f"must be one of {', '.join(_PARTS)}")
    return items


def _named(steer: Steer, one: Steered) -> dict[str, str]:
    return {"id": steer.id, "previous_response_id": one.response.id}


def _required(response: ResponseObject) -> Iterator[dict[str, str]]:
    """What the client must bring before the response can be gone on from, without the results."""
    if response.status == "completed":
        for item in response.output:
            yield from _stub(item)


def _stub(item: OutputItem) -> Iterator[dict[str, str]]:
    match item:
        case FunctionCallItem():
            yield {"type": "function_call_output", "call_id": item.call_id, "name": item.name}
        case CustomToolCallItem():
            yield {"type": "custom_tool_call_output", "call_id": item.call_id}
        case ToolSearchCallItem():
            yield {"type": "tool_search_output", "call_id": item.call_id, "execution": "client"}
        case LocalShellCallItem() | ShellCallItem() | ApplyPatchCallItem():
            yield {"type": f"{item.__struct_config__.tag}_output", "call_id": item.call_id}
        case McpApprovalRequestItem():
            yield {"type": "mcp_approval_response", "approval_request_id": item.id}
