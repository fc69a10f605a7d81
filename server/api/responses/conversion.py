"""Items and fields of the Responses API as a request for a chat completion."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.chat import ChatRequest, chat_of
from stentor.protocols.openai.media_parts import FIELD
from stentor.protocols.openai.responses import client_tools
from stentor.protocols.openai.responses.items import CALLS, CLIENT_CALLS, CLIENT_OUTPUTS, MEDIA_PARTS, Item
from stentor.protocols.openai.responses.request import MOVED, ContextFields, ResponseRequest, TextFormat
from stentor.protocols.openai.responses.tools import chat_choice, chat_tools, client_functions, function_name
from stentor.protocols.openai.sampling import SamplingFields
from stentor.protocols.openai.tools import CUSTOM_INPUT

from ...tools.errors import text_of as error_text
from ...tools.tools import function_name as served_name
from .compacted import Compacted, Unseal, kept_of, opened

Message = dict[str, Any]
_SAME: Final = [
    name
    for name in SamplingFields.__struct_fields__
    if name in ResponseRequest.__struct_fields__ and name not in ("stream", "stream_options", *MOVED)
]
"""Fields that mean the same in both."""


NO_FIELDS: Final[Mapping[str, str]] = {}
COMPACTED: Final = "A summary of the conversation so far, whose beginning was left out:\n\n"


def chat_request(
    request: ContextFields, items: Sequence[Item], unseal: Unseal, fields_of: Mapping[str, str] = NO_FIELDS
) -> ChatRequest:
    """``items`` are the whole conversation, without references. Fields must have been checked. ``fields_of`` says by
    ids of items which field of the request they are. Raises BadRequest."""
    messages = messages_of(items, unseal, fields_of)
    if request.instructions is not None:
        messages.insert(0, {"role": "system", "content": request.instructions})
    fields: dict[str, Any] = {"model": request.model, "messages": messages}
    if tools := chat_tools(request.tools or []):
        fields["tools"] = tools
        fields["tool_choice"] = chat_choice(request.tool_choice, request.tools or [])
        fields["parallel_tool_calls"] = request.parallel_tool_calls
    if request.reasoning is not None:
        fields["reasoning_effort"] = request.reasoning.effort
    for name in ("chat_template_kwargs", "mm_processor_kwargs", "media_io_kwargs"):
        if (given := getattr(request, name)) is not None:
            fields[name] = given
    if request.text is not None and request.text.format is not None:
        fields["response_format"] = _response_format(request.text.format)
    if isinstance(request, ResponseRequest):
        fields |= {name: getattr(request, name) for name in _SAME}
        fields["max_completion_tokens"] = request.max_output_tokens
        if request.wants_logprobs:
            fields["logprobs"] = True
            fields["top_logprobs"] = request.top_logprobs or 0
    return chat_of(fields)


def _response_format(form: TextFormat) -> dict[str, Any]:
    if form.type != "json_schema":
        return {"type": form.type}
    schema = {"name": form.name, "schema": form.schema, "strict": form.strict, "description": form.description}
    kept = {name: value for name, value in schema.items() if value is not None}
    return {"type": "json_schema", "json_schema": kept}


def messages_of(items: Sequence[Item], unseal: Unseal, fields_of: Mapping[str, str] = NO_FIELDS) -> list[Message]:
    """Converts items to messages; one answer of the model (reasoning, text, calls in a row) becomes one assistant
    message. Raises BadRequest for the output of a call that is not in front of it."""
    messages: list[Message] = []
    names: dict[str, str] = {}
    call_ids: dict[str, str] = {}
    """Call ids of local shell calls, by item id: their outputs may name either."""
    asked: dict[str, Item] = {}
    summarised = False
    """Whether a summary stands for earlier items, so that a call may be in it."""
    for item in items:
        if item["type"] == "mcp_approval_request":
            asked[item["id"]] = item
        elif item["type"] == "mcp_approval_response":
            _refuse(messages, asked.get(item["approval_request_id"]), item)
            continue
        elif item["type"] in CALLS:
            _add_call(messages, item, _outcome(item))
            continue
        if (said := _of_assistant(item, unseal)) is not None:
            if said == {"reasoning_content": ""}:
                continue  # other servers' reasoning without a summary
            last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
            if last is None or not _joined(last, said):
                messages.append({"role": "assistant", **said})
            for call in said.get("tool_calls", ()):
                names[call["id"]] = call["function"]["name"]
                if item["type"] == "local_shell_call":
                    call_ids[item["id"]] = call["id"]
            continue
        match item["type"]:
            case "message":
                field = _field(item, "content", fields_of)
                messages.append({"role": item["role"], "content": _content(item["content"], field)})
            case "tool_search_output" | "tool_search_call" if item["call_id"] is None:
                pass  # a server's: the model has the tools that were found, and did not ask for them here
            case kind if kind in CLIENT_OUTPUTS:
                call_id: str = item["id"] if kind == "local_shell_call_output" else item["call_id"]
                call_id = call_ids.get(call_id, call_id)
                message: Message = {"role": "tool", "tool_call_id": call_id, "content": _output(item, fields_of)}
                if call_id in names:
                    message["name"] = names[call_id]
                elif not summarised:
                    field = _field(item, "call_id", fields_of) or "input"
                    raise BadRequest(f"`{field}`: no tool call found for {kind} with call_id {call_id[:80]}.", field)
                messages.append(message)
            case "compaction":
                summarised = True
                compacted = opened(item, unseal)
                users: list[Message] = [{"role": "user", "content": text} for text in compacted.said]
                place = len(users) - compacted.unanswered
                summary: Message = {"role": "developer", "content": COMPACTED + compacted.summary}
                messages += [*users[:place], summary, *users[place:]]
    return messages


def compacted_of(items: Sequence[Item], unseal: Unseal, *, whole: bool) -> Compacted:
    """What a compaction item of these holds, without the summary; also what earlier compactions held."""
    messages = messages_of(items, unseal)
    said = [text_of(message["content"]) for message in messages if message["role"] == "user"]
    unanswered = bool(messages) and messages[-1]["role"] == "user"
    return Compacted(said, "", kept_of(items), unanswered, whole)


def _add_call(messages: list[Message], item: Item, outcome: str) -> None:
    """Adds a call that the server ran, with its result."""
    name = served_name(item["server_label"], item["name"])
    said: Message = {"tool_calls": [_call({"call_id": item["id"]}, name, item["arguments"])]}
    if not messages or messages[-1]["role"] != "assistant" or not _joined(messages[-1], said):
        messages.append({"role": "assistant", **said})
    messages.append({"role": "tool", "tool_call_id": item["id"], "name": name, "content": outcome})


def _outcome(item: Item) -> str:
    if item.get("error"):
        return f"Error: {error_text(item['error'])}"
    if item.get("output") is not None:
        return str(item["output"])
    return "Error: the call was cut off before it was answered."


def _refuse(messages: list[Message], asked: Item | None, answer: Item) -> None:
    """Adds the refusal of a call that the client did not approve; an approved call is an item of its own."""
    if asked is None or answer["approve"]:
        return
    reason = f": {answer['reason']}" if answer.get("reason") else "."
    _add_call(messages, asked, f"Error: the user did not approve this call{reason}")


def _of_assistant(item: Item, unseal: Unseal) -> Message | None:
    match item["type"]:
        case "message" if item["role"] == "assistant":
            return {"content": "".join(part.get("text", part.get("refusal", "")) for part in item["content"])}
        case "reasoning":
            return {"reasoning_content": _thought(item, unseal)}
        case "function_call":
            return {"tool_calls": [_call(item, _called(item), item["arguments"])]}
        case "custom_tool_call":
            arguments = msgspec.json.encode({CUSTOM_INPUT: item["input"]}).decode()
            return {"tool_calls": [_call(item, _called(item), arguments)]}
        case kind if kind in CLIENT_CALLS and item["call_id"] is not None:
            return {"tool_calls": [_call(item, *client_tools.function_of(item))]}
        case _:
            return None


def _joined(last: Message, said: Message) -> bool:
    """Whether the next message was part of the same answer, and has been joined to it."""
    if "tool_calls" in said:
        last.setdefault("tool_calls", []).extend(said["tool_calls"])
        return True
    if "reasoning_content" in said:
        if "content" in last or "tool_calls" in last:
            return False
        last["reasoning_content"] = last.get("reasoning_content", "") + said["reasoning_content"]
        return True
    if "content" in last or "tool_calls" in last:
        return False
    last["content"] = said["content"]
    return True


def _called(item: Item) -> str:
    return function_name(item["name"], item.get("namespace"))


def _call(item: Item, name: str, arguments: str) -> Message:
    return {"id": item["call_id"], "type": "function", "function": {"name": name, "arguments": arguments}}


def _output(item: Item, fields_of: Mapping[str, str]) -> str | list[dict[str, Any]]:
    match item["type"]:
        case "function_call_output" | "custom_tool_call_output":
            output = item["output"]
            if isinstance(output, list) and any(part["type"] in MEDIA_PARTS for part in output):
                return _content(output, _field(item, "output", fields_of))
            return text_of(output)
        case "tool_search_output":
            found = client_functions(item["tools"])
            described = [{"name": name, "description": one.tool.get("description")} for name, one in found.items()]
            return msgspec.json.encode(described).decode()
        case _:
            return client_tools.output_text(item)


def _thought(item: Item, unseal: Unseal) -> str:
    if item.get("content"):
        return "".join(part["text"] for part in item["content"])
    if item.get("encrypted_content"):
        return unseal(item["encrypted_content"])
    return "\n".join(part["text"] for part in item["summary"])


def text_of(content: str | list[dict[str, Any]]) -> str:
    """Text of all its parts, without media."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)


def _content(parts: list[dict[str, Any]], field: str) -> str | list[dict[str, Any]]:
    """The content in chat's form; ``field`` is the client's name of the list, "" if it is not part of the request."""
    if len(parts) == 1 and "text" in parts[0]:
        text: str = parts[0]["text"]
        return text
    return [_part(part, field and f"{field}[{index}]") for index, part in enumerate(parts)]


def _part(part: dict[str, Any], field: str) -> dict[str, Any]:
    match part["type"]:
        case "input_image":
            named = {"url": part["image_url"]} if part["file_id"] is None else {"file_id": part["file_id"]}
            read = {"type": "image_url", "image_url": {**named, "detail": part["detail"]}}
        case "input_audio":
            read = {"type": "input_audio", "input_audio": part["input_audio"]}
        case "input_file":
            read = {"type": "file", "file": {name: value for name, value in part.items() if name != "type"}}
        case _:
            return {"type": "text", "text": part["text"]}
    field = part.get(FIELD) or field
    return {**read, FIELD: field} if field else read


def _field(item: Item, name: str, fields_of: Mapping[str, str]) -> str:
    field = fields_of.get(item.get("id", ""))
    return "" if field is None else f"{field}.{name}"


def droppable(items: Sequence[Item]) -> Iterator[int]:
    """How many items may be left out at the beginning, in growing numbers: never a call without its output."""
    open_calls: set[str] = set()
    call_ids: dict[str, str] = {}
    for count, item in enumerate(items, start=1):
        if item["type"] in CLIENT_CALLS and item["call_id"] is not None:
            if item["type"] == "local_shell_call":
                call_ids[item["id"]] = item["call_id"]
            open_calls.add(item["call_id"])
        elif item["type"] in CLIENT_OUTPUTS:
            answered: str = item["id"] if item["type"] == "local_shell_call_output" else item["call_id"]
            open_calls.discard(call_ids.get(answered, answered))
        following = items[count] if count < len(items) else None
        if following is not None and not open_calls and item["type"] != "reasoning":
            yield count
