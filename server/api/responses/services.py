"""Services of the server for the Responses API."""

from collections.abc import Callable

import anyio
import msgspec

from stentor.protocols.common.limits import Limits

from ...common.keys import Caller
from ...config.limits import ConnectionLimits
from ...generation.chat_model import ChatModel
from ...state.admission_control import AdmissionControl
from ...state.live_responses import LiveResponses
from ...storage.database import Database
from ...tools.gateway import McpGateway


class ResponseServices(msgspec.Struct, frozen=True):
    """For its routes and background work."""

    chat: ChatModel
    store: Database
    live: LiveResponses
    """Running responses."""
    gateway: McpGateway
    """Through which tools on other servers are reached."""
    caller_of_owner: Callable[[str], Caller | None]
    """Finds a caller by its name in the store; None if its key is not valid any more."""
    connection: ConnectionLimits
    suspects: anyio.Lock
    """Held while a response, or a line of a batch, runs again that had lost its engine before."""

    @property
    def admission(self) -> AdmissionControl:
        return self.chat.admission

    @property
    def limits(self) -> Limits:
        """Limits of one request."""
        return self.chat.limits
