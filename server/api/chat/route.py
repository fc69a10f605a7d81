"""``POST /v1/chat/completions``."""

import time
from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.common.decoding import decode
from stentor.protocols.openai.chat import ChatRequest, ChatResponse, decoder

from ...generation.chat_model import ChatModel
from ...generation.prepare import PreparedGeneration, prepare_generation
from ...http.sse import EventStream
from ...http.whole_answer import AnswerBudget
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, response_id
from .shape import ChatShape
from .stream import ChatStream
from .whole import chat_answer

OPERATIONS: Final[Operations] = {
    "/v1/chat/completions": generation(
        "Answer a conversation (chat completion)", ChatResponse, ChatRequest, streams=True
    ),
}


def routes(chat: ChatModel) -> list[Route]:
    return [generation_route("/v1/chat/completions", chat, chat_completions)]


async def chat_completions(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(decoder, content, chat.limits)
    turn = await prepare_generation(chat, body, caller_of(request.scope), context, whole=not body.stream)
    shape = _shape(body, request, turn)
    if body.stream:
        return EventStream(turn.batches, ChatStream(shape), bounds=context.bounded)
    async with aclosing(turn.batches):
        room = AnswerBudget(chat.limits.max_answer_bytes, context.queue_slot.memory)
        return await chat_answer(shape, turn.batches, room, chat.turns)


def _shape(body: ChatRequest, request: Request, turn: PreparedGeneration) -> ChatShape:
    options = body.stream_options
    return ChatShape(
        response_id=response_id("chatcmpl", request, body.request_id),
        created=int(time.time()),
        model=turn.model,
        prompt=turn.prompt,
        n=turn.n,
        names=turn.names,
        top_logprobs=body.wanted_logprobs,
        prompt_logprobs=body.prompt_logprobs,
        token_ids=bool(body.return_token_ids),
        include_usage=options is not None and (options.include_usage or options.continuous_usage_stats),
        continuous_usage=options is not None and options.continuous_usage_stats,
        include_reasoning=body.include_reasoning,
        tools=turn.tools,
    )
