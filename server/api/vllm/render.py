"""``POST`` to ``/render`` below chat, completions, messages and responses: prompts as token ids, without their
answers."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace
from starlette.requests import Request
from starlette.routing import Route

from stentor.protocols.anthropic.request import MessagesRequest, messages_decoder
from stentor.protocols.common.decoding import decode
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import refused
from stentor.protocols.openai import chat as chats
from stentor.protocols.openai import completions
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.completions import CompletionRequest, Prompt
from stentor.protocols.openai.generate import RenderedRequest, sampling_of
from stentor.protocols.openai.responses.request import ResponseRequest
from stentor.protocols.openai.responses.request import decoder as response_decoder
from stentor.protocols.openai.sampling import not_served

from ...generation.admission import Budget, check_prompt, context_length, kept_tokens, output_room
from ...generation.chat_model import ChatModel
from ...generation.completion import DEFAULT_MAX_TOKENS, prompts_of
from ...generation.prepare import prompt_of
from ...http.error_shapes import ANTHROPIC
from ...http.whole_answer import AnswerBudget, WholeAnswer
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..anthropic.translate import chat_request, in_their_names
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, name_anew, request_id
from ..responses.naming import map_response_fields
from ..responses.preparing import prepare
from ..responses.services import ResponseServices

OPERATIONS: Final[Operations] = {
    "/v1/chat/completions/render": generation(
        "Write a conversation as token ids, without answering it (vLLM)", RenderedRequest, ChatRequest
    ),
    "/v1/messages/render": generation(
        "Write a conversation of Anthropic's API as token ids, without answering it (vLLM)",
        RenderedRequest,
        MessagesRequest,
        errors=ANTHROPIC,
    ),
    "/v1/responses/render": generation(
        "Write the prompt of a response as token ids, without answering it (vLLM)", RenderedRequest, ResponseRequest
    ),
    "/v1/completions/render": generation(
        "Write prompts as token ids, without answering them (vLLM)", list[RenderedRequest], CompletionRequest
    ),
}


def routes(services: ResponseServices) -> list[Route]:
    chat = services.chat
    return [
        generation_route("/v1/chat/completions/render", chat, render_chat),
        generation_route("/v1/messages/render", chat, render_messages),
        generation_route("/v1/responses/render", services, render_response),
        generation_route("/v1/completions/render", chat, render_completion),
    ]


async def render_chat(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> WholeAnswer:
    return await _conversation(chat, decode(chats.decoder, content, chat.limits), request, context)


async def render_messages(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> WholeAnswer:
    body = decode(messages_decoder, content, chat.limits)
    body.check(thinks_between_calls=True)
    if body.context_management is not None:
        raise not_served("context_management")  # it could generate a summary
    with in_their_names(body):
        return await _conversation(chat, chat_request(body), request, context, fill_context=True)


async def _conversation(
    chat: ChatModel, body: ChatRequest, request: Request, context: RequestContext, *, fill_context: bool = False
) -> WholeAnswer:
    """More tokens than the context has room for are refused, or with ``fill_context`` reduced."""
    tokens = await prompt_of(chat, body, context.queue_slot.memory)
    wanted = body.wanted_tokens
    budget = Budget(None if fill_context else wanted, wanted, body.max_tokens_field, "messages")
    first, end = kept_tokens(len(tokens), body, budget, context_length(chat))
    prompt = tokens[first:end]
    check_prompt(prompt, chat, "messages")
    room = output_room(len(prompt), budget, chat)
    name_anew(request, body.request_id)
    rendered = _rendered(chat, body, request_id(request), prompt)
    if fill_context and wanted is not None:
        rendered.sampling_params["max_tokens"] = room
    if body.return_prompt_text or body.return_token_offsets:
        text = await chat.pool.decode(prompt, skip_special_tokens=False)
        if body.return_prompt_text:
            rendered = replace(rendered, prompt_text=text)
        if body.return_token_offsets:
            offsets = await chat.pool.offsets(text, prompt, False, field="messages")
            rendered = replace(rendered, token_offsets=offsets)
    return _answer(chat, rendered, context)


async def render_response(
    services: ResponseServices, request: Request, content: bytes, context: RequestContext
) -> WholeAnswer:
    body = decode(response_decoder, content, services.limits)
    prepared = await prepare(services, body, caller_of(request.scope), context.queue_slot.memory)
    if prepared.compacts is not None:
        raise refused("input", "the conversation would be compacted first, which is an answer", "unsupported")
    if prepared.servers:
        raise refused("tools", "tools of servers run within a response; offer functions", "unsupported")
    with map_response_fields(prepared.response.tools):
        return await _conversation(services.chat, prepared.chat, request, context)


async def render_completion(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> WholeAnswer:
    body = decode(completions.decoder, content, chat.limits)
    body.check(chat.limits)
    if body.max_tokens is None and not body.fills_context:
        body.max_tokens = DEFAULT_MAX_TOKENS
    prompts = await prompts_of(chat, body)
    name_anew(request, body.request_id)
    named = request_id(request)
    several = len(prompts) > 1
    rendered = [
        _rendered(chat, body, f"{named}-{index}" if several else named, prompt) for index, prompt in enumerate(prompts)
    ]
    if body.return_token_offsets:
        offsets = [await _offsets(chat, body, *each) for each in zip(body.prompts, prompts, strict=True)]
        rendered = [replace(one, token_offsets=found) for one, found in zip(rendered, offsets, strict=True)]
    return _answer(chat, rendered, context)


async def _offsets(
    chat: ChatModel, body: CompletionRequest, given: Prompt, tokens: Sequence[int]
) -> list[tuple[int, int]] | None:
    """Where in the client's text the kept tokens are from."""
    if not isinstance(given, str):
        return None
    return await chat.pool.offsets(given, tokens, body.add_special_tokens, from_end=body.truncation_side != "right")


def _rendered(
    chat: ChatModel,
    body: ChatRequest | CompletionRequest,
    named: str,
    prompt: Sequence[int],
) -> RenderedRequest:
    return RenderedRequest(
        request_id=named,
        token_ids=list(prompt),
        sampling_params=sampling_of(body),
        model=chat.resolve(body.model),
        stream=bool(body.stream),
        stream_options=body.stream_options,
        cache_salt=body.cache_salt,
        priority=body.priority,
    )


def _answer(chat: ChatModel, rendered: Any, context: RequestContext) -> WholeAnswer:
    written = encode(rendered)
    AnswerBudget(chat.limits.max_answer_bytes, context.queue_slot.memory).add(len(written))
    return WholeAnswer([written])
