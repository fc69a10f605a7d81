"""What the Responses API uses of the server."""

from collections.abc import Callable
from dataclasses import dataclass

from stentor.protocols.common.limits import Limits

from ...common.keys import Caller
from ...config.limits import ConnectionLimits
from ...generation.chat_model import ChatModel
from ...state.admission_control import AdmissionControl
from ...state.live_responses import LiveResponses
from ...storage.database import Database
from ...tools.gateway import McpGateway


@dataclass(frozen=True)
class ResponseServices:
    """For its routes, and for what goes on in the background."""

    chat: ChatModel
    store: Database
    live: LiveResponses
    """Those that are being made."""
    gateway: McpGateway
    """Through which tools on other servers are reached."""
    caller_of_owner: Callable[[str], Caller | None]
    """Finds a caller by its name in the store; None where its key is not valid any more."""
    connection: ConnectionLimits

    @property
    def admission(self) -> AdmissionControl:
        return self.chat.admission

    @property
    def limits(self) -> Limits:
        """Of what one request may ask for."""
        return self.chat.limits
