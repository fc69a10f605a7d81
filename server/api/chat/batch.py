"""``POST /v1/chat/completions/batch``: several conversations in one request, with a choice for each (vLLM)."""

from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Final

from msgspec import UNSET
from starlette.requests import Request
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.openai.chat import ChatChoice, ChatResponse
from stentor.protocols.openai.chat_batch import ChatBatchRequest, decoder
from stentor.protocols.openai.usage import Usage

from ...common.loop_turns import Slices
from ...common.task_scope import run_together
from ...generation.chat_model import ChatModel
from ...generation.prepare import PreparedGeneration, prepare_generation
from ...http.whole_answer import AnswerBudget, AnswerParts, WholeAnswer
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.described import Operations, generation
from ..common.endpoint import generation_route
from .shape import ChatShape
from .whole import ChatCollector

OPERATIONS: Final[Operations] = {
    "/v1/chat/completions/batch": generation(
        "Answer several conversations, with a choice for each", ChatResponse, ChatBatchRequest
    ),
}


def routes(chat: ChatModel) -> list[Route]:
    return [generation_route("/v1/chat/completions/batch", chat, chat_batch)]


async def chat_batch(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> WholeAnswer:
    body = decode(decoder, content, chat.limits)
    body.check(chat.limits)
    caller = caller_of(request.scope)
    async with AsyncExitStack() as opened:
        prepared = []
        for one in body.requests():
            generation = await prepare_generation(chat, one, caller, context)
            await opened.enter_async_context(aclosing(generation.batches))
            prepared.append((ChatShape.of_prepared(request, one, generation, chat.config), generation))
        budget = AnswerBudget(chat.limits.max_answer_bytes, context.queue_slot.memory)
        collectors = [ChatCollector(shape, budget) for shape, _ in prepared]
        await _collect([generation for _, generation in prepared], collectors)
    parts, slices = AnswerParts(budget), Slices(chat.loop_turns)
    choices: list[ChatChoice] = []
    usages: list[Usage] = []
    for index, collector in enumerate(collectors):
        made, usage = await collector.choices(parts, slices, first=index)
        choices += made
        usages.append(usage)
    shape = prepared[0][0]
    return parts.answer(
        ChatResponse(
            shape.response_id,
            shape.created,
            shape.model,
            choices,
            Usage.sum(usages),
            system_fingerprint=shape.fingerprint or UNSET,
        )
    )


async def _collect(generations: Sequence[PreparedGeneration], collectors: Sequence[ChatCollector]) -> None:
    """Runs all generations. Raises the error of the first that fails."""

    async def collect(generation: PreparedGeneration, into: ChatCollector) -> None:
        async with aclosing(generation.batches):
            async for batch in generation.batches:
                into.take(batch)

    await run_together(partial(collect, *each) for each in zip(generations, collectors, strict=True))
