"""Cohere's requests as the requests for chat that mean the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from stentor.protocols.cohere.chat import AnswerForm, CohereChatRequest, Document
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import wrong
from stentor.protocols.openai.chat import ChatRequest, chat_of

from ...generation.error_fields import map_error_fields

_ROLES: Final = ("user", "assistant", "system", "tool", "developer")
_CHOICES: Final = {"REQUIRED": "required", "NONE": "none"}
_NAMES: Final = {
    "top_k": "k",
    "top_p": "p",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.token_budget",
    "response_format.json_schema.schema": "response_format.json_schema",
}


def chat_request(body: CohereChatRequest) -> ChatRequest:
    """Raises BadRequest."""
    thinking = body.thinking
    kwargs: dict[str, Any] = {}
    if thinking is not None:
        kwargs["enable_thinking"] = thinking.type == "enabled"
    if body.safety_mode is not None:
        kwargs["safety_mode"] = body.safety_mode
    tools = body.tools
    if tools and body.strict_tools:
        tools = [_strict(tool) for tool in tools]
    return chat_of(
        {
            "model": body.model,
            "messages": [_message(message, f"messages[{index}]") for index, message in enumerate(body.messages)],
            "stream": body.stream,
            "tools": tools or None,
            "tool_choice": None if body.tool_choice is None else _CHOICES[body.tool_choice],
            "documents": [_document(document) for document in body.documents or ()] or None,
            "response_format": _response_format(body.response_format),
            "max_tokens": body.max_tokens,
            "stop": body.stop_sequences or None,
            "temperature": body.temperature,
            "seed": body.seed,
            "frequency_penalty": body.frequency_penalty,
            "presence_penalty": body.presence_penalty,
            "top_k": body.k or None,
            "top_p": body.p,
            "logprobs": body.logprobs or None,
            "thinking_token_budget": None if thinking is None else thinking.token_budget,
            "priority": body.priority,
            "chat_template_kwargs": {**kwargs, **(body.chat_template_kwargs or {})} or None,
        }
    )


@contextmanager
def in_their_names() -> Iterator[None]:
    """Maps errors of the translated request to Cohere's fields."""
    with map_error_fields(_NAMES):
        yield


def _strict(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    return {**tool, "function": {**function, "strict": True}} if isinstance(function, dict) else tool


def _document(document: str | Document) -> dict[str, Any]:
    """The fields of its data, as templates take them, and its id."""
    if isinstance(document, str):
        return {"text": document}
    data = {"text": document.data} if isinstance(document.data, str) else document.data
    return data if document.id is None else {"id": document.id, **data}


def _response_format(form: AnswerForm | None) -> dict[str, Any] | None:
    if form is None or form.type == "text":
        return None
    schema = form.schema if form.json_schema is None else form.json_schema
    if schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    """Raises BadRequest; the rules of chat messages are checked afterwards."""
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise wrong(f"{where}.role", f"must be one of {', '.join(_ROLES)}", "invalid_value")
    parts = content if isinstance(content, list) else []
    if role == "tool":
        return {**message, "content": [_of_result(part) for part in parts]} if parts else message
    if role != "assistant":
        return message
    told = {name: message[name] for name in ("role", "tool_calls") if message.get(name)}
    return {**told, "reasoning_content": message.get("tool_plan"), "content": content}


def _of_result(part: Any) -> Any:
    """A document that a tool returns, as JSON."""
    match part:
        case {"type": "document", "document": dict(document)}:
            return {"type": "text", "text": encode(document).decode()}
    return part
