"""``POST /v1/completions``."""

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.common.decoding import decode
from stentor.protocols.openai.completions import CompletionRequest, CompletionResponse, decoder

from ...common.loop_turns import LoopTurns
from ...common.task_scope import run_together
from ...generation.chat_model import ChatModel
from ...generation.completion import PromptJob, prepare_completion
from ...http.sse import EventStream
from ...http.whole_answer import AnswerBudget, WholeAnswer
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.described import Operations, generation
from ..common.endpoint import generation_route
from ..common.merging import merge
from .stream import CompletionShape, CompletionStream, MergedCompletionStream
from .whole import CollectedPrompt, completion_answer

OPERATIONS: Final[Operations] = {
    "/v1/completions": generation(
        "Complete one or several prompts", CompletionResponse, CompletionRequest, streams=True
    ),
}


def routes(chat: ChatModel) -> list[Route]:
    return [generation_route("/v1/completions", chat, completions)]


async def completions(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(decoder, content, chat.limits)
    body.check(chat.limits)
    prepared = await prepare_completion(chat, body, caller_of(request.scope), context, fill_context=body.fills_context)
    jobs, tokenizer = prepared.jobs, chat.pool.tokenizer
    shape = CompletionShape.of(
        "cmpl",
        request,
        body,
        prepared.model,
        prepared.names,
        config=chat.config,
        logprobs=body.wanted_logprobs,
        echo_logprobs=body.logprobs,
        silent=tokenizer.special_ids if body.skip_special_tokens else frozenset(),
        experts=prepared.experts,
    )
    if body.stream:
        prompts = [job.prompt for job in jobs]
        if len(jobs) == 1:
            alone = CompletionStream.alone(shape, prompts[0])
            return EventStream(jobs[0].batches, alone, bounds=context.bounded)
        batches = merge([job.batches for job in jobs])
        return EventStream(batches, MergedCompletionStream(shape, prompts), bounds=context.bounded)
    return await _respond(
        shape, jobs, AnswerBudget(chat.limits.max_answer_bytes, context.queue_slot.memory), chat.loop_turns
    )


async def _respond(
    shape: CompletionShape, jobs: Sequence[PromptJob], budget: AnswerBudget, loop_turns: LoopTurns
) -> WholeAnswer:
    collected = [CollectedPrompt(shape, job.prompt, budget) for job in jobs]

    async def collect(job: PromptJob, into: CollectedPrompt) -> None:
        async with aclosing(job.batches):
            await into.collect(job.batches)

    await run_together(partial(collect, *each) for each in zip(jobs, collected, strict=True))
    return await completion_answer(shape, collected, budget, loop_turns)
