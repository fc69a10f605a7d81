"""``POST /v1/chat/completions``."""

from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.common.decoding import decode
from stentor.protocols.openai.chat import ChatRequest, ChatResponse, decoder

from ...generation.chat_model import ChatModel
from ...generation.prepare import prepare_generation
from ...http.sse import EventStream
from ...http.whole_answer import AnswerBudget
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.described import Operations, generation
from ..common.endpoint import generation_route
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
    turn = await prepare_generation(
        chat, body, caller_of(request.scope), context, whole=not body.stream, tells_experts=True
    )
    shape = ChatShape.of(
        "chatcmpl",
        request,
        body,
        turn.model,
        turn.names,
        prompt=turn.prompt,
        top_logprobs=body.wanted_logprobs,
        include_reasoning=body.include_reasoning,
        tools=turn.tools,
        media_tokens=turn.media_tokens,
        experts=turn.experts,
    )
    if body.stream:
        return EventStream(turn.batches, ChatStream(shape), bounds=context.bounded)
    async with aclosing(turn.batches):
        room = AnswerBudget(chat.limits.max_answer_bytes, context.queue_slot.memory)
        return await chat_answer(shape, turn.batches, room, chat.turns)
