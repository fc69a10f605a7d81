"""Allowed tool servers of a request, decided before any of it runs."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.responses.mcp import MCP, runs_here
from stentor.protocols.openai.sampling import not_served

from ..config.config import McpConfig
from ..media.fetching.resolving import Resolve, resolve
from ..media.fetching.urls import parse
from ..media.refusal import Refusal
from .servers import HOSTED_SERVERS, Server, read_server
from .url_allowlist import ServerAddress, UrlAllowlist

if TYPE_CHECKING:
    from .connection import Connection

REFUSED = "tool_server_refused"


class McpGateway:
    """Owned by the server process."""

    def __init__(
        self,
        config: McpConfig | None = None,
        *,
        resolve: Resolve = resolve,
    ) -> None:
        """
        Args:
        """
        self.config = config or McpConfig()
        self._reach = UrlAllowlist(self.config.urls, allow_private=self.config.allow_private, resolve=resolve)
        self._own = {server.name: parse(server.url) for server in self.config.servers}
        self.calls = anyio.Semaphore(self.config.max_calls)
        """Places for calls that run at the same time."""

    async def servers(self, tools: Sequence[dict[str, Any]], locked: Sequence[str] = ()) -> tuple[Server, ...]:
        """Servers of checked tools; ``locked`` are labels whose secrets are not known any more.

        Raises BadRequest naming the field.
        """
        found = []
        for index, tool in enumerate(tools):
            if runs_here(tool):
                found.append(await self._server(tool, f"tools[{index}]", locked))
        if len({server.label for server in found}) < len(found):
            raise BadRequest("`tools`: two of them are the same server.", "tools")
        return tuple(found)

    async def _server(self, tool: dict[str, Any], where: str, locked: Sequence[str]) -> Server:
        if tool["type"] != MCP:
            name = HOSTED_SERVERS[tool["type"]]
            if name not in self._own:
                raise not_served(f"{where}.type", f"`{where}.type`: a tool of type `{tool['type']}`")
            _check_package(where)
            return read_server(tool, ServerAddress(self._own[name], None), where, own=True)
        _check_package(where)
        label, url = tool["server_label"], tool.get("server_url")
        if url is not None:
            place = await self._named(url, f"{where}.server_url")
            return read_server(tool, place, where, own=False, locked=label in locked)
        if label not in self._own:
            field = f"{where}.server_url"
            raise BadRequest(
                f"`{field}` is required: this server has no server of tools `{label}` of its own.",
                field,
                "missing_required_parameter",
            )
        if tool.get("headers") or tool.get("authorization"):
            raise BadRequest(f"`{where}`: `headers` and `authorization` need a `server_url`.", where, "invalid_value")
        return read_server(tool, ServerAddress(self._own[label], None), where, own=True)

    async def _named(self, url: str, field: str) -> ServerAddress:
        try:
            return await self._reach.place(url)
        except Refusal as refusal:
            raise BadRequest(f"`{field}`: {refusal}.", field, REFUSED) from None

    async def load(self) -> None:
        """Imports the package, which takes seconds the first time."""
        await anyio.to_thread.run_sync(_connection_type)

    async def connect(self, server: Server) -> "Connection":
        """An open session. Raises Fault."""
        timeout = max(self.config.call_timeout, self.config.connect_timeout)
        connection = _connection_type()(server, timeout=timeout)
        try:
            await connection.open()
        except BaseException:
            await connection.aclose()
            raise
        return connection


def _connection_type() -> "type[Connection]":
    from .connection import Connection  # with the package, which most servers never need

    return Connection


def _check_package(where: str) -> None:
    if find_spec("mcp") is None:
        raise BadRequest(
            f"`{where}`: tools on other servers need the package `mcp` here; the operator adds it with "
            "`pip install stentor[mcp]`.",
            where,
            "unsupported",
        )
