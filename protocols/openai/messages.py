"""Chat messages: checked one by one, then brought to the plain form that chat templates expect."""

from typing import Any, Final

import msgspec

from .errors import BadRequest
from .sampling import not_served

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
TEXT_PARTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
MEDIA_PARTS: Final = frozenset(
    {"image_url", "input_image", "input_audio", "audio_url", "video_url", "file", "image_embeds"}
)


def normalize(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """New messages with text content, ``developer`` become ``system`` and tool arguments parsed.

    Raises BadRequest naming the field (``messages[1].content[0].text``).
    """
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise BadRequest(f"`{where}.role` must be one of {', '.join(sorted(ROLES))}.", f"{where}.role")
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        raise BadRequest(f"`{where}.name` must be a string.", f"{where}.name")
    plain = dict(message)
    plain["role"] = "system" if role == "developer" else role
    calls = message.get("tool_calls")
    if calls is not None:
        plain["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls")
    plain["content"] = _content(message, role, bool(calls), f"{where}.content")
    if "reasoning" in plain:
        plain.setdefault("reasoning_content", plain["reasoning"])
    return plain


def _content(message: dict[str, Any], role: str, has_calls: bool, where: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        if role == "assistant" and (has_calls or message.get("function_call") or message.get("refusal")):
            return ""
        raise BadRequest(f"`{where}` is required.", where, "missing_required_parameter")
    if not isinstance(content, list):
        raise BadRequest(f"`{where}` must be a string or a list of content parts.", where)
    if not content:
        raise BadRequest(f"`{where}` must hold at least one part.", where)
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise BadRequest(f"`{where}` must be an object with a `type`.", where)
    kind = part.get("type")
    if isinstance(kind, str) and kind in TEXT_PARTS:
        field = TEXT_PARTS[kind]
        text = part.get(field)
        if not isinstance(text, str):
            raise BadRequest(f"`{where}.{field}` must be a string.", f"{where}.{field}")
        return text
    if isinstance(kind, str) and kind in MEDIA_PARTS:
        raise not_served(where, f"A content part of type `{kind}`")
    raise BadRequest(f"`{where}.type` must be `text`.", f"{where}.type")


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Templates want arguments as an object; clients send them as the JSON text that the model wrote."""
    if not isinstance(calls, list):
        raise BadRequest(f"`{where}` must be a list.", where)
    plain = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(f"`{where}[{index}]` must hold a function with a name.", f"{where}[{index}]")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = msgspec.json.decode(arguments or "{}")
            except (msgspec.DecodeError, RecursionError):
                arguments = function["arguments"]
        plain.append({**call, "function": {**function, "arguments": arguments}})
    return plain
