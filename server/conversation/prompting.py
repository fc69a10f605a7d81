"""From what a conversation holds, tools and thinking included, to the tokens of its prompt."""

from dataclasses import dataclass

import msgspec

from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.tools import ToolUse

from ..app.state import ServerState
from ..parsing.thinking import ThinkingOptions, thinking_options
from .rendering import render_messages
from .tools import template_tools, with_functions_as_tools
from .untrained import speaks_of_tools, told


@dataclass(frozen=True)
class Prompted:
    tokens: list[int]
    thinking: ThinkingOptions


async def write_prompt(state: ServerState, body: ChatRequest, use: ToolUse, most_tokens: int | None) -> Prompted:
    """As :func:`.rendering.render_messages`, with its errors."""
    options = thinking_options(
        state.output,
        _template_of(state, body),
        template_kwargs=body.chat_template_kwargs,
        effort=body.reasoning_effort,
        budget=body.thinking_token_budget,
    )
    messages = with_functions_as_tools(body.messages)
    tools = template_tools(use.tools) if use.mode != "none" else []
    if (tools or speaks_of_tools(messages)) and not state.renderer.takes_tools(body.chat_template):
        messages, tools = told(messages, tools), []
    fields = body
    if options.template_kwargs != (body.chat_template_kwargs or {}):
        fields = msgspec.structs.replace(body, chat_template_kwargs=options.template_kwargs)
    tokens = await render_messages(state, fields, messages, body.add_special_tokens, most_tokens, tools)
    return Prompted(tokens, options)


def _template_of(state: ServerState, body: ChatRequest) -> str:
    """The source of the template that is used; of a model with several, all of them together."""
    brought = body.chat_template
    return state.pool.tokenizer.template_source if brought is None or state.pool.chat_template.has(brought) else brought
