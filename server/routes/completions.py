"""``POST /v1/completions``."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.deltas import Delta, Finish, PromptProcessed
from stentor.protocols.openai.bounds import LIST_TOO_LONG
from stentor.protocols.openai.completions import CompletionRequest, CompletionResponse, decoder
from stentor.protocols.openai.completions import Prompt as RawPrompt
from stentor.protocols.openai.decoding import decode
from stentor.protocols.openai.errors import BadRequest
from stentor.protocols.openai.limits import MAX_PROMPT_LOGPROBS
from stentor.protocols.openai.structured import wanted_answer

from ..auth import caller_of
from ..conversation.admission import (
    Budget,
    check_prompt,
    context_length,
    most_prompt_tokens,
    output_room,
    resolve_sampling,
    too_long,
    truncate,
)
from ..conversation.bad_words import with_bad_words
from ..conversation.constraints import Constraints, answer_constraints
from ..conversation.generation import Observed, generation_request
from ..door.keys import Caller
from ..encoders.collect import Generation, collect
from ..encoders.completions import (
    CompletionShape,
    CompletionStream,
    MergedCompletionStream,
    Prompt,
    completion_response,
)
from ..encoders.logprobs import TokenNames
from ..overload.ticket import Ticket
from ..sse import Batches, EventStream
from ..state import ServerState
from ..text.errors import TextTooLong
from .described import Operation, Operations
from .endpoint import GenerationEndpoint, json_response
from .identity import response_id
from .merging import merge

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True)
class Job:
    prompt: Prompt
    batches: Batches[list[Delta]]


OPERATIONS: Final[Operations] = {
    "/v1/completions": Operation(
        "Continue one prompt or several",
        CompletionResponse,
        CompletionRequest,
        streams=True,
        generates=True,
        finds=True,
    ),
}


def routes(state: ServerState) -> list[Route]:
    return [Route("/v1/completions", GenerationEndpoint(state, completions), methods=["POST"])]


async def completions(state: ServerState, request: Request, content: bytes, ticket: Ticket) -> ASGIApp:
    body = decode(decoder, content, state.limits)
    body.check(state.limits)
    model = state.resolve_model(body.model)
    raw = body.prompts
    encoded = await _encode(state, body, raw)
    _check_prompt_logprobs(body, encoded)
    caller = caller_of(request.scope)
    constraints = await answer_constraints(state, wanted_answer(body, state.limits))
    jobs = [
        await _job(state, body, index, raw[index], tokens, ticket, caller, constraints)
        for index, tokens in enumerate(encoded)
    ]
    shape = _shape(state, body, request, model)
    if body.stream:
        prompts = [job.prompt for job in jobs]
        if len(jobs) == 1:
            alone = CompletionStream.alone(shape, prompts[0])
            return EventStream(jobs[0].batches, alone, state.keep_alive, ticket.bounded)
        batches = merge([job.batches for job in jobs])
        return EventStream(batches, MergedCompletionStream(shape, prompts), state.keep_alive, ticket.bounded)
    return await _respond(shape, jobs)


async def _encode(state: ServerState, body: CompletionRequest, prompts: Sequence[RawPrompt]) -> list[list[int]]:
    """Token ids of every prompt, as the client sent them or from its text."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    tokens = [prompt for prompt in prompts if not isinstance(prompt, str)]
    if not texts:
        return tokens
    most_tokens = most_prompt_tokens(state) if body.truncate_prompt_tokens is None else None
    try:
        if len(texts) == 1:
            return [await state.pool.encode(texts[0], body.add_special_tokens, most_tokens=most_tokens)]
        return await state.pool.encode_batch(texts, body.add_special_tokens, most_tokens=most_tokens)
    except TextTooLong as error:
        raise too_long(f"at least {error.fewest}", state, "prompt") from None


def _prompt_logprobs(body: CompletionRequest) -> int | None:
    """Alternatives for each token of a prompt; None where it is not scored."""
    if body.echo and body.logprobs is not None:
        return max(body.logprobs, body.prompt_logprobs or 0)
    return body.prompt_logprobs


def _check_prompt_logprobs(body: CompletionRequest, prompts: list[list[int]]) -> None:
    """Raises BadRequest where those of all prompts together are too many."""
    wanted = _prompt_logprobs(body)
    tokens = sum(map(len, prompts))
    if wanted is not None and len(prompts) > 1 and tokens * (wanted + 1) > MAX_PROMPT_LOGPROBS:
        raise BadRequest(
            f"The log-probabilities of {tokens} prompt tokens, {wanted + 1} each, are more than the "
            f"{MAX_PROMPT_LOGPROBS} that one request may ask for; send fewer prompts.",
            "prompt",
            LIST_TOO_LONG,
        )


async def _job(
    state: ServerState,
    body: CompletionRequest,
    index: int,
    raw: RawPrompt,
    tokens: list[int],
    ticket: Ticket,
    caller: Caller,
    constraints: Constraints,
) -> Job:
    budget = Budget(body.max_tokens, DEFAULT_MAX_TOKENS, "max_tokens", "prompt")
    prompt = truncate(tokens, body.truncate_prompt_tokens, budget, context_length(state))
    check_prompt(prompt, state, "prompt")
    max_tokens = output_room(len(prompt), budget, state)
    prompt_logprobs = _prompt_logprobs(body)
    prompt_only = max_tokens == 0
    if prompt_only and prompt_logprobs is not None:
        # The engine scores a prompt on the way to its first token, which is then not delivered.
        max_tokens = output_room(len(prompt), Budget(1, None, "max_tokens", "prompt"), state)
    params = resolve_sampling(body, state, max_tokens, logprobs=body.logprobs, prompt_logprobs=prompt_logprobs)
    params = await with_bad_words(state, params, body.bad_words)
    echo = await _echo(state, raw, prompt, prompt is tokens) if body.echo else None
    batches: Batches[list[Delta]]
    if prompt_only and prompt_logprobs is None:
        batches = _nothing(body.choices)
    else:
        batches = Observed(
            state, generation_request(body, prompt, params, caller, constraints), ticket.arrival, ticket.permit
        )
        if prompt_only:
            batches = _only_prompt(batches, body.choices)
    return Job(Prompt(index, prompt, echo), batches)


async def _echo(state: ServerState, raw: RawPrompt, prompt: list[int], whole: bool) -> str:
    """The prompt as text: the client's own where it sent text and nothing was cut off."""
    if whole and isinstance(raw, str):
        return raw
    return await state.pool.decode(prompt, skip_special_tokens=False)


async def _nothing(n: int) -> AsyncGenerator[list[Delta], None]:
    """A generation of no tokens, for which the engine is not asked."""
    yield [PromptProcessed(0, None), *_ends(n)]


async def _only_prompt(batches: Batches[list[Delta]], n: int) -> AsyncGenerator[list[Delta], None]:
    """The prompt's part of a generation; the rest is given up."""
    async with aclosing(batches):
        async for batch in batches:
            for delta in batch:
                if isinstance(delta, PromptProcessed):
                    yield [delta, *_ends(n)]
                    return
                if isinstance(delta, Finish):
                    yield [delta]
                    return


def _ends(n: int) -> list[Delta]:
    return [Finish(index, "length", None, None) for index in range(n)]


async def _respond(shape: CompletionShape, jobs: list[Job]) -> Response:
    generations: dict[int, Generation] = {}
    failures: list[Exception] = []

    async def run(job: Job, scope: anyio.CancelScope) -> None:
        try:
            async with aclosing(job.batches):
                generations[job.prompt.index] = await collect(job.batches, shape.n)
        except Exception as error:
            failures.append(error)
            scope.cancel()

    async with anyio.create_task_group() as tasks:
        for job in jobs:
            tasks.start_soon(run, job, tasks.cancel_scope)
    if failures:
        raise failures[0]
    ordered = [generations[job.prompt.index] for job in jobs]
    return json_response(completion_response(shape, [job.prompt for job in jobs], ordered))


def _shape(state: ServerState, body: CompletionRequest, request: Request, model: str) -> CompletionShape:
    options = body.stream_options
    return CompletionShape(
        response_id=response_id("cmpl", request, body.request_id),
        created=int(time.time()),
        model=model,
        n=body.choices,
        names=TokenNames(state.pool.tokenizer, bool(body.return_tokens_as_token_ids)),
        logprobs=body.logprobs,
        silent=state.pool.tokenizer.special_ids if body.skip_special_tokens else frozenset(),
        prompt_logprobs=body.prompt_logprobs,
        token_ids=bool(body.return_token_ids),
        include_usage=options is not None and (options.include_usage or options.continuous_usage_stats),
        continuous_usage=options is not None and options.continuous_usage_stats,
    )
