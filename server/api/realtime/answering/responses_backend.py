"""The Responses API as the backend of a Live session: what the model delegates is a request of it, on this server.

::

    delegated ──► request: the conversation's messages so far, and what the backend has said and was given
                    │ response.event, …                                                  to the client
                    ├─ calls of the client's functions: its `response.item.create` and `response.create` go on
                    └─ an answer: the model tells it
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import anyio
import msgspec
from msgspec import UNSET

from stentor.protocols.common.decoding import converted
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest, refused, wrong
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.realtime.items import Content, MessageItem
from stentor.protocols.openai.realtime.live import (
    BackendConfig,
    BackendEvent,
    CommentaryAppend,
    Delegated,
    context_item,
)
from stentor.protocols.openai.responses.items import read_items
from stentor.protocols.openai.responses.request import ResponseRequest

from ....common.keys import Caller
from ....generation.error_fields import map_error_fields
from ...responses.ids import random_id, short_id
from ...responses.items import items_of
from ...responses.preparing import prepare
from ...responses.services import ResponseServices
from ...responses.starting import AttachedStream, run_of
from ..conversation.conversation import Entry, RealtimeConversation
from .answer import Emit
from .answer_generator import input_item, whole_calls

CONFIG: Final = "session.delegation.responses"
MAX_WAITING: Final = 8
"""Runs of one session that wait for another."""
_LEFT_OUT: Final[dict[str, Any]] = {"instructions": None, "tools": [], "output": []}
"""Fields of a response in events, as the Live API has them."""
TOO_LONG: Final = "string_above_max_length"
_FAILED: Final = "The task could not be done: the backend has failed."


def request_of(config: BackendConfig, input: list[dict[str, Any]], limits: Limits) -> ResponseRequest:
    """The request for ``input``, which is not stored. Raises BadRequest naming the field of the session."""
    fields = {name: value for name in config.__struct_fields__ if (value := getattr(config, name)) is not UNSET}
    given = {**fields, "input": input, "store": False, "stream": True, "truncation": "auto"}
    request: ResponseRequest = converted(given, ResponseRequest, CONFIG)
    with map_error_fields({name: f"{CONFIG}.{name}" for name in config.__struct_fields__}):
        request.check(limits)
    return request


class ResponsesBackend:
    """Belongs to the connection of one session. Its runs follow one another."""

    def __init__(
        self,
        services: ResponseServices,
        caller: Caller,
        config: Callable[[], BackendConfig],
        conversation: RealtimeConversation,
        *,
        emit: Emit,
        room: Callable[[], Awaitable[None]],
        fail: Callable[[Exception], None],
    ) -> None:
        """``config`` gives what holds now. ``fail`` tells the client of an error."""
        self._services: Final = services
        self._caller: Final = caller
        self._config: Final = config
        self._conversation: Final = conversation
        self._emit: Final = emit
        self._room: Final = room
        self._fail: Final = fail
        self.on_result: Callable[[], None] = lambda: None
        """Called when the conversation has a result that the model is to tell."""
        self._items: list[dict[str, Any]] = []
        """The backend's conversation."""
        self._given = 0
        """Bytes of the client's items."""
        self._known: set[str] = set()
        """Items of the session's conversation that are in it, or came from it."""
        self._calls: set[str] = set()
        """Calls of the client's functions without an output."""
        self._delegation: str | None = None
        """The delegation of the last run."""
        self._turn: Final = anyio.Lock()
        self._waiting = 0

    def add(self, item: dict[str, Any]) -> None:
        """More input, for the next run. Raises BadRequest."""
        limits = self._services.limits
        size = self._given + len(encode(item))
        if size > limits.max_prompt_chars:
            most = limits.max_prompt_chars
            raise wrong("item", f"and those before it have {size} bytes; this server allows at most {most}", TOO_LONG)
        with map_error_fields({"item[0]": "item"}):
            (read,) = read_items([item], limits, random_id, "item")
        if read["type"] == "function_call_output":
            if read["call_id"] not in self._calls:
                raise refused(
                    "item.call_id", f"the backend waits for no call `{read['call_id'][:80]}`", "invalid_tool_call_id"
                )
            self._calls.discard(read["call_id"])
        self._given = size
        self._items.append(item)

    def check_room(self) -> None:
        """Raises BadRequest if too many runs wait."""
        if self._waiting >= MAX_WAITING:
            raise BadRequest(f"{self._waiting} responses of the backend wait already.", None, "too_many_responses", 429)

    async def run(self, delegation: str | None) -> None:
        """One run, for a delegation or because the client asks for it."""
        self._waiting += 1
        try:
            async with self._turn:
                await self._run(delegation)
        except Exception as error:
            self._fail(error)
            self._answer(_FAILED)
        finally:
            self._waiting -= 1

    async def _run(self, delegation: str | None) -> None:
        self._delegation = delegation or self._delegation
        self._take_messages()
        body = request_of(self._config(), self._input(), self._services.limits)
        with self._services.admission.admit() as context:
            with context.bounded():
                prepared = await prepare(self._services, body, self._caller, context.queue_slot.memory)
                run = await run_of(self._services, prepared, context, watched=True)
            if delegation is not None:
                self._emit(Delegated(delegation_id=delegation, target="responses", response_id=run.response.id))
            async with aclosing(AttachedStream(run, context.bounded)) as events:
                async for batch in events:
                    for event in batch:
                        self._emit(BackendEvent(event=_shown(event), delegation_id=self._delegation))
                    await self._room()
        self._take_output(items_of(run.response.output), run.response.status)

    def _take_messages(self) -> None:
        """What has been said since the last run."""
        for entry in whole_calls(self._conversation.entries_for_model()):
            if isinstance(entry.item, MessageItem) and entry.item.id not in self._known:
                self._known.add(entry.item.id)
                self._items.append(input_item(entry))

    def _input(self) -> list[dict[str, Any]]:
        """As much of the backend's conversation as a request may have, without calls that the client still works on."""
        del self._items[: max(0, len(self._items) - self._services.limits.max_messages)]
        return [
            item for item in self._items if item.get("type") != "function_call" or item["call_id"] not in self._calls
        ]

    def _answer(self, text: str) -> None:
        """Has the model tell a result. It is the session's own, so the conversation has room for it."""
        told = context_item(CommentaryAppend(content=text, delegation_id=self._delegation or "backend"))
        content = Content("input_text", text=told["content"][0]["text"])
        item = MessageItem(short_id("item"), "system", [content])
        self._known.add(item.id)
        self._conversation.append(Entry(item))
        self.on_result()

    def _take_output(self, output: list[dict[str, Any]], status: str) -> None:
        self._items += [item for item in output if item["type"] in ("message", "function_call")]
        calls = {item["call_id"] for item in output if item["type"] == "function_call"}
        self._calls |= calls
        texts = [
            part["text"] for item in output if item["type"] == "message" for part in item["content"] if "text" in part
        ]
        if status not in ("completed", "incomplete"):
            self._answer(_FAILED)
        elif not calls:
            self._answer("\n".join(texts) or "The task is done; there is nothing to tell.")


def _shown(event: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(event)
    if isinstance(fields.get("response"), dict):
        fields["response"] |= _LEFT_OUT
        fields["response"].pop("input", None)
    return fields
