"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's protocol."""

import uuid
from collections.abc import AsyncGenerator, Sequence
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
from stentor.protocols.anthropic.context_management import COMPACTING_TOKENS, AppliedEdits, Compact, OriginalTokens
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
from ...generation.admission import GenerationOptions, context_length
from ...generation.chat_model import ChatModel
from ...generation.prepare import PreparedGeneration, prepare_generation, prompt_of
from ...http.error_responses import error_frame
from ...http.error_shapes import ANTHROPIC
from ...http.sse import Batches, Encoder, EventStream
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
T = TypeVar("T")
Fields = TypeVar("Fields", bound=ConversationFields)
_FILLING: Final = GenerationOptions(fill_context=True)
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
        compact = await _asks_to_compact(chat, body)
        if compact is not None and body.stream:
            return _event_stream(context, _after_compaction(chat, body, compact, edits, caller, context), _Written())
        compaction = None
        if compact is not None:
            compaction = await summarize(chat, body, compact, _counter(chat, body), caller, context)
            if compaction.pauses:
                return json_response(paused_message(_paused(body, edits, compaction), compaction))
            body = msgspec.structs.replace(body, messages=compaction.shorten(body.messages))
        prepared = await prepare_generation(chat, chat_request(body), caller, context, _FILLING)
    shape = _shape(body, prepared, edits, compaction)
    if body.stream:
        return _event_stream(context, prepared.batches, MessageStream(shape))
    async with aclosing(prepared.batches):
        return json_response(await whole_message(shape, prepared.batches))


def _event_stream(context: RequestContext, batches: Batches[T], encoder: Encoder[T]) -> ASGIApp:
    to_frame = partial(error_frame, shape=ANTHROPIC)
    return EventStream(batches, encoder, bounds=context.bounded, to_frame=to_frame, sign_of_life=PING)


class _Written:
    """The encoder of frames that are written already."""

    failed: Final = False

    def encode(self, batch: bytes) -> bytes:
        return batch

    def end(self) -> bytes:
        return b""


async def _after_compaction(
    chat: ChatModel,
    body: MessagesRequest,
    compact: Compact,
    edits: AppliedEdits | UnsetType,
    caller: Caller,
    context: RequestContext,
) -> AsyncGenerator[bytes, None]:
    """The frames of a stream that begins with a summary. It is written while the client already listens, since that
    can take longer than the client waits without a sign of life. Raises as :func:`prepare_generation`."""
    with in_their_names(body):
        compaction = await summarize(chat, body, compact, _counter(chat, body), caller, context)
        if compaction.pauses:
            yield paused_stream(_paused(body, edits, compaction), compaction)
            return
        shortened = msgspec.structs.replace(body, messages=compaction.shorten(body.messages))
        prepared = await prepare_generation(chat, chat_request(shortened), caller, context, _FILLING)
    stream = MessageStream(_shape(body, prepared, edits, compaction))
    async with aclosing(prepared.batches):
        async for batch in prepared.batches:
            yield stream.encode(batch)
            if stream.failed:
                return
    yield stream.end()


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


async def _asks_to_compact(chat: ChatModel, body: MessagesRequest) -> Compact | None:
    """What the request says of a compaction, if its conversation is longer than it wants it to be."""
    asked = None if body.context_management is None else body.context_management.compact
    if asked is None:
        return None
    tokens = await _counter(chat, body)(body.messages)
    return asked if tokens > tokens_or_share(asked.trigger, COMPACTING_TOKENS, context_length(chat)) else None


def _paused(body: MessagesRequest, edits: AppliedEdits | UnsetType, compaction: Compaction) -> MessageShape:
    return MessageShape(_message_id(), body.model, 0, False, compaction=compaction, applied=edits)


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
