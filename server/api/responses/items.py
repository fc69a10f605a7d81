"""Writes the output items of a response, to its object and as events."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from stentor.protocols.openai.chat import TokenLogprob
from stentor.protocols.openai.responses import client_tools
from stentor.protocols.openai.responses.client_tools import ClientCallItem, ShellCallItem
from stentor.protocols.openai.responses.items import PREFIXES
from stentor.protocols.openai.responses.objects import (
    CodeInterpreterCallItem,
    CompactionItem,
    CustomToolCallItem,
    FunctionCallItem,
    ItemStatus,
    McpApprovalRequestItem,
    McpCallItem,
    McpListToolsItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    WebSearchCallItem,
)

from ...http.whole_answer import AnswerBudget, JsonList
from .events import EventWriter


class ClientCall(NamedTuple):
    """A call of a tool that OpenAI defines and the client runs: it becomes an item once its arguments are complete."""

    kind: client_tools.ClientCall
    call_id: str
    name: str
    """Name of its function."""


class ItemWriter:
    """Opens, fills and closes the items of one response; at most one is open at a time."""

    def __init__(
        self,
        output: list[OutputItem],
        events: EventWriter,
        new_id: Callable[[str], str],
        seal: Callable[[str], str] | None,
        budget: AnswerBudget,
        compact: Callable[[str], str] | None = None,
    ) -> None:
        """Closed items are added to ``output``. ``seal`` encrypts reasoning, if requested. ``compact``: all text is a
        summary, of which it makes the content of a compaction item.

        ``budget`` counts log-probabilities; many methods raise its errors.
        """
        self._output: Final = output
        self._events: Final = events
        self._new_id = new_id
        self._seal = seal
        self._compact = compact
        self._item: OutputItem | None = None
        self._client_call: ClientCall | None = None
        """Is open instead of an item."""
        self._pieces: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        """Log-probabilities of tokens whose text is held back, until their item is known."""
        self._shown = JsonList(budget)
        """Log-probabilities of the message that is open, as its object has them."""
        self._event_logprobs = JsonList(budget)
        """The same in the form of events."""
        self._in_call = False
        """Whether the last opened item is a call: its tokens come without text, also after its end."""
        self._calls: list[McpCallItem] = []

    @property
    def calls(self) -> Sequence[McpCallItem]:
        """Complete calls of the model without a result."""
        return tuple(self._calls)

    @property
    def in_call(self) -> bool:
        """Whether the item that was opened last is a call."""
        return self._in_call

    # ---- what the open item is made of

    def add_text(self, text: str, logprobs: Sequence[TokenLogprob]) -> None:
        """Adds text to the message, which is opened if needed; tokens without text belong to later text."""
        self._logprobs += logprobs
        if not text:
            if self._in_call:
                self._logprobs.clear()
            return
        if not isinstance(self._item, MessageItem | CompactionItem):
            self.open_message()
        self._pieces.append(text)
        if isinstance(self._item, CompactionItem):
            self._events.emit("response.compaction.compacting", **self._place)
            return
        written = self._write_logprobs() if self._logprobs else b"[]"
        self._events.emit_delta(text, b',"logprobs":' + written)

    def add_reasoning(self, text: str) -> None:
        """Opened where none is."""
        if not text or self._compact is not None:
            return
        if not isinstance(self._item, ReasoningItem):
            self.open(ReasoningItem(self._new_id("rs"), []))
        self._pieces.append(text)
        self._events.emit_delta(text)

    def add_arguments(self, text: str) -> None:
        """Adds arguments to the open call."""
        if not text:
            return
        self._pieces.append(text)
        if isinstance(self._item, WebSearchCallItem | CodeInterpreterCallItem):
            return  # its item is made of the complete arguments
        if isinstance(self._item, FunctionCallItem | CustomToolCallItem | McpCallItem):
            self._events.emit_delta(text)

    # ---- its beginning

    def open_message(self) -> None:
        """Or what takes the text in its place."""
        if self._compact is None:
            self.open(MessageItem(self._new_id("msg"), []))
        else:
            self.open(CompactionItem(self._new_id("cmp")))

    def open_client_call(self, call: ClientCall) -> None:
        """Closes the open item and begins a call."""
        self._logprobs.clear()  # of tokens that wrote the call's name, which are no part of a message
        self.close("completed")
        self._in_call = True
        self._pieces = []
        self._client_call = call

    def open(self, item: OutputItem) -> None:
        """Closes the open item and opens another."""
        in_call = isinstance(item, FunctionCallItem | CustomToolCallItem | McpCallItem | McpApprovalRequestItem)
        if in_call:
            self._logprobs.clear()  # as for a client's call
        self.close("completed")
        self._in_call = in_call
        self._item = item
        self._pieces = []
        if isinstance(item, McpApprovalRequestItem):
            return  # it has no events of its own, and appears once it is whole
        emit, begin_deltas, place = self._events.emit, self._events.begin_deltas, self._place
        emit("response.output_item.added", output_index=len(self._output), item=item)
        match item:
            case MessageItem():
                text = OutputText()
                emit("response.content_part.added", **place, content_index=0, part=text)
                item.content.append(text)
                begin_deltas("response.output_text.delta", **place, content_index=0)
            case ReasoningItem():
                thought = ReasoningText()
                emit("response.content_part.added", **place, content_index=0, part=thought)
                item.content.append(thought)
                begin_deltas("response.reasoning_text.delta", **place, content_index=0)
            case FunctionCallItem():
                begin_deltas("response.function_call_arguments.delta", **place)
            case CustomToolCallItem():
                begin_deltas("response.custom_tool_call_input.delta", **place)
            case McpCallItem() | McpListToolsItem():
                emit(f"response.{_type_of(item)}.in_progress", **place)
                if type(item) is McpCallItem:
                    begin_deltas("response.mcp_call_arguments.delta", **place)

    # ---- its end

    def close(self, status: ItemStatus) -> None:
        """Ends the item that is open, if any."""
        if self._client_call is not None:
            self._close_client_call(self._client_call, "".join(self._pieces), status)
            return
        item, text = self._item, "".join(self._pieces)
        if item is None:
            return
        self._pieces = []
        emit = self._events.emit
        match item:
            case MessageItem():
                if status == "incomplete":
                    self._logprobs.clear()  # of a call that was cut off before its name
                self._close_message(item, text)
            case ReasoningItem():
                item.content[0].text = text
                emit("response.reasoning_text.done", **self._place, content_index=0, text=text)
                emit("response.content_part.done", **self._place, content_index=0, part=item.content[0])
                item.encrypted_content = None if self._seal is None else self._seal(text)
            case FunctionCallItem():
                item.arguments = text
                emit("response.function_call_arguments.done", **self._place, name=item.name, arguments=text)
            case CustomToolCallItem():
                item.input = text
                emit("response.custom_tool_call_input.done", **self._place, input=item.input)
            case McpCallItem():
                item.arguments = text
                self._close_arguments(item, whole=status == "completed")
                if status == "completed":
                    self._calls.append(item)  # its status is that of the call itself
                    self._output.append(item)
                    self._item = None
                    return
            case CompactionItem():
                if status != "completed" or self._compact is None:
                    self._item = None  # the conversation cannot go on from half a summary
                    return
                item.encrypted_content = self._compact(text.strip())
            case McpApprovalRequestItem():
                item.arguments = text
                if status != "completed":
                    self._item = None  # a truncated call cannot be approved
                    return
                emit("response.output_item.added", output_index=len(self._output), item=item)
        if isinstance(item, MessageItem | ReasoningItem | FunctionCallItem | McpCallItem):
            item.status = status
        elif isinstance(item, ClientCallItem):
            item.status = "completed"  # it was opened whole
        emit("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._item = None

    def _close_client_call(self, call: ClientCall, text: str, status: ItemStatus) -> None:
        """A truncated call, and one with arguments that do not match the schema, becomes a function call."""
        self._client_call = None
        made = None
        if status == "completed":
            made = client_tools.call_item(call.kind, self._new_id(PREFIXES[call.kind]), call.call_id, text)
        if made is None:
            self.open(FunctionCallItem(self._new_id("fc"), call.call_id, call.name))
            self.add_arguments(text)
        elif isinstance(made, ShellCallItem):
            commands, made.action.commands = made.action.commands, []
            self.open(made)
            for command in commands:
                self._add_command(made, command)
        else:
            self.open(made)
        self.close(status)

    def _add_command(self, item: ShellCallItem, command: str) -> None:
        emit, place = self._events.emit, {"output_index": len(self._output), "command_index": len(item.action.commands)}
        emit("response.shell_call_command.added", **place, command="")
        if command:
            emit("response.shell_call_command.delta", **place, delta=command)
        emit("response.shell_call_command.done", **place, command=command)
        item.action.commands.append(command)

    def _close_arguments(self, item: McpCallItem, *, whole: bool) -> None:
        emit, place = self._events.emit, self._place
        match item:
            case WebSearchCallItem():
                item.action = action_of(item.name, item.arguments)
                if whole:
                    emit("response.web_search_call.searching", **place)
            case CodeInterpreterCallItem():
                code = item.code = code_of(item.arguments)
                if code:
                    emit("response.code_interpreter_call_code.delta", **place, delta=code)
                emit("response.code_interpreter_call_code.done", **place, code=code)
                if whole:
                    emit("response.code_interpreter_call.interpreting", **place)
            case _:
                emit("response.mcp_call_arguments.done", **place, arguments=item.arguments)

    def _close_message(self, item: MessageItem, text: str) -> None:
        part = item.content[0]
        part.text = text
        self._write_logprobs()
        part.logprobs = self._shown.taken()
        written = self._event_logprobs.taken()
        self._events.emit("response.output_text.done", **self._place, content_index=0, text=text, logprobs=written)
        self._events.emit("response.content_part.done", **self._place, content_index=0, part=part)

    def _write_logprobs(self) -> bytes:
        """Moves held-back log-probabilities to the open message. Returns them in the form of events."""
        waiting = self._logprobs
        self._logprobs = []
        self._shown.extend(waiting)
        return self._event_logprobs.extend([_without_bytes(one) for one in waiting])

    def end_compaction(self) -> None:
        """Text is an answer from now on."""
        self._compact = None

    def end_list(self, tools: list[dict[str, Any]], error: str | None) -> None:
        """Closes the open list of tools."""
        item = self._item
        assert isinstance(item, McpListToolsItem)
        item.tools, item.error = tools, error
        self._events.emit(f"response.mcp_list_tools.{'completed' if error is None else 'failed'}", **self._place)
        self.close("completed")

    def end_call(self, item: McpCallItem, output: str | None, error: dict[str, Any] | None) -> None:
        """One of :attr:`calls` has been answered."""
        item.output, item.error = output, error
        item.status = "completed" if error is None else "failed"
        place = self._output.index(item)
        if isinstance(item, CodeInterpreterCallItem):
            item.outputs = None if output is None else [{"type": "logs", "logs": output}]
        if error is None or type(item) is McpCallItem:  # the status of another one says that it failed
            self._events.emit(f"response.{_type_of(item)}.{item.status}", item_id=item.id, output_index=place)
        self._events.emit("response.output_item.done", output_index=place, item=item)
        self._calls.remove(item)

    def drop_calls(self) -> None:
        """Drops calls that will get no output any more."""
        for item in self._calls:
            item.status = "incomplete"
            self._events.emit("response.output_item.done", output_index=self._output.index(item), item=item)
        self._calls.clear()

    @property
    def _place(self) -> dict[str, Any]:
        assert self._item is not None
        return {"item_id": self._item.id, "output_index": len(self._output)}


def _type_of(item: OutputItem) -> str:
    return str(item.__struct_config__.tag)


def items_of(output: Sequence[OutputItem], *, logprobs: bool = False) -> list[dict[str, Any]]:
    """Items as plain objects; with ``logprobs``, which are JSON already, those of messages too."""
    items: list[dict[str, Any]] = []
    for item in output:
        if not isinstance(item, MessageItem):
            items.append(msgspec.to_builtins(item))
            continue
        bare = [msgspec.structs.replace(part, logprobs=[]) for part in item.content]
        items.append(msgspec.to_builtins(msgspec.structs.replace(item, content=bare)))
        if logprobs:
            for part, shown in zip(item.content, items[-1]["content"], strict=True):
                shown["logprobs"] = part.logprobs
    return items


def _without_bytes(entry: TokenLogprob) -> dict[str, Any]:
    """The entry in the form of events."""
    alternatives = [{"token": other.token, "logprob": other.logprob} for other in entry.top_logprobs]
    return {"token": entry.token, "logprob": entry.logprob, "top_logprobs": alternatives}


def action_of(name: str, arguments: str) -> dict[str, Any]:
    """Action of a call of gpt-oss's ``browser``: ``search``, ``open`` or ``find``; any other tool counts as a
    search."""
    given = _object(arguments)
    match name:
        case "open":
            url = given.get("id", given.get("url"))
            return {"type": "open_page", "url": url if isinstance(url, str) else None}
        case "find":
            return {"type": "find_in_page", "pattern": _text(given, "pattern"), "url": _text(given, "url")}
    query = _text(given, "query")
    return {"type": "search", "query": query, "queries": [query]}


def code_of(arguments: str) -> str:
    """Code of a ``python`` tool's call: its argument ``code``, or else all arguments."""
    code = _object(arguments).get("code")
    return code if isinstance(code, str) else arguments


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    return value if isinstance(value, str) else ""


def _object(arguments: str) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}
