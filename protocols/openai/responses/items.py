"""Input items: checked, and normalised to the shape in which they are stored and listed."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from ...common.bounds import chars_at_most, items_at_most, total_chars_at_most
from ...common.decoding import converted
from ...common.errors import BadRequest, missing, wrong
from ...common.limits import MAX_NAME_LENGTH, Limits
from ..media_parts import check_audio, check_detail, check_file, check_named
from ..sampling import not_served
from . import client_tools
from .request import Input, Reasoning, TextConfig
from .tools import check_tools

Item = dict[str, Any]
NewId = Callable[[str], str]
"""From a prefix (``msg``) to a unique id."""

REFERENCE: Final = "item_reference"
TRIGGER: Final = "compaction_trigger"
PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "additional_tools": "at",
    "configuration_update": "cu",
    "reasoning": "rs",
    "compaction": "cmp",
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
    "web_search_call": "ws",
    "code_interpreter_call": "ci",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
}
HOSTED_CALLS: Final = ("web_search_call", "code_interpreter_call")
"""Calls of tools that are OpenAI's own elsewhere, and the operator's here; of others' nothing is known that matters."""
CALLS: Final = ("mcp_call", *HOSTED_CALLS)
"""Calls that a server made, with their results."""
CLIENT_CALLS: Final = ("function_call", "custom_tool_call", *client_tools.CALLS.values())
"""Calls that the client answers, with an item that comes behind."""
CLIENT_OUTPUTS: Final = (
    *(f"{call}_output" for call in CLIENT_CALLS if call != "tool_search_call"),
    "tool_search_output",
)
LOADING: Final = ("tool_search_output", "additional_tools")
"""Items with tools that the model has from then on."""
_LOADED: Final = ("function", "custom", "namespace")
"""Types of these tools."""
_ROLES: Final = ("user", "assistant", "system", "developer")
_STATUSES: Final = ("in_progress", "completed", "incomplete")
_TEXT_PARTS: Final = ("input_text", "output_text", "text")
MEDIA_PARTS: Final = ("input_image", "input_file", "input_audio")
"""Types of parts that are not text; they are stored as the client sent them."""


def read_items(given: str | list[dict[str, Any]], limits: Limits, new_id: NewId, field: str = "input") -> list[Item]:
    """The items of a request; references stay references. Raises BadRequest naming the field."""
    if isinstance(given, str):
        chars_at_most(given, limits.max_prompt_chars, field)
        part = {"type": "input_text", "text": given}
        return [{"id": new_id("msg"), "type": "message", "role": "user", "status": "completed", "content": [part]}]
    items_at_most(given, limits.max_messages, field)
    items = [_Reader(f"{field}[{index}]", item, new_id).read() for index, item in enumerate(given)]
    total_chars_at_most(sum(map(_chars, items)), limits.max_prompt_chars, field)
    return items


def without_trigger(given: Input) -> tuple[Input, bool]:
    """The input without a last item that asks for a compaction, and whether there was one."""
    if isinstance(given, list) and given and given[-1].get("type") == TRIGGER:
        return given[:-1], True
    return given, False


def _chars(value: Any) -> int:
    """Characters of texts; media are bounded as the body is."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict) and value.get("type") in MEDIA_PARTS:
        return 0
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_chars, values))


def read_media(part: dict[str, Any], where: str) -> dict[str, Any]:
    """One of :data:`MEDIA_PARTS`, with the fields that count. Raises BadRequest naming the field."""
    match part["type"]:
        case "input_image":
            check_named(part, where, "image_url")
            named = {"file_id": part.get("file_id"), "image_url": part.get("image_url")}
            return {"type": "input_image", "detail": part.get("detail") or "auto", **named}
        case "input_audio":
            check_audio(part.get("input_audio"), f"{where}.input_audio")
            given = part["input_audio"]
            return {"type": "input_audio", "input_audio": {"data": given["data"], "format": given["format"]}}
        case _:
            check_file(part, where)
            check_detail(part.get("detail"), f"{where}.detail")
            names = ("file_data", "file_id", "file_url", "filename", "detail")
            return {"type": "input_file", **{name: part[name] for name in names if part.get(name) is not None}}


class _Reader:
    """Reads one item."""

    def __init__(self, where: str, item: dict[str, Any], new_id: NewId) -> None:
        self._where = where
        self._item = item
        self._new_id = new_id

    def read(self) -> Item:
        kind = self._item.get("type")
        if kind is None:
            kind = "message" if "role" in self._item else REFERENCE
        if kind == REFERENCE:
            return {"type": REFERENCE, "id": self._text("id")}
        if not isinstance(kind, str):
            raise self._wrong("type", "must be a string")
        if kind == TRIGGER:
            raise self._wrong("type", f"`{TRIGGER}` may only be that of the last item of a response's `input`")
        if kind not in PREFIXES or (kind in HOSTED_CALLS and "server_label" not in self._item):
            where = f"{self._where}.type"
            raise not_served(where, f"`{where}`: an item of type `{kind[:40]}`")
        item: Item = {"id": self._id(kind), "type": kind, **self._fields(kind)}
        return item

    def _fields(self, kind: str) -> Item:
        match kind:
            case "message":
                return self._message()
            case "function_call":
                return {**self._called(), "arguments": self._text("arguments"), "status": self._status()}
            case "custom_tool_call":
                return {**self._called(), "input": self._text("input")}
            case "function_call_output" | "custom_tool_call_output":
                output = self._item.get("output")
                if not isinstance(output, str):
                    output = self._parts(output, "output", "input_text")
                return {"call_id": self._name("call_id"), "output": output, "status": self._status()}
            case "local_shell_call" | "shell_call":
                local = kind == "local_shell_call"
                action = self._struct("action", client_tools.LocalShellAction if local else client_tools.ShellAction)
                own = {} if local else {"environment": {"type": "local"}}
                return {"call_id": self._name("call_id"), "action": action, **own, "status": self._status()}
            case "local_shell_call_output":
                return {"output": self._text("output"), "status": self._status()}
            case "shell_call_output":
                return self._shell_output()
            case "apply_patch_call":
                operation = self._struct("operation", client_tools.PatchOperation)
                status = "in_progress" if self._item.get("status") == "in_progress" else "completed"
                return {"call_id": self._name("call_id"), "operation": operation, "status": status}
            case "apply_patch_call_output":
                return self._patch_output()
            case "tool_search_call":
                return {**self._searched(), "arguments": self._object("arguments", {})}
            case "tool_search_output":
                return {**self._searched(), "tools": self._loaded()}
            case "additional_tools":
                if self._item.get("role") != "developer":
                    raise self._wrong("role", "must be developer")
                return {"role": "developer", "tools": self._loaded()}
            case "configuration_update":
                return self._update()
            case "reasoning":
                return self._reasoning()
            case "mcp_list_tools":
                error = self._optional_text("error")
                return {"server_label": self._name("server_label"), "tools": self._listed(), "error": error}
            case "mcp_call":
                return self._mcp_call()
            case "web_search_call":
                return {**self._mcp_call(), "action": self._object("action", {"type": "search"})}
            case "code_interpreter_call":
                return {**self._mcp_call(), **self._interpreted()}
            case "mcp_approval_request":
                return self._mcp_named()
            case "mcp_approval_response":
                return self._mcp_approval()
            case _:
                return {"encrypted_content": self._text("encrypted_content")}

    def _called(self) -> Item:
        called = {"call_id": self._name("call_id"), "name": self._name("name")}
        return called if self._item.get("namespace") is None else {**called, "namespace": self._name("namespace")}

    def _struct(self, field: str, type: type[msgspec.Struct]) -> Item:
        if self._item.get(field) is None:
            raise missing(f"{self._where}.{field}")
        found: Item = msgspec.to_builtins(converted(self._item[field], type, f"{self._where}.{field}"))
        return found

    def _shell_output(self) -> Item:
        if self._item.get("output") is None:
            raise missing(f"{self._where}.output")
        output = converted(self._item["output"], list[client_tools.ShellOutput], f"{self._where}.output")
        most = self._item.get("max_output_length")
        if not isinstance(most, int | None) or isinstance(most, bool):
            raise self._wrong("max_output_length", "must be an integer")
        known = {"output": msgspec.to_builtins(output), "max_output_length": most}
        return {"call_id": self._name("call_id"), **known, "status": self._status()}

    def _patch_output(self) -> Item:
        status = self._item.get("status")
        if status not in ("completed", "failed"):
            raise self._wrong("status", "must be completed or failed")
        output = self._optional_text("output")
        return {"call_id": self._name("call_id"), "output": output, "status": status}

    def _searched(self) -> Item:
        """Common part of a search call and its output; a search run by the server may lack a call id."""
        execution = self._item.get("execution")
        if execution not in (None, "server", "client"):
            raise self._wrong("execution", "must be server or client")
        call = None if self._item.get("call_id") is None else self._name("call_id")
        return {"call_id": call, "execution": execution or "client", "status": self._status()}

    def _loaded(self) -> list[dict[str, Any]]:
        tools = self._item.get("tools")
        if not isinstance(tools, list):
            raise self._wrong("tools", "must be a list of tools")
        check_tools(tools, f"{self._where}.tools")
        for index, tool in enumerate(tools):
            if tool["type"] not in _LOADED:
                where = f"{self._where}.tools[{index}].type"
                raise not_served(where, f"`{where}`: a tool of type `{tool['type']}` in an item")
        return tools

    def _update(self) -> Item:
        """The settings that change, as fields of a request."""
        update: Item = {}
        if self._item.get("reasoning") is not None:
            effort = converted(self._item["reasoning"], Reasoning, f"{self._where}.reasoning").effort
            update["reasoning"] = {"effort": effort}
        if self._item.get("text") is not None:
            where = f"{self._where}.text"
            text = converted(self._item["text"], TextConfig, where)
            if text.format is None:
                raise missing(f"{where}.format")
            text.check(where)
            update["text"] = {"format": msgspec.to_builtins(text.format)}
        if not update:
            raise self._wrong("reasoning", "or `text` must be given")
        return update

    def _mcp_named(self) -> Item:
        fields = {"server_label": self._name("server_label"), "name": self._name("name")}
        return {**fields, "arguments": self._text("arguments")}

    def _mcp_call(self) -> Item:
        item = {
            **self._mcp_named(),
            "output": self._typed("output", str, "a string"),
            "error": self._typed("error", dict | str, "an object"),
            "approval_request_id": self._typed("approval_request_id", str, "a string"),
        }
        status = self._item.get("status")
        if status not in (None, *_STATUSES, "calling", "failed"):
            raise self._wrong("status", "is none that a call has")
        return {**item, "status": status or "completed"}

    def _interpreted(self) -> Item:
        code, container = self._typed("code", str, "a string"), self._typed("container_id", str, "a string")
        outputs = self._item.get("outputs")
        if not isinstance(outputs, list | None) or not all(isinstance(output, dict) for output in outputs or ()):
            raise self._wrong("outputs", "must be a list of objects")
        return {"code": code, "container_id": container or "auto", "outputs": outputs}

    def _object(self, field: str, otherwise: dict[str, Any]) -> dict[str, Any]:
        value: dict[str, Any] | None = self._typed(field, dict, "an object")
        return otherwise if value is None else value

    def _typed(self, field: str, types: Any, what: str) -> Any:
        """None if the field is absent."""
        value = self._item.get(field)
        if not isinstance(value, types | None):
            raise self._wrong(field, f"must be {what}")
        return value

    def _mcp_approval(self) -> Item:
        approve = self._item.get("approve")
        if not isinstance(approve, bool):
            raise self._wrong("approve", "must be true or false")
        item: Item = {"approval_request_id": self._name("approval_request_id"), "approve": approve}
        return {**item, "reason": self._optional_text("reason")}

    def _listed(self) -> list[dict[str, Any]]:
        tools = self._item.get("tools")
        if not isinstance(tools, list) or not all(
            isinstance(tool, dict)
            and isinstance(tool.get("name"), str)
            and isinstance(tool.get("input_schema"), dict)
            and isinstance(tool.get("description"), str | None)
            and isinstance(tool.get("annotations"), dict | None)
            for tool in tools
        ):
            raise self._wrong("tools", "must be a list of objects with `name` and `input_schema`")
        fields = ("name", "description", "input_schema", "annotations")
        return [{name: tool.get(name) for name in fields} for tool in tools]

    def _message(self) -> Item:
        role = self._item.get("role")
        if role not in _ROLES:
            raise self._wrong("role", f"must be one of {', '.join(_ROLES)}")
        target = "output_text" if role == "assistant" else "input_text"
        content = self._item.get("content")
        if isinstance(content, str):
            content = [{"type": target, "text": content}]
        elif content is None and role == "assistant" and "content" in self._item:
            content = []  # as chat has it
        return {"role": role, "status": self._status(), "content": self._parts(content, "content", target)}

    def _reasoning(self) -> Item:
        item: Item = {"summary": self._plain_parts("summary", "summary_text") or []}
        if (content := self._plain_parts("content", "reasoning_text")) is not None:
            item["content"] = content
        if self._item.get("encrypted_content") is not None:
            item["encrypted_content"] = self._text("encrypted_content")
        if self._item.get("status") is not None:
            item["status"] = self._status()
        return item

    def _plain_parts(self, field: str, kind: str) -> list[dict[str, Any]] | None:
        parts = self._item.get(field)
        if parts is None:
            return None
        if not isinstance(parts, list) or not all(
            isinstance(part, dict) and part.get("type") == kind and isinstance(part.get("text"), str) for part in parts
        ):
            raise self._wrong(field, f"must be a list of parts of type {kind}")
        return [{"type": kind, "text": part["text"]} for part in parts]

    def _parts(self, parts: Any, field: str, target: str) -> list[dict[str, Any]]:
        if parts is None:
            raise missing(f"{self._where}.{field}")
        if not isinstance(parts, list):
            raise self._wrong(field, "must be a string or a list of parts")
        return [self._part(part, f"{field}[{index}]", target) for index, part in enumerate(parts)]

    def _part(self, part: Any, field: str, target: str) -> dict[str, Any]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in MEDIA_PARTS:
            where = f"{self._where}.{field}"
            if target == "output_text":
                raise not_served(where, f"`{where}`: a part of type `{kind}` in a message of the assistant")
            return read_media(part, where)
        if kind == "refusal" and target == "output_text":
            if not isinstance(part.get("refusal"), str):
                raise self._wrong(f"{field}.refusal", "must be a string")
            return {"type": "refusal", "refusal": part["refusal"]}
        if kind not in _TEXT_PARTS:
            raise self._wrong(field, f"must be an object of type {target}")
        if not isinstance(part.get("text"), str):
            raise self._wrong(f"{field}.text", "must be a string")
        read = {"type": target, "text": part["text"]}
        return {**read, "annotations": [], "logprobs": []} if target == "output_text" else read

    def _id(self, kind: str) -> str:
        given = self._item.get("id")
        if kind == "local_shell_call_output" and self._item.get("call_id") is not None:
            return self._name("call_id")  # its id is that of the call
        if given is None:
            return self._new_id(PREFIXES[kind])
        return self._name("id")

    def _status(self) -> str:
        status = self._item.get("status")
        if status is None:
            return "completed"
        if status not in _STATUSES:
            raise self._wrong("status", f"must be one of {', '.join(_STATUSES)}")
        return str(status)

    def _name(self, field: str) -> str:
        name = self._text(field)
        chars_at_most(name, MAX_NAME_LENGTH, f"{self._where}.{field}")
        if not name:
            raise self._wrong(field, "must not be empty")
        return name

    def _text(self, field: str) -> str:
        value = self._item.get(field)
        if value is None:
            raise missing(f"{self._where}.{field}")
        if not isinstance(value, str):
            raise self._wrong(field, "must be a string")
        return value

    def _optional_text(self, field: str) -> str | None:
        return self._typed(field, str, "a string")  # type: ignore[no-any-return]  # it is one

    def _wrong(self, field: str, what: str) -> BadRequest:
        return wrong(f"{self._where}.{field}", what, "invalid_value")
