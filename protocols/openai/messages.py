"""The rules for chat messages. Bringing them into a template's form is the renderer's business."""

import re
from typing import Any, Final

from ..common.errors import missing, refused, wrong
from .media_parts import MEDIA_PARTS, check_media_part, refuse_closed
from .sampling import not_served

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
"""OpenAI's. A chat template may know others, such as ``ipython`` or ``document 1``."""
_ROLE: Final = re.compile(r"[\w.-](?:[\w .-]{0,62}[\w.-])?")
"""A name that no template can take for one of its markers."""
TEXT_PARTS: Final = ("text", "refusal")
"""Part types; the field that holds the text has the same name."""

_INSTEAD_OF_CONTENT: Final = ("tool_calls", "function_call", "refusal", "reasoning", "reasoning_content")


def check_messages(messages: list[dict[str, Any]], where: str = "messages") -> None:
    """Raises BadRequest naming the field (``messages[1].content[0].text``); ``where`` is the conversation's own.

    Content parts in vLLM's other shapes become those of OpenAI: see :func:`_typed_part`. Parts of type ``thinking``
    become the assistant's reasoning.
    """
    for index, message in enumerate(messages):
        _check_message(message, f"{where}[{index}]")


def _check_message(message: dict[str, Any], where: str) -> None:
    role = message.get("role")
    if not (isinstance(role, str) and _ROLE.fullmatch(role)):
        others = "or another name of up to 64 letters, digits and spaces that the chat template knows"
        raise wrong(f"{where}.role", f"must be one of {', '.join(ROLES)}, {others}")
    for field in ("name", "tool_call_id", "refusal", "reasoning", "reasoning_content"):
        if not isinstance(message.get(field), str | None):
            raise wrong(f"{where}.{field}", "must be a string")
    if message.get("audio"):
        raise not_served(f"{where}.audio")
    if role == "tool" and message.get("tool_call_id") is None:
        raise missing(f"{where}.tool_call_id")
    calls = message.get("tool_calls")
    if calls is not None:
        _check_tool_calls(calls, f"{where}.tool_calls")
    if message.get("function_call") is not None:
        _check_function(message["function_call"], f"{where}.function_call")
    content = message.get("content")
    if content is None:
        empty = "content" in message  # as the assistant's text, whatever other fields there are
        if role != "assistant" or not (empty or any(message.get(field) for field in _INSTEAD_OF_CONTENT)):
            raise missing(f"{where}.content")
    elif isinstance(content, list):
        if not content:
            raise wrong(f"{where}.content", "must hold at least one part")
        thoughts = []
        for index, part in enumerate(content):
            content[index] = part = _typed_part(part)
            place = f"{where}.content[{index}]"
            if role == "assistant" and _is_thought(part):
                thoughts.append(_thought(part.get("thinking"), f"{place}.thinking"))
            else:
                check_part(part, place)
        if thoughts:
            message["content"] = [part for part in content if not _is_thought(part)] or None
            if not (message.get("reasoning") or message.get("reasoning_content")):
                message["reasoning_content"] = "".join(thoughts)
    elif not isinstance(content, str):
        raise wrong(f"{where}.content", "must be a string or a list of content parts")


def _is_thought(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "thinking"


def _thought(value: Any, where: str) -> str:
    """The text of a part of type ``thinking``: vLLM's and Cohere's are texts, Mistral's lists of parts."""
    if isinstance(value, list) and all(isinstance(each, dict) and isinstance(each.get("text"), str) for each in value):
        return "".join(each["text"] for each in value)
    if not isinstance(value, str):
        raise wrong(where, "must be a string or a list of text parts")
    return value


def _typed_part(part: Any) -> Any:
    """The part as an object with its type, if it is a text, or an object without a type, or a part of Responses."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        return part
    if part.get("type") is None:
        kind = next((name for name in (*TEXT_PARTS, *MEDIA_PARTS) if name in part), None)
        return part if kind is None else {**part, "type": kind}
    match part:
        case {"type": "input_text" | "output_text"}:
            return {**part, "type": "text"}
        case {"type": "input_image", "image_url": str(url), "detail": str(detail)}:
            return {"type": "image_url", "image_url": {"url": url, "detail": detail}}
        case {"type": "input_image"}:
            return {**part, "type": "image_url"}
    return part


def check_part(part: Any, where: str) -> None:
    """Checks one part of a message's content. Raises BadRequest naming its place ``where``."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in MEDIA_PARTS:
        check_media_part(part, where)
        return
    if kind not in TEXT_PARTS:
        if isinstance(kind, str):
            refuse_closed(kind, where)
        raise wrong(where, f"must be an object of type `text`, or one of {', '.join(MEDIA_PARTS)}")
    if not isinstance(part.get(kind), str):
        raise wrong(f"{where}.{kind}", "must be a string")


def _check_tool_calls(calls: Any, where: str) -> None:
    if not isinstance(calls, list):
        raise wrong(where, "must be a list")
    for index, call in enumerate(calls):
        if not isinstance(call, dict):
            raise wrong(f"{where}[{index}]", "must hold a function with a name")
        if call.get("type") == "custom":
            _check_custom(call.get("custom"), f"{where}[{index}]")
        else:
            _check_function(call.get("function"), f"{where}[{index}]")


def _check_custom(custom: Any, where: str) -> None:
    if not isinstance(custom, dict) or not isinstance(custom.get("name"), str):
        raise wrong(where, "must hold a custom tool with a name")
    if not isinstance(custom.get("input"), str | None):
        raise refused(where, "the custom tool's `input` must be a string")


def _check_function(function: Any, where: str) -> None:
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise wrong(where, "must hold a function with a name")
    if not isinstance(function.get("arguments"), str | dict | None):
        raise refused(where, "the function's `arguments` must be a string of JSON")
