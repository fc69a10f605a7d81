"""Encodes deltas as a response of the Responses API: the object, and its events.

Without a stream, the caller ignores the events and takes the object.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.deltas import (
    Delta,
    Finish,
    PromptProcessed,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from stentor.protocols.openai.chat import TokenLogprob
from stentor.protocols.openai.responses import client_tools
from stentor.protocols.openai.responses.items import PREFIXES, Item
from stentor.protocols.openai.responses.objects import (
    CallKind,
    CodeInterpreterCallItem,
    CustomToolCallItem,
    FunctionCallItem,
    IncompleteDetails,
    McpApprovalRequestItem,
    McpCallItem,
    McpListToolsItem,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
    WebSearchCallItem,
)
from stentor.protocols.openai.responses.tools import ClientTool

from ...common.errors import generation_error
from ...generation.logprobs import TokenNames, chat_logprobs
from ...http.error_responses import describe
from ...http.whole_answer import AnswerBudget, without_bound
from .events import EventWriter
from .items import ClientCall, ItemWriter

COPIES: Final = 4
"""Copies of log-probabilities in memory: in the object, and in the three events with the whole message."""
_CALLS: Final[Mapping[CallKind, type[McpCallItem]]] = {
    "mcp_call": McpCallItem,
    "web_search_call": WebSearchCallItem,
    "code_interpreter_call": CodeInterpreterCallItem,
}


class ServedTool(msgspec.Struct, frozen=True):
    """A function that the model is offered, and that the server has run by another one."""

    server_label: str
    name: str
    """The other server's own."""
    approval: bool
    """Whether the client must approve the call first."""
    kind: CallKind = "mcp_call"
    """The type of the items that calls of it are."""


class ResponseEncoder:
    """Turns the deltas of one response into its events, and keeps the resulting object.

    A response may take several turns of the model: each is opened with :meth:`begin_turn`, its batches go to
    :meth:`take`, and its end is :attr:`finish`. Every method returns its events, to be sent in order. With the same
    ``new_id`` the same batches make the same events.
    """

    def __init__(
        self,
        response: ResponseObject,
        new_id: Callable[[str], str],
        *,
        top_logprobs: int | None = None,
        tools: Mapping[str, ClientTool] | None = None,
        seal: Callable[[str], str] | None = None,
        budget: AnswerBudget | None = None,
        compact: Callable[[str], str] | None = None,
    ) -> None:
        """``top_logprobs``: None for no log-probabilities. ``tools``: the client's, by the model's names. ``seal``
        encrypts reasoning, if requested. ``budget`` counts log-probabilities, whose errors :meth:`take` raises; None:
        no limit. ``compact``: the response begins with a compaction item, whose content this makes of the text until
        :meth:`end_compaction`."""
        self.response: Final = response
        self.finish: Finish | None = None
        self._new_id = new_id
        self._top = top_logprobs
        self._tools = tools or {}
        self._events = EventWriter()
        self._items = ItemWriter(response.output, self._events, new_id, seal, budget or without_bound(), compact)
        self._compacts = compact is not None
        self._names: TokenNames | None = None
        self._served: Mapping[str, ServedTool] = {}
        self._asks = False
        self._in_progress = False
        self._turns = 0
        self._given = self._cached = self._output = self._reasoned = 0
        self._summary = 0
        """Output tokens of a compaction."""

    # ---- the life of a response

    def begin(self) -> list[bytes]:
        if self.response.background:
            self.response.status = "queued"
        self._lifecycle("created")
        if self.response.background:
            self._lifecycle("queued")
        return self._events.taken()

    def begin_turn(self, prompt_tokens: int, names: TokenNames) -> None:
        """Before the first batch of it is taken."""
        self.finish = None
        self._asks = False
        self._progress()
        self._names = names
        self._turns += 1
        self._given += prompt_tokens

    def take(self, batch: Iterable[Delta]) -> list[bytes]:
        for delta in batch:
            kind = type(delta)
            if kind is Text:
                assert isinstance(delta, Text)
                self._text(delta)
            elif kind is Reasoning:
                assert isinstance(delta, Reasoning)
                self._reasoning(delta)
            else:
                self._other(delta)
        return self._events.taken()

    def complete(self) -> list[bytes]:
        """Ends the response as its last turn did."""
        if self.finish is None or self.finish.reason not in ("stop", "length"):
            error = generation_error(self.finish)
            code: Literal["invalid_prompt", "server_error"]
            code = "invalid_prompt" if isinstance(error, BadRequest) else "server_error"
            return self.fail(ResponseFailure(code, describe(error)[1].message))
        if not self.response.output and (self.finish.reason == "stop" or self._compacts):
            self._items.open_message()
            self._items.close("completed")
        self._items.drop_calls()
        response = self.response
        if self.finish.reason == "length" and not self._compacts:
            response.status = "incomplete"
            response.incomplete_details = IncompleteDetails("max_output_tokens")
        else:
            response.status = "completed"
            response.completed_at = int(time.time())
        return self._end(response.status)

    def _progress(self) -> None:
        if not self._in_progress:
            self._in_progress = True
            self.response.status = "in_progress"
            self._lifecycle("in_progress")

    # ---- tools that the server runs, between turns of the model

    def serve(self, tools: Mapping[str, ServedTool]) -> None:
        """The server makes the calls of these functions from now on."""
        self._served = tools

    @property
    def output_tokens(self) -> int:
        """Output tokens of all turns but a compaction's."""
        return self._output - self._summary

    @property
    def compacts(self) -> bool:
        """Whether text is a summary now."""
        return self._compacts

    def end_compaction(self) -> None:
        """What follows is an answer."""
        self._compacts = False
        self._summary = self._output
        self._items.end_compaction()

    @property
    def calls(self) -> Sequence[McpCallItem]:
        """Calls that wait for :meth:`end_call`."""
        return self._items.calls

    @property
    def asks(self) -> bool:
        """Whether the last turn called a tool that the client runs or must approve."""
        return self._asks

    def begin_list(self, label: str) -> list[bytes]:
        self._progress()
        self._items.open(McpListToolsItem(self._new_id("mcpl"), label))
        return self._events.taken()

    def end_list(self, tools: list[dict[str, Any]], error: str | None = None) -> list[bytes]:
        self._items.end_list(tools, error)
        return self._events.taken()

    def begin_call(self, asked: Item) -> list[bytes]:
        """One that the client has approved, of the request for that."""
        self._progress()
        label, name = asked["server_label"], asked["name"]
        self._items.open(McpCallItem(self._new_id("mcp"), label, name, approval_request_id=asked["id"]))
        self._items.add_arguments(asked["arguments"])
        self._items.close("completed")
        return self._events.taken()

    def end_call(self, item: McpCallItem, output: str | None, error: dict[str, Any] | None = None) -> list[bytes]:
        """One of :attr:`calls` has been answered."""
        self._items.end_call(item, output, error)
        return self._events.taken()

    # ---- its end

    def leave_empty(self) -> list[bytes]:
        """Ends it as completed without asking the model."""
        self._lifecycle("in_progress")
        self.response.status = "completed"
        self.response.completed_at = int(time.time())
        return self._end("completed")

    @property
    def may_stop(self) -> bool:
        """Whether the turn has begun and contains no call, so that :meth:`stop` leaves no call without output."""
        return self.finish is None and not (self._compacts or self._asks or self._items.in_call or self._items.calls)

    def stop(self) -> list[bytes]:
        """Ends it early, as it was steered."""
        self._items.close("incomplete")
        self.response.status = "incomplete"
        self.response.incomplete_details = IncompleteDetails("steered")
        return self._end("incomplete")

    def fail(self, why: ResponseFailure) -> list[bytes]:
        self._items.close("incomplete")
        self._items.drop_calls()
        self.response.status = "failed"
        self.response.error = why
        return self._end("failed")

    def cancel(self) -> list[bytes]:
        """There is no event for it; the one that ends the stream carries the status."""
        self._items.close("incomplete")
        self._items.drop_calls()
        self.response.status = "cancelled"
        return self._end("incomplete")

    def _end(self, kind: str) -> list[bytes]:
        if self._turns:
            self.response.usage = ResponseUsage.of(self._given, self._cached, self._output, self._reasoned)
        self._lifecycle(kind)
        return self._events.taken()

    def _lifecycle(self, kind: str) -> None:
        self._events.emit(f"response.{kind}", response=self.response)

    # ---- deltas

    def _text(self, delta: Text) -> None:
        self._output += len(delta.tokens)
        logprobs: Sequence[TokenLogprob] = ()
        if self._top is not None and delta.tokens and self._names is not None:
            logprobs = chat_logprobs(delta.logprobs or (), self._names, self._top).content
        self._items.add_text(delta.text, logprobs)

    def _reasoning(self, delta: Reasoning) -> None:
        self._output += len(delta.tokens)
        self._reasoned += len(delta.tokens)
        self._items.add_reasoning(delta.text)

    def _other(self, delta: Delta) -> None:
        match delta:
            case PromptProcessed():
                self._cached += delta.cached_tokens
            case ToolCallStart():
                self._open_call(delta)
            case ToolCallArguments():
                self._items.add_arguments(delta.text)
            case ToolCallEnd():
                self._items.close("completed")
            case Finish():
                self.finish = delta
                whole = delta.reason == "stop" or (self._compacts and delta.reason == "length")
                self._items.close("completed" if whole else "incomplete")
            case _:
                raise AssertionError(f"no event is known for {type(delta).__name__}")

    def _open_call(self, delta: ToolCallStart) -> None:
        served = self._served.get(delta.name)
        if served is not None:
            self._open_served(served)
            return
        self._asks = True
        call_id = delta.id or self._new_id("call")
        tool = self._tools.get(delta.name)
        name, namespace = (delta.name, UNSET) if tool is None else (tool.name, tool.namespace or UNSET)
        if tool is not None and tool.kind == "custom":
            self._items.open(CustomToolCallItem(self._new_id("ctc"), call_id, name, namespace=namespace))
        elif tool is not None and tool.kind in client_tools.CALLS:
            self._items.open_client_call(ClientCall(client_tools.CALLS[tool.kind], call_id, name))
        else:
            self._items.open(FunctionCallItem(self._new_id("fc"), call_id, name, namespace=namespace))

    def _open_served(self, tool: ServedTool) -> None:
        if tool.approval:
            self._asks = True
            self._items.open(McpApprovalRequestItem(self._new_id("mcpr"), tool.server_label, tool.name))
        else:
            make = _CALLS[tool.kind]
            self._items.open(make(self._new_id(PREFIXES[tool.kind]), tool.server_label, tool.name))
