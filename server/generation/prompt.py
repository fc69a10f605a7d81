"""From a conversation, with its tools and its thinking, to the tokens of its prompt."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.chat import ChatRequest, TemplateOptions, template_kwargs
from stentor.protocols.openai.tools import CUSTOM_INPUT, OfferedTool, ToolUse

from ..common.errors import Overloaded
from ..media.chat_media import NO_MEDIA, ChatMedia, PlacedMedia, TakingModel
from ..media.collect import adds_special_tokens, collect_media
from ..overload.memory_budget import MemoryShare
from ..parsing.interface import Tool
from ..parsing.thinking import ThinkingOptions, thinking_options
from ..text.errors import TemplateError, TemplatesWait, TextTooLong
from ..text.renderers.interface import RenderRequest
from ..text.renderers.mistral import MistralRenderer
from ..text.templates.placeholders import MediaText
from .admission import too_long
from .chat_model import ChatModel
from .tool_prompt import inject_tool_prompt, mentions_tools

_RETRY_SECONDS: Final = 2
NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


class Prompted(msgspec.Struct, frozen=True):
    tokens: list[int]
    thinking: ThinkingOptions
    media: PlacedMedia = msgspec.field(default_factory=PlacedMedia)


async def write_prompt(
    chat: ChatModel, body: ChatRequest, use: ToolUse, most_tokens: int | None, memory: MemoryShare | None = None
) -> Prompted:
    """Renders and tokenizes the prompt of a conversation. Its media are fetched, and held in ``memory``. Raises as
    :func:`render_messages`, and BadRequest for media."""
    options = thinking_options(
        chat.output,
        _template_of(chat, body),
        template_kwargs=body.chat_template_kwargs,
        defaults=chat.config.default_chat_template_kwargs,
        effort=body.reasoning_effort,
        budget=body.thinking_token_budget,
    )
    if chat.media is None:
        messages, media = collect_media(body.messages, chat.accepted)[0], NO_MEDIA
    else:
        messages, media = await chat.media.take(
            body.messages,
            TakingModel(chat.accepted, chat.client.ready, chat.pool.tokenizer),
            body,
            chat.limits.max_prompt_chars,
            memory,
            as_text=chat.picture is None and not isinstance(chat.renderer, MistralRenderer),
        )
    if chat.picture is not None:
        tokens = await chat.picture.tokens(chat.pool, body, messages, use)
        return Prompted(tokens, options, ChatMedia.place_encoded(media))
    messages = with_functions_as_tools(messages)
    asked = template_tools(use.tools)
    tools, forbidden = (asked, []) if use.mode != "none" else ([], asked)
    if (tools or mentions_tools(messages)) and not chat.renderer.takes_tools(body.chat_template):
        messages, tools = inject_tool_prompt(messages, tools), []
    fields = body
    if options.template_kwargs != (body.chat_template_kwargs or {}):
        fields = msgspec.structs.replace(body, chat_template_kwargs=options.template_kwargs)
    text = media.text
    tokens = await render_messages(
        chat,
        fields,
        messages,
        body.add_special_tokens,
        most_tokens,
        tools,
        text,
        forbidden_tools=forbidden,
        must_call=use.mode == "required" and not use.named,
        response_format=body.response_format,
    )
    if chat.media is None or text is None:
        return Prompted(tokens, options)
    return Prompted(tokens, options, chat.media.place(tokens, media, text.order, chat.pool.tokenizer))


def _template_of(chat: ChatModel, fields: TemplateOptions) -> str:
    """The source of the template that is used; of a model with several, all of them together."""
    brought = fields.chat_template
    return chat.pool.tokenizer.template_source if brought is None or chat.pool.chat_template.has(brought) else brought


async def render_messages(
    chat: ChatModel,
    fields: TemplateOptions,
    messages: list[dict[str, Any]],
    add_special_tokens: bool | None,
    most_tokens: int | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    media: MediaText | None = None,
    *,
    forbidden_tools: Sequence[Mapping[str, Any]] = (),
    must_call: bool = False,
    response_format: Mapping[str, Any] | None = None,
) -> list[int]:
    """Raises BadRequest for arguments that the template may not be given, where the template fails, and for
    messages that cannot have as few as ``most_tokens``; and Overloaded where too many templates wait."""
    known = chat.pool.chat_template
    trusted = chat.config.trust_request_chat_template or known.has(fields.chat_template or "")
    kwargs = template_kwargs(fields, known.reserved, trusted=trusted)
    begins = fields.add_generation_prompt
    try:
        return await chat.renderer.render(
            RenderRequest(
                messages=messages,
                tools=tools,
                forbidden_tools=forbidden_tools,
                must_call=must_call,
                response_format=response_format or {},
                documents=fields.documents or (),
                add_generation_prompt=not fields.continue_final_message if begins is None else begins,
                continue_final_message=fields.continue_final_message,
                chat_template=fields.chat_template,
                template_kwargs=kwargs,
                add_special_tokens=adds_special_tokens(add_special_tokens, chat.accepted, _template_of(chat, fields)),
                media=media,
                most_tokens=most_tokens,
            )
        )
    except TextTooLong as error:
        raise too_long(error.fewest, chat, "messages", at_least=True) from None
    except TemplatesWait as error:
        raise Overloaded(str(error), "templates_full", _RETRY_SECONDS) from None
    except TemplateError as error:
        param = "messages" if fields.chat_template is None else "chat_template"
        raise BadRequest(str(error), param, "template_error") from None


def callable_tools(tools: Sequence[OfferedTool]) -> list[Tool]:
    return [Tool(tool.name, tool.description, tool.parameters, tool.strict, tool.grammar) for tool in tools]


def template_tools(tools: Sequence[OfferedTool]) -> list[dict[str, Any]]:
    """Tools in the form of chat templates, OpenAI's functions, for every protocol."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def _function(tool: OfferedTool) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    parameters = NO_PARAMETERS if tool.parameters is None else tool.parameters
    return {"name": tool.name, **described, "parameters": parameters}


def with_functions_as_tools(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages in which calls of custom tools, and the old ``function_call`` with role ``function``, are ordinary tool
    calls. Other messages are not copied."""
    return [_message(message) for message in messages]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if calls and any(call.get("type") == "custom" for call in calls):
        return {**message, "tool_calls": [_call(call) for call in calls]}
    if message.get("function_call"):
        rest = {name: value for name, value in message.items() if name != "function_call"}
        function = message["function_call"]
        return {**rest, "tool_calls": [{"id": function["name"], "type": "function", "function": function}]}
    if message.get("role") == "function":
        return {"tool_call_id": message.get("name"), **message, "role": "tool"}
    return message


def _call(call: dict[str, Any]) -> dict[str, Any]:
    if call.get("type") != "custom":
        return call
    custom = call["custom"]
    arguments = {CUSTOM_INPUT: custom.get("input") or ""}
    return {**call, "type": "function", "function": {"name": custom["name"], "arguments": arguments}, "custom": None}
