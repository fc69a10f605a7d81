"""``POST /``, ``/generate`` and ``/generate_stream``: Text Generation Inference, and SGLang's ``/generate``."""

from contextlib import aclosing
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.common.decoding import converted, decode
from stentor.protocols.hugging_face.objects import GenerateResponse
from stentor.protocols.hugging_face.request import GenerateRequest, generate_decoder
from stentor.protocols.openai.completions import CompletionRequest
from stentor.protocols.sglang.objects import SglangAnswer
from stentor.protocols.sglang.request import SglangRequest, fields_decoder

from ...generation.chat_model import ChatModel
from ...generation.completion import prepare_completion
from ...generation.error_fields import map_error_fields
from ...http.error_responses import error_frame
from ...http.error_shapes import OPENAI, SCOPE_SHAPE, TEXT_GENERATION
from ...http.sse import EventStream
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.described import Operations, OtherProtocol, generation
from ..common.endpoint import generation_route, json_response
from ..sglang.generate import sglang_generate
from .encoder import GenerationShape, GenerationStream, whole_generation

_NAMES: Final = {
    "prompt": "inputs",
    "model": "parameters.adapter_id",
    "max_tokens": "parameters.max_new_tokens",
    "truncate_prompt_tokens": "parameters.truncate",
    "structured_outputs": "parameters.grammar",
    "structured_outputs.json": "parameters.grammar.value",
    "structured_outputs.regex": "parameters.grammar.value",
    **{
        name: f"parameters.{name}"
        for name in ("temperature", "top_k", "top_p", "repetition_penalty", "frequency_penalty", "seed", "stop")
    },
}

OPERATIONS: Final[Operations] = {
    "POST /": generation(
        "Complete a prompt, as a list of one (Text Generation Inference)",
        list[GenerateResponse],
        GenerateRequest,
        streams=True,
        errors=TEXT_GENERATION,
    ),
    "/generate": generation(
        "Complete a prompt (Text Generation Inference, with `inputs`), or prompts (SGLang, with `text` or `input_ids`)",
        GenerateResponse,
        GenerateRequest,
        streams=True,
        errors=TEXT_GENERATION,
        other=OtherProtocol(SglangRequest, (SglangAnswer, list[SglangAnswer]), OPENAI),
    ),
    "/generate_stream": generation(
        "Complete a prompt in events (Text Generation Inference)",
        str,
        GenerateRequest,
        media_type="text/event-stream",
        errors=TEXT_GENERATION,
    ),
}


def routes(chat: ChatModel) -> list[Route]:
    return [
        generation_route("/", chat, partial(generate, listed=True)),
        generation_route("/generate", chat, generate_of_either),
        generation_route("/generate_stream", chat, partial(generate, streamed=True)),
    ]


async def generate_of_either(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    """SGLang has the same path; the fields of the body show whose request it is."""
    if not decode(fields_decoder, content, chat.limits).of_sglang:
        return await generate(chat, request, content, context)
    # the errors that SGLang's clients read are a part of OpenAI's
    request.scope[SCOPE_SHAPE] = OPENAI
    return await sglang_generate(chat, request, content, context)


async def generate(
    chat: ChatModel,
    request: Request,
    content: bytes,
    context: RequestContext,
    *,
    streamed: bool = False,
    listed: bool = False,
) -> ASGIApp:
    """``listed``: as a list, as Hugging Face's hosted models answer."""
    body = decode(generate_decoder, content, chat.limits)
    streamed = streamed or body.stream
    wanted = body.parameters
    wanted.check()
    fields = {**wanted.fields(), "prompt": body.inputs, "stream": streamed}
    if streamed or wanted.details:
        fields["logprobs"] = 0
    with map_error_fields(_NAMES):
        given = {name: value for name, value in fields.items() if value is not None}
        made: CompletionRequest = converted(given, CompletionRequest, "")
        made.check(chat.limits)
        fills = wanted.max_new_tokens is None
        prepared = await prepare_completion(chat, made, caller_of(request.scope), context, fill_context=fills)
    (job,) = prepared.jobs
    shape = GenerationShape(
        len(job.prompt.tokens),
        prepared.names,
        chat.pool.tokenizer.special_ids,
        body.inputs if wanted.return_full_text else "",
        wanted.seed,
        wanted.details,
    )
    if streamed:
        to_frame = partial(error_frame, shape=TEXT_GENERATION)
        return EventStream(job.batches, GenerationStream(shape), bounds=context.bounded, to_frame=to_frame)
    async with aclosing(job.batches):
        whole = await whole_generation(shape, job.batches)
        return json_response([whole] if listed else whole)
