"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's protocol."""

import uuid
from contextlib import aclosing
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.anthropic.objects import Message, TokensCount
from stentor.protocols.anthropic.request import (
    CountTokensRequest,
    MessagesRequest,
    Thinking,
    ThinkingAdaptive,
    ThinkingBetweenTools,
    ThinkingDisabled,
    ThinkingEnabled,
    count_tokens_decoder,
    messages_decoder,
)
from stentor.protocols.common.decoding import decode

from ...generation.chat_model import ChatModel
from ...generation.prepare import PreparedGeneration, prepare_generation, prompt_of
from ...http.error_responses import error_frame
from ...http.error_shapes import ANTHROPIC
from ...http.sse import EventStream
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, json_response
from .blocks import ThinkingShown
from .encoder import PING, MessageShape, MessageStream, whole_message
from .translate import chat_request, in_their_names, prompt_request

OPERATIONS: Final[Operations] = {
    "/v1/messages": generation(
        "Answer a conversation (Anthropic's Messages API)",
        Message,
        MessagesRequest,
        streams=True,
        errors=ANTHROPIC,
    ),
    "/v1/messages/count_tokens": generation(
        "Count the prompt tokens of a conversation (Anthropic's Messages API)",
        TokensCount,
        CountTokensRequest,
        errors=ANTHROPIC,
    ),
}
_BETWEEN_CALLS: Final = "interleaved-thinking"
"""The beginning of a beta's name."""


def routes(chat: ChatModel) -> list[Route]:
    return [
        generation_route("/v1/messages", chat, messages),
        generation_route("/v1/messages/count_tokens", chat, count_tokens),
    ]


async def messages(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(messages_decoder, content, chat.limits)
    body.check(thinks_between_calls=any(_BETWEEN_CALLS in value for value in request.headers.getlist("anthropic-beta")))
    with in_their_names(body):
        prepared = await prepare_generation(
            chat, chat_request(body), caller_of(request.scope), context, fill_context=True
        )
    shape = _shape(body, prepared)
    if body.stream:
        to_frame = partial(error_frame, shape=ANTHROPIC)
        return EventStream(
            prepared.batches, MessageStream(shape), bounds=context.bounded, to_frame=to_frame, sign_of_life=PING
        )
    async with aclosing(prepared.batches):
        return json_response(await whole_message(shape, prepared.batches))


async def count_tokens(chat: ChatModel, _request: Request, content: bytes, context: RequestContext) -> Response:
    body = decode(count_tokens_decoder, content, chat.limits)
    body.check_conversation()
    with in_their_names(body):
        prompt = await prompt_of(chat, prompt_request(body), context.queue_slot.memory)
    return json_response(TokensCount(len(prompt)))


def _shape(body: MessagesRequest, prepared: PreparedGeneration) -> MessageShape:
    return MessageShape(
        message_id=f"msg_{uuid.uuid4().hex}",
        model=prepared.model,
        prompt_tokens=len(prepared.prompt),
        in_context=prepared.max_tokens < body.max_tokens,
        thinking=_shown(body.thinking),
        warm_up=body.max_tokens == 0,
    )


def _shown(thinking: Thinking | None) -> ThinkingShown:
    match thinking:
        case ThinkingDisabled() | ThinkingBetweenTools():
            return "never"  # also of a model that cannot but think
        case ThinkingEnabled(display="omitted") | ThinkingAdaptive(display="omitted"):
            return "empty"
        case _:
            return "whole"
