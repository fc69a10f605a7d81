"""A session with one tool server. Imported late: the `mcp` package takes seconds.

The session runs in its own task: an error ends that task, and waiters get the reason.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

import anyio
import httpx2
import msgspec
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
)
from pydantic import TypeAdapter, ValidationError

from ..common.task_scope import TaskScope
from .errors import TIMED_OUT, ToolCallFailed, http_fault, protocol_fault
from .servers import Server
from .transport import PinnedTransport

for name in ("mcp", "client", "httpx2", "httpcore2"):
    # they log a server's output, and URLs with secrets
    logging.getLogger(name).setLevel(logging.CRITICAL)

Answer = TypeVar("Answer")

MAX_SCHEMA_BYTES: Final = 64 << 10
MAX_LIST_BYTES: Final = 1 << 20
MAX_NAME_CHARS: Final = 128
_MAX_PAGES: Final = 32
_CLOSE_SECONDS: Final = 2.0
_NO_STREAMING: Final = (400, 404, 405, 406, 415)
"""Statuses of a server without Streamable HTTP."""
_OF_STATUS: Final = ("Not Found", "Session terminated", "Server returned an error response")
"""The package's messages for responses of which only the status is known."""
_RESULT: Final[TypeAdapter[Any]] = TypeAdapter(CallToolResult | InputRequiredResult)
_CLIENT: Final = Implementation(name="stentor", version="1")


class Connection:
    def __init__(self, server: Server, *, timeout: float) -> None:
        """``timeout`` in seconds: how long a server may be silent, once it has been reached."""
        self._server = server
        self._timeout = timeout
        self._guard = PinnedTransport(server.place)
        self._closing = asyncio.Event()
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._tasks = TaskScope("sessions with servers of tools", _CLOSE_SECONDS)
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises ToolCallFailed."""
        self._task = self._tasks.submit(self._live())
        await asyncio.shield(self._opened)

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def tools(self, most: int) -> list[dict[str, Any]]:
        """Tools that the request allows, as items list them. Raises Fault."""
        client = await self._opened
        listed: list[dict[str, Any]] = []
        size = 0
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._answer(client.list_tools(cursor=cursor))
            for tool in page.tools:
                annotations = None
                if tool.annotations is not None:
                    annotations = tool.annotations.model_dump(by_alias=True, mode="json", exclude_none=True)
                if not self._server.allowed.meets(tool.name, annotations):
                    continue
                listed.append(_listed(tool, annotations))
                size += len(msgspec.json.encode(listed[-1]))
                if size > MAX_LIST_BYTES:
                    raise protocol_fault(-32000, f"what it says of its tools has more than {MAX_LIST_BYTES} bytes")
                if len(listed) > most:
                    raise protocol_fault(
                        -32000, f"it has more than {most} tools; name those that are wanted in `allowed_tools`"
                    )
            cursor = page.next_cursor
            if not cursor:
                return listed
        raise protocol_fault(-32000, f"its list of tools has more than {_MAX_PAGES} pages")

    async def call(self, name: str, arguments: Mapping[str, Any], most: int) -> str:
        """The tool's result, truncated to ``most`` characters. Raises Fault."""
        client = await self._opened
        params = CallToolRequestParams(name=name, arguments=dict(arguments))
        # not Client.call_tool: that matches results with the server's schemas, whose patterns may take for ever
        sent = client.session.send_request(CallToolRequest(params=params), _RESULT)
        result = await self._answer(sent)
        if isinstance(result, InputRequiredResult):
            raise protocol_fault(-32000, "the tool asks for further input, which is not supported")
        text = text_of_result(result, most)
        if result.is_error:
            raise ToolCallFailed({"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]})
        return text

    async def aclose(self) -> None:
        """May be called at any time, and again."""
        self._closing.set()
        task, self._task = self._task, None
        if task is None:
            return
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task}, timeout=_CLOSE_SECONDS)
            await self._tasks.aclose()
        if self._opened.done() and not self._opened.cancelled():
            self._opened.exception()

    # ---- the task

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                client = await self._connect(stack)
                self._opened.set_result(client)
                await self._closing.wait()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not self._opened.done():
                self._opened.set_exception(self._fault(error))
        finally:
            await self._guard.aclose()
            self._opened.cancel()

    async def _connect(self, stack: AsyncExitStack) -> Client:
        url = f"{self._server.place.target.scheme}://{self._server.place.target.authority}"
        url += self._server.place.target.path
        client_of_streams = await stack.enter_async_context(self._http())
        streams = streamable_http_client(url, http_client=client_of_streams, max_sse_event_size=None)
        try:
            async with AsyncExitStack() as attempt:
                client = await attempt.enter_async_context(self._client(streams, "auto"))
                stack.push_async_exit(attempt.pop_all())
                return client
        except Exception:
            if self._guard.refused not in _NO_STREAMING:
                raise
        refused, self._guard.refused = self._guard.refused, None

        def http(
            headers: dict[str, str] | None = None,
            timeout: httpx2.Timeout | None = None,
            auth: httpx2.Auth | None = None,
        ) -> httpx2.AsyncClient:
            return self._http()

        events = sse_client(url, httpx_client_factory=http, sse_read_timeout=self._timeout)
        try:
            return await stack.enter_async_context(self._client(events, "legacy"))
        except Exception:
            self._guard.refused = refused
            raise

    def _client(self, transport: Any, mode: str) -> Client:
        return Client(transport, mode=mode, cache=None, client_info=_CLIENT)

    def _http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=_Kept(self._guard),
            headers={**self._server.headers, "user-agent": "stentor"},
            timeout=httpx2.Timeout(self._timeout),
            trust_env=False,
            max_redirects=0,
        )

    async def _answer(self, asked: Coroutine[Any, Any, Answer]) -> Answer:
        """Its result, or its error as soon as the session ends. Raises Fault."""
        session = self._task
        if session is None or session.done():
            asked.close()
            raise self._fault(None)
        waiting = self._tasks.submit(asked)
        try:
            await asyncio.wait({waiting, session}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() or waiting.cancelled():
                raise self._fault(None)
            return waiting.result()
        except (MCPError, ValidationError, httpx2.HTTPError, RuntimeError, OSError) as error:
            raise self._fault(error) from None
        finally:
            if not waiting.done():
                waiting.cancel()
                with anyio.CancelScope(shield=True):
                    await asyncio.wait({waiting}, timeout=_CLOSE_SECONDS)

    def _fault(self, error: BaseException | None) -> ToolCallFailed:
        guard = self._guard
        if guard.fault is not None:
            return guard.fault
        if isinstance(error, ToolCallFailed):
            return error
        if isinstance(error, MCPError) and error.error.message not in _OF_STATUS:
            return protocol_fault(error.error.code, cut(str(error.error.message), 2000))
        if guard.refused is not None:
            return http_fault(guard.refused, f"the server answered with status {guard.refused}")
        if isinstance(error, ValidationError):
            return protocol_fault(-32000, "the server's answer is not what the protocol says")
        if isinstance(error, TimeoutError | httpx2.TimeoutException):
            return protocol_fault(TIMED_OUT, "the server did not answer in time")
        return protocol_fault(-32000, "the server broke off")


class _Kept(httpx2.AsyncBaseTransport):
    """A transport that outlives its client."""

    def __init__(self, inner: PinnedTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._inner.handle_async_request(request)


def _listed(tool: Any, annotations: dict[str, Any] | None) -> dict[str, Any]:
    if not 0 < len(tool.name) <= MAX_NAME_CHARS:
        raise protocol_fault(-32000, f"the name of one of its tools has more than {MAX_NAME_CHARS} characters, or none")
    size = len(msgspec.json.encode(tool.input_schema))
    if size > MAX_SCHEMA_BYTES:
        raise protocol_fault(
            -32000,
            f"the schema of its tool `{tool.name[:80]}` has {size} bytes, and {MAX_SCHEMA_BYTES} are the most; leave "
            "it out of `allowed_tools`",
        )
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "annotations": annotations,
    }


_MARK: Final = "\n[… cut here: the result has {total} characters, of which these are the first {kept}]"


def text_of_result(result: Any, most: int) -> str:
    """``result``: a ``CallToolResult``; truncated to ``most`` characters."""
    parts = [_text(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [msgspec.json.encode(result.structured_content).decode()]
    return cut("\n".join(parts), most)


def cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return text[:most] + _MARK.format(total=len(text), kept=most)


def _text(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "resource" if hasattr(block.resource, "text"):
            return str(block.resource.text)
        case "resource":
            return f"[a file, {block.resource.uri}, that is not shown]"
        case "resource_link":
            return f"[a link to {block.uri}]"
        case kind:
            return f"[{kind}, {block.mime_type}, that is not shown]"
