"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's protocol."""

import uuid
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.anthropic.content import InputMessage
from stentor.protocols.anthropic.context_management import COMPACTING_TOKENS, AppliedEdits, OriginalTokens
from stentor.protocols.anthropic.objects import Message, TokensCount
from stentor.protocols.anthropic.request import (
    ConversationFields,
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

from ...common.keys import Caller
from ...generation.admission import context_length
from ...generation.chat_model import ChatModel
from ...generation.prepare import PreparedGeneration, prepare_generation, prompt_of
from ...http.error_responses import error_frame
from ...http.error_shapes import ANTHROPIC
from ...http.sse import EVENTS, EventStream
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, json_response
from .blocks import ThinkingShown
from .compaction import Compaction, summarize
from .context_edits import Count, edit, tokens_or_share
from .encoder import PING, MessageShape, MessageStream, paused_message, paused_stream, whole_message
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
Fields = TypeVar("Fields", bound=ConversationFields)
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
    caller = caller_of(request.scope)
    with in_their_names(body):
        body, edits = await _edited(chat, body)
        compaction = await _compacted(chat, body, caller, context)
        if compaction is not None and compaction.pauses:
            return _paused(body, edits, compaction)
        if compaction is not None:
            body = msgspec.structs.replace(body, messages=compaction.shorten(body.messages))
        prepared = await prepare_generation(chat, chat_request(body), caller, context, fill_context=True)
    shape = _shape(body, prepared, edits, compaction)
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
        edited, _ = await _edited(chat, body)
        tokens = len(await prompt_of(chat, prompt_request(edited), context.queue_slot.memory))
        if body.context_management is None:
            return json_response(TokensCount(tokens))
        return json_response(TokensCount(tokens, OriginalTokens(await _counter(chat, body)(body.messages))))


def _counter(chat: ChatModel, body: ConversationFields) -> Count:
    async def count(messages: Sequence[InputMessage]) -> int:
        asked = msgspec.structs.replace(body, messages=[*messages])
        return len(await prompt_of(chat, prompt_request(asked)))

    return count


async def _edited(chat: ChatModel, body: Fields) -> tuple[Fields, AppliedEdits | UnsetType]:
    """The request without what its edits take out of the conversation. Raises BadRequest."""
    if body.context_management is None:
        return body, UNSET
    edited = await edit(body.messages, body.context_management, _counter(chat, body), context_length(chat))
    return msgspec.structs.replace(body, messages=edited.messages), AppliedEdits(edited.applied)


async def _compacted(
    chat: ChatModel, body: MessagesRequest, caller: Caller, context: RequestContext
) -> Compaction | None:
    """The summary of a conversation that is longer than the request wants it to be. Raises as
    :func:`prepare_generation`."""
    asked = None if body.context_management is None else body.context_management.compact
    if asked is None:
        return None
    count = _counter(chat, body)
    if await count(body.messages) <= tokens_or_share(asked.trigger, COMPACTING_TOKENS, context_length(chat)):
        return None
    return await summarize(chat, body, asked, count, caller, context)


def _paused(body: MessagesRequest, edits: AppliedEdits | UnsetType, compaction: Compaction) -> Response:
    shape = MessageShape(_message_id(), body.model, 0, False, compaction=compaction, applied=edits)
    if body.stream:
        return Response(paused_stream(shape, compaction), headers={"content-type": EVENTS})
    return json_response(paused_message(shape, compaction))


def _message_id() -> str:
    return f"msg_{uuid.uuid4().hex}"


def _shape(
    body: MessagesRequest,
    prepared: PreparedGeneration,
    edits: AppliedEdits | UnsetType,
    compaction: Compaction | None,
) -> MessageShape:
    return MessageShape(
        message_id=_message_id(),
        model=prepared.model,
        prompt_tokens=len(prepared.prompt),
        in_context=prepared.max_tokens < body.max_tokens,
        thinking=_shown(body.thinking),
        warm_up=body.max_tokens == 0,
        compaction=compaction,
        applied=edits,
    )


def _shown(thinking: Thinking | None) -> ThinkingShown:
    match thinking:
        case ThinkingDisabled() | ThinkingBetweenTools():
            return "never"  # also of a model that cannot but think
        case ThinkingEnabled(display="omitted") | ThinkingAdaptive(display="omitted"):
            return "empty"
        case _:
            return "whole"
