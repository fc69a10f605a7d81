"""``POST`` to ``/render`` below chat, completions and messages: prompts as token ids, without their answers."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET
from starlette.requests import Request
from starlette.routing import Route

from stentor.protocols.anthropic.request import MessagesRequest, messages_decoder
from stentor.protocols.common.decoding import decode
from stentor.protocols.common.encoding import encode
from stentor.protocols.openai import chat as chats
from stentor.protocols.openai import completions
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.completions import CompletionRequest
from stentor.protocols.openai.generate import RenderedRequest, sampling_of
from stentor.protocols.openai.sampling import not_served

from ...generation.admission import Budget, check_prompt, context_length, kept_tokens
from ...generation.chat_model import ChatModel
from ...generation.completion import DEFAULT_MAX_TOKENS, prompts_of
from ...generation.prepare import prompt_of
from ...http.error_shapes import ANTHROPIC
from ...http.whole_answer import AnswerBudget, WholeAnswer
from ...overload.request_context import RequestContext
from ..anthropic.translate import chat_request, in_their_names
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, name_anew, request_id

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
    "/v1/completions/render": generation(
        "Write prompts as token ids, without answering them (vLLM)", list[RenderedRequest], CompletionRequest
    ),
}


def routes(chat: ChatModel) -> list[Route]:
    return [
        generation_route("/v1/chat/completions/render", chat, render_chat),
        generation_route("/v1/messages/render", chat, render_messages),
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
        return await _conversation(chat, chat_request(body), request, context)


async def _conversation(chat: ChatModel, body: ChatRequest, request: Request, context: RequestContext) -> WholeAnswer:
    tokens = await prompt_of(chat, body, context.queue_slot.memory)
    budget = Budget(body.wanted_tokens, None, body.max_tokens_field, "messages")
    first, end = kept_tokens(len(tokens), body, budget, context_length(chat))
    prompt = tokens[first:end]
    check_prompt(prompt, chat, "messages")
    name_anew(request, body.request_id)
    text = await chat.pool.decode(prompt, skip_special_tokens=False) if body.return_prompt_text else None
    return _answer(chat, _rendered(chat, body, request_id(request), prompt, text), context)


async def render_completion(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> WholeAnswer:
    body = decode(completions.decoder, content, chat.limits)
    body.check(chat.limits)
    if body.max_tokens is None:
        body.max_tokens = DEFAULT_MAX_TOKENS
    prompts = await prompts_of(chat, body)
    name_anew(request, body.request_id)
    named = request_id(request)
    several = len(prompts) > 1
    rendered = [
        _rendered(chat, body, f"{named}-{index}" if several else named, prompt) for index, prompt in enumerate(prompts)
    ]
    return _answer(chat, rendered, context)


def _rendered(
    chat: ChatModel,
    body: ChatRequest | CompletionRequest,
    named: str,
    prompt: Sequence[int],
    text: str | None = None,
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
        prompt_text=UNSET if text is None else text,
    )


def _answer(chat: ChatModel, rendered: Any, context: RequestContext) -> WholeAnswer:
    written = encode(rendered)
    AnswerBudget(chat.limits.max_answer_bytes, context.queue_slot.memory).add(len(written))
    return WholeAnswer([written])
