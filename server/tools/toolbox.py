"""The tool servers of one response: lists their tools, and calls them."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from .errors import INVALID_PARAMS, NOT_MADE, TIMED_OUT, ToolCallFailed, ToolServerFailed, protocol_fault
from .gateway import McpGateway
from .servers import Server

if TYPE_CHECKING:
    from .connection import Connection

_LOST = "what it takes to be let in is not kept, and this server was started again since"


class Toolbox:
    """A session with a server begins when it is first needed, and lasts until the end of the response."""

    def __init__(self, gateway: McpGateway, servers: Sequence[Server]) -> None:
        self._gateway = gateway
        self._servers = {server.label: server for server in servers}
        self._connections: dict[str, Connection] = {}
        self._connecting = {label: asyncio.Lock() for label in self._servers}

    async def tools(self, label: str) -> list[dict[str, Any]]:
        """The server's tools, as response items list them. Raises ToolServerFailed."""
        config = self._gateway.config
        await self._gateway.load()
        try:
            with anyio.fail_after(config.connect_timeout):
                async with self._gateway.calls:
                    return await (await self._connection(label)).tools(config.max_tools)
        except TimeoutError:
            raise _failed(label, f"it did not list them within {config.connect_timeout:g} seconds") from None
        except ToolCallFailed as fault:
            raise _failed(label, str(fault)) from None

    async def call(self, label: str, name: str, arguments: str, most: int) -> str:
        """The tool's result, truncated to the stored length, and to ``most`` characters. Raises Fault."""
        config = self._gateway.config
        given = _arguments(arguments)
        await self._gateway.load()
        try:
            with anyio.fail_after(config.call_timeout):
                async with self._gateway.calls:
                    return await (await self._connection(label)).call(name, given, min(most, config.max_result_chars))
        except TimeoutError:
            raise protocol_fault(
                TIMED_OUT, f"the tool did not answer within {config.call_timeout:g} seconds and was given up"
            ) from None

    async def aclose(self) -> None:
        """Ends all sessions. May be called at any time, and again."""
        connections, self._connections = list(self._connections.values()), {}
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*(connection.aclose() for connection in connections))

    async def _connection(self, label: str) -> "Connection":
        server = self._servers[label]
        if server.locked:
            raise protocol_fault(NOT_MADE, _LOST)
        async with self._connecting[label]:
            connection = self._connections.get(label)
            if connection is not None and not connection.alive:
                await connection.aclose()
                connection = None
            if connection is None:
                connection = self._connections[label] = await self._gateway.connect(server)
            return connection


def _failed(label: str, why: str) -> ToolServerFailed:
    return ToolServerFailed(f"The tools of the server `{label}` could not be listed: {why}.")


def _arguments(text: str) -> dict[str, Any]:
    """Raises ToolCallFailed."""
    try:
        given = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        raise protocol_fault(INVALID_PARAMS, "the arguments are not JSON") from None
    if not isinstance(given, dict):
        raise protocol_fault(INVALID_PARAMS, "the arguments are not a JSON object")
    return given
