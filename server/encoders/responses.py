"""Deltas as a response of the Responses API: the object, and the events that lead to it.

There is one way: whoever wants no stream lets the events go and takes the object. An event is its JSON, which begins
with its ``type``; :func:`frame` makes a server-sent event of it.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from stentor.protocols.deltas import (
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
from stentor.protocols.openai.errors import BadRequest
from stentor.protocols.openai.responses.objects import (
    CustomToolCallItem,
    FunctionCallItem,
    IncompleteDetails,
    ItemStatus,
    McpApprovalRequestItem,
    McpCallItem,
    McpListToolsItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
)

from ..errors import describe, generation_error
from ..observe.request import note_error
from ..sse import DONE
from .logprobs import TokenNames, chat_logprobs

encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode

_KIND_BEGINS: Final = len(b'{"type":"')


def kind_of(event: bytes) -> bytes:
    """Its ``type``."""
    return event[_KIND_BEGINS : event.index(b'"', _KIND_BEGINS)]


def frame(event: bytes) -> bytes:
    """The server-sent event."""
    return b"event: " + kind_of(event) + b"\ndata: " + event + b"\n\n"


@dataclass(frozen=True)
class ServedTool:
    """A function that the model is offered, and that the server has run by another one."""

    server_label: str
    name: str
    """The other server's own."""
    approval: bool
    """The client is asked first."""


class ResponseEncoder:
    """Turns the deltas of one response into its events, and keeps the object that they come to.

    A response may take several turns of the model: each is opened with :meth:`begin_turn`, its batches go to
    :meth:`take`, and what ended it is :attr:`finish`. Every method returns the events that it makes, to be sent in
    order. With the same ``new_id`` the same batches make the same events.
    """

    def __init__(
        self,
        response: ResponseObject,
        new_id: Callable[[str], str],
        *,
        top_logprobs: int | None = None,
        customs: frozenset[str] = frozenset(),
        seal: Callable[[str], str] | None = None,
    ) -> None:
        """``top_logprobs``: None wants no log-probabilities. ``customs``: names of tools whose input is free text.
        ``seal`` encrypts reasoning, where that is wanted."""
        self.response: Final = response
        self.finish: Finish | None = None
        self._new_id = new_id
        self._top = top_logprobs
        self._customs = customs
        self._seal = seal
        self._sequence = 0
        self._events: list[bytes] = []
        self._names: TokenNames | None = None
        self._item: OutputItem | None = None
        self._pieces: list[str] = []
        self._delta_head = b""
        self._logprobs: list[TokenLogprob] = []
        """Of tokens whose text is held back, until it is known what it belongs to."""
        self._served: Mapping[str, ServedTool] = {}
        self._calls: list[McpCallItem] = []
        """Calls that the model has written to their end, and that nobody has answered."""
        self._asks = False
        self._in_progress = False
        self._in_call = False
        """The item that was opened last is a call, whose tokens come without text, also behind its end."""
        self._turns = 0
        self._given = self._cached = self._output = self._reasoned = 0

    # ---- the life of a response

    def begin(self) -> list[bytes]:
        if self.response.background:
            self.response.status = "queued"
        self._lifecycle("created")
        if self.response.background:
            self._lifecycle("queued")
        return self._taken()

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
        return self._taken()

    def complete(self) -> list[bytes]:
        """Ends the response as its last turn did."""
        if self.finish is None or self.finish.reason not in ("stop", "length"):
            error = generation_error(self.finish)
            code: Literal["invalid_prompt", "server_error"]
            code = "invalid_prompt" if isinstance(error, BadRequest) else "server_error"
            return self.fail(ResponseFailure(code, describe(error)[1].message))
        if not self.response.output and self.finish.reason == "stop":
            self._open_message()
            self._close("completed")
        self._drop_calls()
        response = self.response
        if self.finish.reason == "length":
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
        """Calls of these functions are the server's to have made from now on."""
        self._served = tools

    @property
    def output_tokens(self) -> int:
        """Of all turns."""
        return self._output

    @property
    def calls(self) -> Sequence[McpCallItem]:
        """Those that wait for :meth:`end_call`."""
        return tuple(self._calls)

    @property
    def asks(self) -> bool:
        """The last turn called what is the client's to run or to approve."""
        return self._asks

    def begin_list(self, label: str) -> tuple[McpListToolsItem, list[bytes]]:
        self._progress()
        item = McpListToolsItem(self._new_id("mcpl"), label)
        self._open(item)
        self._emit("response.mcp_list_tools.in_progress", **self._place)
        return item, self._taken()

    def end_list(self, tools: list[dict[str, Any]], error: str | None = None) -> list[bytes]:
        item = self._item
        assert isinstance(item, McpListToolsItem)
        item.tools, item.error = tools, error
        self._emit(f"response.mcp_list_tools.{'completed' if error is None else 'failed'}", **self._place)
        self._close("completed")
        return self._taken()

    def begin_call(self, asked: McpApprovalRequestItem) -> tuple[McpCallItem, list[bytes]]:
        """One that the client has approved."""
        self._progress()
        item = McpCallItem(self._new_id("mcp"), asked.server_label, asked.name, approval_request_id=asked.id)
        self._open(item)
        self._emit("response.mcp_call.in_progress", **self._place)
        self._set_delta_head("response.mcp_call_arguments.delta")
        self._arguments(asked.arguments)
        self._close("completed")
        return item, self._taken()

    def end_call(self, item: McpCallItem, output: str | None, error: dict[str, Any] | None = None) -> list[bytes]:
        """One of :attr:`calls` has been answered."""
        item.output, item.error = output, error
        item.status = "completed" if error is None else "failed"
        place = self.response.output.index(item)
        self._emit(f"response.mcp_call.{item.status}", item_id=item.id, output_index=place)
        self._emit("response.output_item.done", output_index=place, item=item)
        self._calls.remove(item)
        return self._taken()

    def _drop_calls(self) -> None:
        for item in self._calls:
            item.status = "incomplete"
            self._emit("response.output_item.done", output_index=self.response.output.index(item), item=item)
        self._calls.clear()

    # ---- its end

    def leave_empty(self) -> list[bytes]:
        """Ends it as completed without asking the model."""
        self._lifecycle("in_progress")
        self.response.status = "completed"
        self.response.completed_at = int(time.time())
        return self._end("completed")

    def fail(self, why: ResponseFailure) -> list[bytes]:
        self._close("incomplete")
        self._drop_calls()
        self.response.status = "failed"
        self.response.error = why
        return self._end("failed")

    def cancel(self) -> list[bytes]:
        """There is no event for it; the one that ends the stream carries the status."""
        self._close("incomplete")
        self._drop_calls()
        self.response.status = "cancelled"
        return self._end("incomplete")

    def _end(self, kind: str) -> list[bytes]:
        if self._turns:
            self.response.usage = ResponseUsage.of(self._given, self._cached, self._output, self._reasoned)
        self._lifecycle(kind)
        return self._taken()

    def _lifecycle(self, kind: str) -> None:
        self._emit(f"response.{kind}", response=self.response)

    # ---- deltas

    def _text(self, delta: Text) -> None:
        self._output += len(delta.tokens)
        if self._top is not None and delta.tokens and self._names is not None:
            self._logprobs += chat_logprobs(delta.logprobs or (), self._names, self._top).content
        if not delta.text:
            if self._in_call:
                self._logprobs.clear()
            return
        if not isinstance(self._item, MessageItem):
            self._open_message()
        self._pieces.append(delta.text)
        logprobs = b"[]"
        if self._logprobs:
            logprobs = encode([_without_bytes(one) for one in self._logprobs])
            assert isinstance(self._item, MessageItem)
            self._item.content[0].logprobs += self._logprobs
            self._logprobs.clear()
        self._emit_delta(delta.text, b',"logprobs":' + logprobs)

    def _reasoning(self, delta: Reasoning) -> None:
        self._output += len(delta.tokens)
        self._reasoned += len(delta.tokens)
        if not delta.text:
            return
        if not isinstance(self._item, ReasoningItem):
            self._open(ReasoningItem(self._new_id("rs"), []))
            self._open_part(ReasoningText())
            self._set_delta_head("response.reasoning_text.delta", b',"content_index":0')
        self._pieces.append(delta.text)
        self._emit_delta(delta.text)

    def _other(self, delta: Delta) -> None:
        match delta:
            case PromptProcessed():
                self._cached += delta.cached_tokens
            case ToolCallStart():
                self._open_call(delta)
            case ToolCallArguments():
                self._arguments(delta.text)
            case ToolCallEnd():
                self._close("completed")
            case Finish():
                self.finish = delta
                self._close("completed" if delta.reason == "stop" else "incomplete")
            case _:
                raise AssertionError(f"no event is known for {type(delta).__name__}")

    def _open_call(self, delta: ToolCallStart) -> None:
        served = self._served.get(delta.name)
        if served is not None:
            self._open_served(served)
            return
        self._asks = True
        call_id = delta.id or self._new_id("call")
        if delta.name in self._customs:
            self._open(CustomToolCallItem(self._new_id("ctc"), call_id, delta.name))
            self._set_delta_head("response.custom_tool_call_input.delta")
        else:
            self._open(FunctionCallItem(self._new_id("fc"), call_id, delta.name))
            self._set_delta_head("response.function_call_arguments.delta")

    def _open_served(self, tool: ServedTool) -> None:
        if tool.approval:
            self._asks = True
            self._open(McpApprovalRequestItem(self._new_id("mcpr"), tool.server_label, tool.name))
            return
        self._open(McpCallItem(self._new_id("mcp"), tool.server_label, tool.name))
        self._emit("response.mcp_call.in_progress", **self._place)
        self._set_delta_head("response.mcp_call_arguments.delta")

    def _arguments(self, text: str) -> None:
        if not text:
            return
        self._pieces.append(text)
        if isinstance(self._item, FunctionCallItem | CustomToolCallItem | McpCallItem):
            self._emit_delta(text)

    # ---- items

    def _open_message(self) -> None:
        self._open(MessageItem(self._new_id("msg"), []))
        self._open_part(OutputText())
        self._set_delta_head("response.output_text.delta", b',"content_index":0')

    def _open(self, item: OutputItem) -> None:
        self._close("completed")
        self._in_call = isinstance(item, FunctionCallItem | CustomToolCallItem | McpCallItem | McpApprovalRequestItem)
        if self._in_call:
            self._logprobs.clear()
        self._item = item
        self._pieces = []
        if isinstance(item, McpApprovalRequestItem):
            return  # it has no events of its own, and appears once it is whole
        self._emit("response.output_item.added", output_index=len(self.response.output), item=item)

    def _open_part(self, part: OutputText | ReasoningText) -> None:
        self._emit("response.content_part.added", **self._place, content_index=0, part=part)
        assert isinstance(self._item, MessageItem | ReasoningItem)
        self._item.content.append(part)  # type: ignore[arg-type]  # each has parts of its own kind

    def _close(self, status: ItemStatus) -> None:
        """Ends the item that is open, if any."""
        item, text = self._item, "".join(self._pieces)
        if item is None:
            return
        self._pieces = []
        match item:
            case MessageItem():
                self._close_message(item, text)
            case ReasoningItem():
                item.content[0].text = text
                self._emit("response.reasoning_text.done", **self._place, content_index=0, text=text)
                self._emit("response.content_part.done", **self._place, content_index=0, part=item.content[0])
                item.encrypted_content = None if self._seal is None else self._seal(text)
            case FunctionCallItem():
                item.arguments = text
                self._emit("response.function_call_arguments.done", **self._place, arguments=text)
            case CustomToolCallItem():
                item.input = text
                self._emit("response.custom_tool_call_input.done", **self._place, input=item.input)
            case McpCallItem():
                item.arguments = text
                self._emit("response.mcp_call_arguments.done", **self._place, arguments=text)
                if status == "completed":
                    self._calls.append(item)  # its status is that of the call itself
                    self.response.output.append(item)
                    self._item = None
                    return
            case McpApprovalRequestItem():
                item.arguments = text
                if status != "completed":
                    self._item = None  # nobody could approve half of a call
                    return
                self._emit("response.output_item.added", output_index=len(self.response.output), item=item)
        if isinstance(item, MessageItem | ReasoningItem | FunctionCallItem | McpCallItem):
            item.status = status
        self._emit("response.output_item.done", output_index=len(self.response.output), item=item)
        self.response.output.append(item)
        self._item = None

    def _close_message(self, item: MessageItem, text: str) -> None:
        part = item.content[0]
        part.text = text
        part.logprobs += self._logprobs
        self._logprobs.clear()
        logprobs = [_without_bytes(one) for one in part.logprobs]
        self._emit("response.output_text.done", **self._place, content_index=0, text=text, logprobs=logprobs)
        self._emit("response.content_part.done", **self._place, content_index=0, part=part)

    # ---- events

    @property
    def _place(self) -> dict[str, Any]:
        assert self._item is not None
        return {"item_id": self._item.id, "output_index": len(self.response.output)}

    def _set_delta_head(self, kind: str, more: bytes = b"") -> None:
        self._delta_head = encode({"type": kind, **self._place})[:-1] + more + b',"delta":'

    def _emit_delta(self, text: str, more: bytes = b"") -> None:
        end = b',"sequence_number":%d}' % self._sequence
        self._events.append(self._delta_head + encode(text) + more + end)
        self._sequence += 1

    def _emit(self, kind: str, **fields: Any) -> None:
        self._events.append(encode({"type": kind, **fields, "sequence_number": self._sequence}))
        self._sequence += 1

    def _taken(self) -> list[bytes]:
        events, self._events = self._events, []
        return events


class ResponseFrames:
    """Events as frames, one after the other; what fails before the first of them has a status of its own."""

    failed = False

    def __init__(self, first: int = 0) -> None:
        """``first``: the sequence number of the event that comes first."""
        self._next = first

    def encode(self, batch: list[bytes]) -> bytes:
        self._next += len(batch)
        return b"".join(map(frame, batch))

    def error(self, error: Exception) -> bytes:
        """What ends a stream whose response has not ended."""
        body = describe(error)[1]
        note_error(body.code or body.type)
        fields = {"code": body.code, "message": body.message, "param": body.param, "sequence_number": self._next}
        return frame(encode({"type": "error", **fields}))

    def end(self) -> bytes:
        return DONE


def _without_bytes(entry: TokenLogprob) -> dict[str, Any]:
    """As events have it."""
    alternatives = [{"token": other.token, "logprob": other.logprob} for other in entry.top_logprobs]
    return {"token": entry.token, "logprob": entry.logprob, "top_logprobs": alternatives}
