"""``POST /v1/chat/completions``."""

from contextlib import aclosing
from typing import Final

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.common.decoding import decode
from stentor.protocols.openai.chat import ChatRequest, ChatResponse, decoder

from ...generation.admission import GenerationOptions
from ...generation.chat_model import ChatModel
from ...generation.prepare import prepare_generation
from ...http.sse import EventStream
from ...http.whole_answer import AnswerBudget
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ...state.admission_control import AdmissionControl
from ...storage.database import Database
from ..common.described import Operations, generation
from ..common.endpoint import generation_route
from .shape import ChatShape
from .stored import Keeping
from .stream import ChatStream
from .whole import ChatCollector, chat_answer

OPERATIONS: Final[Operations] = {
    "/v1/chat/completions": generation(
        "Answer a conversation (chat completion)", ChatResponse, ChatRequest, streams=True
    ),
}


class ChatServices(msgspec.Struct, frozen=True):
    """Services of chat completions, with the store for clients that request it."""

    chat: ChatModel
    store: Database

    @property
    def admission(self) -> AdmissionControl:
        return self.chat.admission


def routes(services: ChatServices) -> list[Route]:
    return [generation_route("/v1/chat/completions", services, chat_completions)]


async def chat_completions(
    services: ChatServices, request: Request, content: bytes, context: RequestContext
) -> ASGIApp:
    chat, caller, memory = services.chat, caller_of(request.scope), context.queue_slot.memory
    body = decode(decoder, content, chat.limits)
    keeping = Keeping.of(services.store, caller.owner, body, memory) if body.store else None
    options = GenerationOptions(whole=not body.stream, tells_experts=True)
    prepared = await prepare_generation(chat, body, caller, context, options)
    text = None
    if body.return_prompt_text:
        text = await chat.pool.decode(prepared.prompt, skip_special_tokens=False)
        memory.add(len(text), "return_prompt_text")
    shape = ChatShape.of_prepared(request, body, prepared, chat.config, text)
    if keeping is not None:
        shape = replace(shape, response_id=keeping.id)
    budget = AnswerBudget(chat.limits.max_answer_bytes, memory)
    if body.stream:
        batches = prepared.batches
        if keeping is not None:
            batches = keeping.streamed(batches, ChatCollector(shape, budget), prepared.model, chat.loop_turns, memory)
        return EventStream(batches, ChatStream(shape), bounds=context.bounded)
    async with aclosing(prepared.batches):
        answer = await chat_answer(shape, prepared.batches, budget, chat.loop_turns)
        return answer if keeping is None else await keeping.keep(answer, prepared.model, memory)
