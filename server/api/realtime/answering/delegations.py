"""Tasks that the model of a session hands over, by calling a function, to the client's application or to the server's
own Responses API (:mod:`.responses_backend`).

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
from stentor.protocols.openai.realtime.live import BackendCreate, BackendItem, Delegated, Delegation
from stentor.protocols.openai.realtime.server import OutputItemDone, Response, ResponseDone, ServerEvent
from stentor.protocols.openai.realtime.session import RealtimeSession, Session

from ...responses.ids import short_id
from ..conversation.conversation import Entry, RealtimeConversation
from .answer import Emit
from .response_manager import ResponseManager, Start
from .responses_backend import ResponsesBackend

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
        settings: Callable[[], Delegation],
        backend: ResponsesBackend | None,
        *,
        emit: Emit,
        start: Start,
    ) -> None:
        """``session`` and ``settings`` give what holds now; ``backend`` None: the client works. ``start`` begins a task
        of the connection."""
        self._answering: Final = answering
        self._conversation: Final = conversation
        self._session: Final = session
        self._settings: Final = settings
        self._backend: Final = backend
        self._emit: Final = emit
        self._start: Final = start
        self._known: deque[str] = deque(maxlen=MAX_KNOWN)
        if backend is not None:
            backend.on_result = self._tell
        self._silent: set[str] = set()
        """Delegations of which the user has not been told."""

    def check(self, id: str | None) -> None:
        """Raises BadRequest for a delegation that is not known, or not the client's."""
        if id is not None and self._backend is not None:
            raise refused("delegation_id", "the session's tasks are not the client's; set it to null", "invalid_value")
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
        if self._backend is None:
            self._emit(Delegated(delegation_id=id, target="client"))
        else:
            self._begin(self._backend, id)

    def command(self, event: BackendItem | BackendCreate) -> None:
        """Handles what the client has for the backend. Raises BadRequest."""
        if self._backend is None:
            raise refused("type", "the session delegates to its client, not to `responses`", "invalid_event")
        if isinstance(event, BackendItem):
            self._backend.add(event.item)
        else:
            self._backend.check_room()
            self._begin(self._backend, None)

    def _begin(self, backend: ResponsesBackend, id: str | None) -> None:
        self._start(lambda: backend.run(id))

    def _end(self, response: Response) -> None:
        """Has the user told of what a response delegated, unless it has spoken or the user speaks."""
        has_spoken = any(isinstance(item, MessageItem) for item in response.output)
        if has_spoken or response.status == "cancelled":
            self._silent.clear()
        else:
            silent = frozenset(self._silent)
            self._start(lambda: self._acknowledge(silent))

    async def _acknowledge(self, silent: frozenset[str]) -> None:
        await anyio.sleep((self._settings().acknowledgement_delay_ms or 0) / 1000)
        session = self._session()
        if silent & self._silent and isinstance(session, RealtimeSession):
            self._silent -= silent
            self._answering.respond_when_idle(replace(session, tool_choice="none"))

    def _tell(self) -> None:
        self.told()
        self._answering.respond_when_idle(self._session())

    def told(self) -> None:
        """Context has come that the user is to be told, or that the model should know: no acknowledgement is due."""
        self._silent.clear()
