"""A response of several turns: with tools that the server runs, or with a compaction first.

First the tool servers are asked for their tools, unless the conversation lists them; then approved calls run; then the
model has its turn and its calls run, until it calls nothing, or a tool that the client runs or must approve. All of it
appears in the response's items and events.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final

import msgspec

from stentor.protocols.ipc.deltas import Finish
from stentor.protocols.openai.responses.items import Item
from stentor.protocols.openai.responses.objects import McpCallItem

from ...common.task_scope import TaskScope
from ...generation.admission import GenerationOptions, context_length
from ...generation.prepare import PreparedGeneration, prepare_generation
from ...overload.request_context import RequestContext
from ...tools.errors import INVALID_PARAMS, NOT_MADE, ToolCallFailed, ToolServerFailed, protocol_fault
from ...tools.servers import may_repeat
from ...tools.toolbox import Toolbox
from ...tools.tools import McpTool, function_name
from .approvals import approved
from .compacted import in_force
from .encoder import COPIES, ResponseEncoder, ServedTool
from .items import items_of
from .naming import map_response_fields
from .offering import blame_server, known_lists, offer_functions, server_tools
from .preparing import Prepared, fitting
from .replay import Replay
from .services import ResponseServices

Tell = Callable[[list[bytes]], None]
Commit = Callable[[], Awaitable[None]]
"""Returns once all sent events are stored, if the response is."""

_ENOUGH: Final = "as many calls of tools as this response may make have been made"
_UNKNOWN_OUTCOME: Final = (
    "the server was started again while this call ran; whether it had an effect is not known, and it was not made again"
)


class ToolLoop:
    """The tool loop of one response."""

    def __init__(self, services: ResponseServices, prepared: Prepared, context: RequestContext, replay: Replay) -> None:
        """``replay``: an earlier server's work on it."""
        self._services = services
        self._prepared = prepared
        self._context = context
        self._replay = replay
        self._toolbox = Toolbox(services.gateway, prepared.servers)
        self._tools: Mapping[str, McpTool] = {}
        self._made = 0

    async def turns(
        self, encoder: ResponseEncoder, tell: Tell, commit: Commit
    ) -> AsyncGenerator[PreparedGeneration, None]:
        """Run each turn to its end, into ``encoder``, before the next is requested.

        Raises ToolServerFailed, and as :func:`prepare_generation`.
        """
        try:
            if encoder.compacts:
                summary = await self._summary()
                async with aclosing(summary.batches):
                    yield summary
                if encoder.finish is None or encoder.finish.reason not in ("stop", "length"):
                    return
                encoder.end_compaction()
            lists = await self._lists(encoder, tell)
            self._offer(encoder, lists)
            await self._run_approved(encoder, tell, commit)
            for number in range(self._services.gateway.config.max_rounds + 1):
                last = number == self._services.gateway.config.max_rounds or self._used_up
                turn = await self._turn(encoder, number, offering=not last)
                if turn is None:
                    encoder.finish = Finish(0, "length", None, None)
                    return
                async with aclosing(turn.batches):
                    yield turn
                if encoder.finish is None or encoder.finish.reason != "stop" or not encoder.calls:
                    return
                await self._run(encoder, encoder.calls, tell, commit)
                if encoder.asks:
                    return
        finally:
            await self._toolbox.aclose()

    @property
    def _used_up(self) -> bool:
        most = self._prepared.request.max_tool_calls
        return most is not None and self._made >= most

    # ---- what is offered

    async def _lists(self, encoder: ResponseEncoder, tell: Tell) -> dict[str, list[dict[str, Any]]]:
        lists = known_lists(self._prepared.conversation.items)
        missing = [server.label for server in self._prepared.servers if server.label not in lists]
        async with TaskScope("lists of tools") as tasks:
            asked = {label: tasks.submit(self._list(label)) for label in missing}
            for label in missing:
                tell(encoder.begin_list(label))
                try:
                    lists[label] = await asked[label]
                except ToolServerFailed as failure:
                    tell(encoder.end_list([], str(failure)))
                    raise
                tell(encoder.end_list(lists[label]))
        return lists

    async def _list(self, label: str) -> list[dict[str, Any]]:
        known = self._replay.list_of(label)
        return await self._toolbox.tools(label) if known is None else known

    def _offer(self, encoder: ResponseEncoder, lists: Mapping[str, list[dict[str, Any]]]) -> None:
        self._tools = server_tools(self._prepared.request, self._prepared.servers, lists)
        encoder.serve(
            {
                name: ServedTool(tool.server.label, tool.name, tool.approval, tool.server.calls)
                for name, tool in self._tools.items()
            }
        )

    # ---- turns

    async def _summary(self) -> PreparedGeneration:
        prepared, services = self._prepared, self._services
        client = self._replay.submitter(0, services.chat.client)
        with map_response_fields():
            options = GenerationOptions(copies=COPIES, client=client)
            return await prepare_generation(services.chat, prepared.chat, prepared.caller, self._context, options)

    async def _turn(self, encoder: ResponseEncoder, number: int, *, offering: bool) -> PreparedGeneration | None:
        """None if there are no tokens left to generate."""
        request = offer_functions(self._prepared.request, self._tools if offering else {}, first=not self._made)
        if request.max_output_tokens is not None:
            left = request.max_output_tokens - encoder.output_tokens
            if left <= 0:
                return None
            request = msgspec.structs.replace(
                request,
                max_output_tokens=left,
                min_tokens=max(0, min(left, request.min_tokens - encoder.output_tokens)),
            )
        said: list[Item] = items_of(encoder.response.output)
        prepared, services = self._prepared, self._services
        client = self._replay.submitter(number + (prepared.compacts is not None), services.chat.client)
        arrival = time.monotonic() if number else None
        with blame_server(prepared.request, self._tools), map_response_fields(request.tools or ()):
            conversation = prepared.conversation
            items = in_force(conversation.items + said, prepared.seal.open)
            chat = await fitting(services.chat, request, items, prepared.seal, conversation.fields)
            options = GenerationOptions(copies=COPIES, client=client, arrival=arrival)
            return await prepare_generation(services.chat, chat, prepared.caller, self._context, options)

    # ---- calls

    async def _run_approved(self, encoder: ResponseEncoder, tell: Tell, commit: Commit) -> None:
        for asked in approved(self._prepared.conversation):
            tell(encoder.begin_call(asked))
        await self._run(encoder, encoder.calls, tell, commit)

    async def _run(self, encoder: ResponseEncoder, calls: Sequence[McpCallItem], tell: Tell, commit: Commit) -> None:
        """Runs all calls, in parallel if the client allows parallel calls."""
        most = self._prepared.request.max_tool_calls
        admitted = calls if most is None else calls[: max(0, most - self._made)]
        self._made += len(admitted)
        for item, known in self._replay.answered(calls):
            tell(encoder.end_call(item, known.get("output"), known.get("error")))
        waiting = encoder.calls
        for item in waiting:
            if item not in admitted:
                tell(encoder.end_call(item, None, protocol_fault(NOT_MADE, _ENOUGH).error))
        await self._make([item for item in waiting if item in admitted], encoder, tell, commit)

    async def _make(self, calls: Sequence[McpCallItem], encoder: ResponseEncoder, tell: Tell, commit: Commit) -> None:
        if not calls:
            return
        places = asyncio.Semaphore(1 if self._prepared.request.parallel_tool_calls is False else len(calls))

        async def answer(item: McpCallItem) -> None:
            async with places:
                output, error = await self._answer(item)
            tell(encoder.end_call(item, output, error))

        await commit()
        async with TaskScope("calls of tools") as tasks:
            await asyncio.gather(*(tasks.submit(answer(item)) for item in calls))

    async def _answer(self, item: McpCallItem) -> tuple[str | None, dict[str, Any] | None]:
        tool = self._tools.get(function_name(item.server_label, item.name))
        try:
            if tool is None or (tool.server.label, tool.name) != (item.server_label, item.name):
                raise protocol_fault(INVALID_PARAMS, "the server has no such tool to offer")
            if self._replay.was_begun(item.id) and not may_repeat(tool.annotations):
                raise protocol_fault(NOT_MADE, _UNKNOWN_OUTCOME)
            most = context_length(self._services.chat)  # characters, for a token is seldom less than one
            with self._measured():
                return await self._toolbox.call(item.server_label, item.name, item.arguments, most), None
        except ToolCallFailed as fault:
            return None, fault.error

    @contextmanager
    def _measured(self) -> Iterator[None]:
        outcome, began = "cut_off", time.monotonic()
        try:
            yield
            outcome = "completed"
        except ToolCallFailed:
            outcome = "failed"
            raise
        finally:
            self._services.chat.metrics.tool_calls[outcome].observe(time.monotonic() - began)
