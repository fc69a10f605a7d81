"""``POST /inference/v1/generate``: token ids in, token ids out."""

from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.common.decoding import decode
from stentor.protocols.openai.generate import TokensRequest, TokensResponse, TokensSampling, decoder

from ...generation.chat_model import ChatModel
from ...generation.completion import prepare_completion
from ...generation.error_fields import map_error_fields
from ...generation.logprobs import TokenNames
from ...http.sse import EventStream
from ...http.whole_answer import AnswerBudget
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.chunks import stream_options_of
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, name_anew, request_id
from .encoder import TokensShape, TokensStream, tokens_answer

OPERATIONS: Final[Operations] = {
    "/inference/v1/generate": generation(
        "Continue a prompt of token ids by token ids (vLLM)", TokensResponse, TokensRequest, streams=True
    ),
}
_BESIDE: Final = frozenset(TokensRequest.__struct_fields__)
_NAMES: Final = {
    "prompt": "token_ids",
    **{name: f"sampling_params.{name}" for name in TokensSampling.__struct_fields__ if name not in _BESIDE},
}


def routes(chat: ChatModel) -> list[Route]:
    return [generation_route("/inference/v1/generate", chat, generate)]


async def generate(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(decoder, content, chat.limits)
    wanted = body.completion()
    name_anew(request, body.request_id)
    with map_error_fields(_NAMES):
        wanted.check(chat.limits)
        fills = wanted.max_tokens is None
        prepared = await prepare_completion(chat, wanted, caller_of(request.scope), context, fill_context=fills)
    (job,) = prepared.jobs
    shape = TokensShape(
        request_id(request),
        prepared.model,
        len(job.prompt.tokens),
        wanted.choices,
        TokenNames(chat.pool.tokenizer, as_ids=True),
        wanted.wanted_logprobs,
        wanted.prompt_logprobs,
        stream_options_of(body, chat.config).include_usage,
        prepared.experts,
        ranked=wanted.logprob_token_ids is None,
    )
    if body.stream:
        return EventStream(job.batches, TokensStream(shape), bounds=context.bounded)
    async with aclosing(job.batches):
        budget = AnswerBudget(chat.limits.max_answer_bytes, context.queue_slot.memory)
        return await tokens_answer(shape, job.batches, budget, chat.loop_turns)
