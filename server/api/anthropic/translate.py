"""An Anthropic request as the chat request that means the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, assert_never

from stentor.protocols.anthropic.content import TextBlock
from stentor.protocols.anthropic.request import (
    AnyChoice,
    AutoChoice,
    ConversationFields,
    MessagesRequest,
    NamedChoice,
    NoChoice,
    Thinking,
    ThinkingAdaptive,
    ThinkingBetweenTools,
    ThinkingDisabled,
    ThinkingEnabled,
    Tool,
    ToolChoice,
)
from stentor.protocols.common.errors import wrong
from stentor.protocols.openai.chat import ChatRequest, chat_of

from ...generation.error_fields import map_error_fields
from .conversation import chat_messages
from .parts import BLOCKS_JOIN

_ATTRIBUTION: Final = "x-anthropic-billing-header:"
"""A line that Claude Code puts before its system prompt. It changes with each request, so that no text behind it would
hit the prefix cache."""
_NAMES: Final = {
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "tool_choice.function": "tool_choice",
    "tools[].function": "tools[]",
    "tools[].function.parameters": "tools[].input_schema",
    "chat_template_kwargs": "thinking",
}


def chat_request(body: MessagesRequest) -> ChatRequest:
    """Raises BadRequest."""
    fields = _conversation(body)
    fields["max_tokens"] = max(1, body.max_tokens)
    fields["stream"] = body.stream
    fields["stop"] = body.stop_sequences or None
    fields["temperature"] = body.temperature
    fields["top_p"] = body.top_p
    fields["top_k"] = body.top_k
    fields["cache_salt"] = body.cache_salt
    fields["priority"] = body.priority
    fields["vllm_xargs"] = body.vllm_xargs
    return chat_of(fields)


def prompt_request(body: ConversationFields) -> ChatRequest:
    """A chat request with the same prompt, for counting only. Raises BadRequest."""
    return chat_of(_conversation(body))


@contextmanager
def in_their_names(body: ConversationFields) -> Iterator[None]:
    """Maps errors of the translated chat request to fields of ``body``."""
    answer = body.answer_format
    field = "output_config.format" if answer is None else answer[0]
    names = {**_NAMES, "response_format": field, "response_format.json_schema": field}
    if body.chat_template_kwargs:
        del names["chat_template_kwargs"]
    with map_error_fields(names):
        yield


def _conversation(body: ConversationFields) -> dict[str, Any]:
    in_front, messages = chat_messages(body.messages)
    system = [text for text in (*_system(body.system), *in_front) if text]
    if not messages:
        raise wrong("messages", "must hold a message of role `user`")
    prefill = messages[-1]["role"] == "assistant"
    if prefill and not messages[-1]["content"]:
        # nothing to go on from: as if it were not there
        messages.pop()
        prefill = False
    if system:
        messages.insert(0, {"role": "system", "content": BLOCKS_JOIN.join(system)})
    answer = body.answer_format
    return {
        "model": body.model,
        "messages": messages,
        "add_generation_prompt": not prefill,
        "continue_final_message": prefill,
        "response_format": None if answer is None else _response_format(answer[1].schema),
        "reasoning_effort": None if body.output_config is None else body.output_config.effort,
        **_tools(body.tools, body.tool_choice),
        **_thinking(body.thinking, body.chat_template_kwargs),
    }


def _system(system: str | list[TextBlock] | None) -> list[str]:
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    return [text.partition("\n")[2] if text.startswith(_ATTRIBUTION) else text for text in texts]


def _response_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _tools(tools: list[Tool] | None, choice: ToolChoice | None) -> dict[str, Any]:
    offered = [_tool(tool) for tool in tools or () if not tool.searches]
    if not offered:
        return {}
    fields: dict[str, Any] = {"tools": offered}
    match choice:
        case None | AutoChoice():
            fields["tool_choice"] = "auto"
        case AnyChoice():
            fields["tool_choice"] = "required"
        case NamedChoice(name=name):
            fields["tool_choice"] = {"type": "function", "function": {"name": name}}
        case NoChoice():
            fields["tool_choice"] = "none"
        case other:
            assert_never(other)
    if isinstance(choice, AutoChoice | AnyChoice | NamedChoice) and choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields


def _tool(tool: Tool) -> dict[str, Any]:
    if (known := tool.predefined) is not None:
        # strict: clients run such calls without checking them
        described = {"description": known.description, "parameters": known.input_schema, "strict": True}
        return {"type": "function", "function": {"name": known.name, **described}}
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _thinking(thinking: Thinking | None, kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """By default the model's own behaviour applies. ``kwargs`` are the client's for the template."""
    fields: dict[str, Any] = {}
    switch: dict[str, Any] = {}
    match thinking:
        case None:
            pass
        case ThinkingEnabled(budget_tokens=budget):
            switch["enable_thinking"] = True
            fields["thinking_token_budget"] = budget
        case ThinkingAdaptive():
            switch["enable_thinking"] = True
        case ThinkingDisabled() | ThinkingBetweenTools():
            switch["enable_thinking"] = False
    return {**fields, "chat_template_kwargs": {**switch, **(kwargs or {})} or None}
