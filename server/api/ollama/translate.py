"""Ollama's requests as the requests for chat, or for completions, that mean the same."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from stentor.protocols.common.decoding import converted
from stentor.protocols.common.errors import missing, wrong
from stentor.protocols.ollama.request import (
    GenerationFields,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
)
from stentor.protocols.openai.chat import ChatRequest, chat_of
from stentor.protocols.openai.completions import CompletionRequest
from stentor.protocols.openai.media_parts import FIELD

from ...config.model_registry import ModelRegistry
from ...generation.error_fields import map_error_fields
from ..chat.shape import call_id

_TAG: Final = ":latest"
"""Default tag of a name; clients append it to every name."""
_NAMES: Final = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "reasoning_effort": "think",
    "chat_template_kwargs": "think",
    "response_format": "format",
    "response_format.json_schema.schema": "format",
    **{name: f"options.{name}" for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop")},
    **{name: f"options.{name}" for name in ("presence_penalty", "frequency_penalty")},
}


def known_name(registry: ModelRegistry, name: str) -> str:
    """The model's name on this server."""
    if not name:
        raise missing("model")
    return name.removesuffix(_TAG) if name not in registry else name


def chat_request(body: OllamaChatRequest, model: str) -> ChatRequest:
    """Raises BadRequest."""
    messages = _messages(body.messages)
    last = messages[-1]
    continued = last["role"] == "assistant" and "tool_calls" not in last
    fields = {
        **_generation(body, model),
        "messages": messages,
        "tools": body.tools or None,
        "add_generation_prompt": not continued,
        "continue_final_message": continued,
    }
    return chat_of(fields)


def prompt_request(body: OllamaGenerateRequest, model: str) -> ChatRequest:
    """A prompt, by the model's template. Raises BadRequest."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": _content(body.prompt, body.images, "")}]
    if body.system:
        messages.insert(0, {"role": "system", "content": body.system})
    return chat_of({**_generation(body, model), "messages": messages})


def text_request(body: OllamaGenerateRequest, model: str) -> CompletionRequest:
    """A request with the prompt unchanged. Raises BadRequest."""
    fields = {**_sampling(body, model), "prompt": body.prompt, "suffix": body.suffix or None}
    if body.logprobs:
        fields["logprobs"] = body.top_logprobs or 0
    given = {name: value for name, value in fields.items() if value is not None}
    request: CompletionRequest = converted(given, CompletionRequest, "")
    return request


@contextmanager
def in_their_names() -> Iterator[None]:
    """Maps errors of the translated request to Ollama's fields."""
    with map_error_fields(_NAMES):
        yield


def _generation(body: GenerationFields, model: str) -> dict[str, Any]:
    thinks = body.think
    return {
        **_sampling(body, model),
        "logprobs": body.logprobs or None,
        "top_logprobs": body.top_logprobs if body.logprobs else None,
        "reasoning_effort": thinks if isinstance(thinks, str) else None,
        "chat_template_kwargs": {"enable_thinking": thinks} if isinstance(thinks, bool) else None,
    }


def _sampling(body: GenerationFields, model: str) -> dict[str, Any]:
    return {
        **(body.options or OllamaOptions()).fields(),
        "model": model,
        "stream": body.stream,
        "response_format": _response_format(body.format),
    }


def _response_format(format: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if not format:
        return None
    if isinstance(format, str):
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": format, "strict": True}}


def _messages(messages: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    calls: list[tuple[str, str]] = []
    """Id and name of those that have no result yet."""
    return [_message(message, index, calls) for index, message in enumerate(messages)]


def _message(message: OllamaMessage, index: int, calls: list[tuple[str, str]]) -> dict[str, Any]:
    where = f"messages[{index}]"
    told: dict[str, Any] = {"role": message.role, "content": _content(message.content, message.images, f"{where}.")}
    if message.images and message.role != "user":
        raise wrong(f"{where}.images", "must be of a message of role `user`")
    if message.role == "tool":
        return {**told, **_result(message, calls)}
    if message.thinking:
        told["reasoning_content"] = message.thinking
    if message.tool_calls:
        made = [(call_id(call.id), call.function) for call in message.tool_calls]
        calls += [(id, function.name) for id, function in made]
        told["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": function.name, "arguments": function.arguments}}
            for id, function in made
        ]
    return told


def _result(message: OllamaMessage, calls: list[tuple[str, str]]) -> dict[str, Any]:
    """The id of the call that a result belongs to: by its id, by its function, or the first call without a result."""
    named = message.tool_call_id, message.tool_name
    fitting = [call for call in calls if named[0] == call[0]]
    fitting += [call for call in calls if named[0] is None and named[1] in (None, "", call[1])]
    if fitting:
        calls.remove(fitting[0])
        id, name = fitting[0]
    else:
        id, name = call_id(named[0]), named[1] or ""
    return {"tool_call_id": id, "name": name}


def _content(text: str, images: Sequence[str] | None, where: str) -> str | list[dict[str, Any]]:
    """Images come first, as in Ollama."""
    if not images:
        return text
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": _url(image)}, FIELD: f"{where}images[{place}]"}
        for place, image in enumerate(images)
    ]
    return [*parts, {"type": "text", "text": text}] if text else parts


def _url(image: str) -> str:
    """Clients of other protocols send whole URLs here, too."""
    return image if image.startswith("data:") else f"data:image/png;base64,{image}"
