"""``POST /v1/chat/completions``."""

import time
from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.deltas import Delta
from stentor.protocols.openai.chat import ChatRequest, ChatResponse, decoder
from stentor.protocols.openai.decoding import decode

from ..auth import caller_of
from ..encoders.chat import ChatShape, ChatStream, chat_response
from ..encoders.collect import collect
from ..encoders.logprobs import TokenNames
from ..overload.ticket import Ticket
from ..sse import Batches, EventStream
from ..state import ServerState
from .admission import Budget, check_prompt, context_length, most_prompt_tokens, output_room, resolve_sampling, truncate
from .described import Operation, Operations
from .endpoint import GenerationEndpoint, json_response
from .generation import Observed, generation_request
from .identity import response_id
from .rendering import render_messages

OPERATIONS: Final[Operations] = {
    "/v1/chat/completions": Operation(
        "Answer a conversation", ChatResponse, ChatRequest, streams=True, generates=True, finds=True
    ),
}


def routes(state: ServerState) -> list[Route]:
    return [Route("/v1/chat/completions", GenerationEndpoint(state, chat_completions), methods=["POST"])]


async def chat_completions(state: ServerState, request: Request, content: bytes, ticket: Ticket) -> ASGIApp:
    body = decode(decoder, content, state.limits)
    body.check(state.limits)
    model = state.resolve_model(body.model)
    context = context_length(state)
    budget = Budget(body.wanted_tokens, None, body.max_tokens_field, "messages")
    most_tokens = most_prompt_tokens(state) if body.truncate_prompt_tokens is None else None
    prompt = await render_messages(state, body, body.messages, body.add_special_tokens, most_tokens)
    prompt = truncate(prompt, body.truncate_prompt_tokens, budget, context)
    check_prompt(prompt, state, "messages")
    params = resolve_sampling(
        body,
        state,
        output_room(len(prompt), budget, state),
        logprobs=body.wanted_logprobs,
        prompt_logprobs=body.prompt_logprobs,
    )
    shape = _shape(state, body, request, model, prompt)
    wanted = generation_request(body, prompt, params, caller_of(request.scope))
    batches = Observed(state, wanted, ticket.arrival, ticket.permit)
    if body.stream:
        return EventStream(batches, ChatStream(shape), state.keep_alive, ticket.bounded)
    return await _respond(batches, shape)


async def _respond(batches: Batches[list[Delta]], shape: ChatShape) -> Response:
    async with aclosing(batches):
        return json_response(chat_response(shape, await collect(batches, shape.n)))


def _shape(state: ServerState, body: ChatRequest, request: Request, model: str, prompt: list[int]) -> ChatShape:
    options = body.stream_options
    return ChatShape(
        response_id=response_id("chatcmpl", request, body.request_id),
        created=int(time.time()),
        model=model,
        prompt=prompt,
        n=body.choices,
        names=TokenNames(state.pool.tokenizer, bool(body.return_tokens_as_token_ids)),
        top_logprobs=body.wanted_logprobs,
        prompt_logprobs=body.prompt_logprobs,
        token_ids=bool(body.return_token_ids),
        include_usage=options is not None and (options.include_usage or options.continuous_usage_stats),
        continuous_usage=options is not None and options.continuous_usage_stats,
    )
