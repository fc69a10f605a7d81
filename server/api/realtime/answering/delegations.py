"""Tasks that the model of a session hands over to the client's application, by calling a function.

::

    model calls `delegate` ──► delegated, with an id ──► client works
         │                                                  │
         └─ says so, after a delay, unless it has           └─► context with that id: the conversation's next message
            spoken already or a result has come
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import anyio
from msgspec.structs import replace

from stentor.protocols.common.errors import refused
from stentor.protocols.openai.realtime.items import FunctionCallItem, FunctionCallOutputItem, MessageItem
from stentor.protocols.openai.realtime.live import Delegated
from stentor.protocols.openai.realtime.server import OutputItemDone, Response, ResponseDone, ServerEvent
from stentor.protocols.openai.realtime.session import RealtimeSession, Session

from ...responses.ids import short_id
from ..conversation.conversation import Entry, RealtimeConversation
from .answer import Emit
from .response_manager import ResponseManager, Start

DELEGATE: Final[dict[str, Any]] = {
    "type": "function",
    "name": "delegate",
    "description": "Hands the user's last request over to a backend that can look things up and act. Call it only for "
    "requests that need facts, data or actions which you do not have. It needs no arguments: the backend knows the "
    "conversation. Its result comes later, as a message.",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
"""The function of a session that may delegate."""
_TAKEN: Final = "The backend works on it. Its result will come later; until then, just say that you are on it."
MAX_KNOWN: Final = 1024
"""Delegations of a session that context may refer to: the last ones."""


class Delegations:
    """Belongs to the connection, whose conversation it changes."""

    def __init__(
        self,
        answering: ResponseManager,
        conversation: RealtimeConversation,
        session: Callable[[], Session],
        delay_ms: Callable[[], int],
        *,
        emit: Emit,
        start: Start,
    ) -> None:
        """``session`` and ``delay_ms`` give the current settings; ``start`` begins a task of the connection."""
        self._answering: Final = answering
        self._conversation: Final = conversation
        self._session: Final = session
        self._delay_ms: Final = delay_ms
        self._emit: Final = emit
        self._start: Final = start
        self._known: deque[str] = deque(maxlen=MAX_KNOWN)
        self._silent: set[str] = set()
        """Delegations of which the user has not been told."""

    def check(self, id: str | None) -> None:
        """Raises BadRequest for a delegation that is not known."""
        if id is not None and id not in self._known:
            raise refused("delegation_id", f"there is no delegation `{id[:80]}`", "delegation_not_found")

    def notice(self, event: ServerEvent) -> None:
        """Called with each event of the session."""
        if type(event) is OutputItemDone:
            item = event.item
            if isinstance(item, FunctionCallItem) and item.name == DELEGATE["name"] and item.status == "completed":
                self._take(item)
        elif type(event) is ResponseDone and self._silent:
            self._end(event.response)

    def _take(self, call: FunctionCallItem) -> None:
        id = short_id("dlg")
        self._known.append(id)
        self._silent.add(id)
        self._conversation.append(Entry(FunctionCallOutputItem(short_id("item"), call.call_id, _TAKEN)))
        self._emit(Delegated(delegation_id=id))

    def _end(self, response: Response) -> None:
        """Has the user told of what a response delegated, unless it has spoken or the user speaks."""
        has_spoken = any(isinstance(item, MessageItem) for item in response.output)
        if has_spoken or response.status == "cancelled":
            self._silent.clear()
        else:
            silent = frozenset(self._silent)
            self._start(lambda: self._acknowledge(silent))

    async def _acknowledge(self, silent: frozenset[str]) -> None:
        await anyio.sleep(self._delay_ms() / 1000)
        session = self._session()
        if silent & self._silent and isinstance(session, RealtimeSession):
            self._silent -= silent
            self._answering.respond_when_idle(replace(session, tool_choice="none"))

    def told(self) -> None:
        """Context has come that the user is to be told, or that the model should know: no acknowledgement is due."""
        self._silent.clear()
