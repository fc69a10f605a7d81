"""SGLang's ``POST /generate``. The path is Text Generation Inference's too, whose route knows them apart."""

from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp

from stentor.protocols.common.decoding import converted, decode
from stentor.protocols.common.errors import wrong
from stentor.protocols.openai.completions import CompletionRequest
from stentor.protocols.sglang.request import SglangOne, SglangSampling, decoder

from ...generation.chat_model import ChatModel
from ...generation.completion import PreparedCompletion, PromptJob, prepare_completion
from ...generation.error_fields import map_error_fields
from ...generation.logprobs import TokenNames
from ...http.sse import EventStream
from ...http.whole_answer import AnswerBudget, WholeAnswer
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ..common.endpoint import name_anew, request_id
from ..common.merging import merge
from .encoder import SglangCollector, SglangShape, SglangStream, ShapedPrompt

_NAMES: Final = {
    "logprobs": "top_logprobs_num",
    "logprob_token_ids": "token_ids_logprob",
    "model": "lora_path",
    "max_tokens": "sampling_params.max_new_tokens",
    "min_tokens": "sampling_params.min_new_tokens",
    "seed": "sampling_params.sampling_seed",
    "include_stop_str_in_output": "sampling_params.no_stop_trim",
    "structured_outputs": "sampling_params",
    "structured_outputs.json": "sampling_params.json_schema",
    "structured_outputs.grammar": "sampling_params.ebnf",
    **{
        name: f"sampling_params.{name}"
        for name in SglangSampling.__struct_fields__
        if name in CompletionRequest.__struct_fields__
    },
}


async def sglang_generate(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(decoder, content, chat.limits)
    body.check(chat.limits)
    name_anew(request, body.rid if isinstance(body.rid, str) else None)
    parts = body.each()
    several = body.prompts is not None or (parts[0].sampling_params.n or 1) > 1
    jobs: list[PromptJob] = []
    prompts: list[ShapedPrompt] = []
    for part in parts:
        with map_error_fields({**_NAMES, "prompt": "input_ids" if body.text is None else "text"}):
            prepared = await _prepared(chat, request, part, context)
        jobs += prepared.jobs
        shape = _shape(chat, request, part, context, several)
        for job in prepared.jobs:
            _check_first(shape, len(job.prompt.tokens))
            prompts.append((shape, job.prompt))
            if shape.own_id and job.generation is not None:
                context.parts[shape.id] = job.generation.abort
    budget = AnswerBudget(chat.limits.max_answer_bytes, context.queue_slot.memory)
    batches = merge([job.batches for job in jobs])
    if body.stream:
        return EventStream(batches, SglangStream(prompts, budget), bounds=context.bounded)
    collector = SglangCollector(prompts, budget)
    async with aclosing(batches):
        async for arrived in batches:
            collector.take(arrived)
    return WholeAnswer([collector.answer()])


def _check_first(shape: SglangShape, tokens: int) -> None:
    """Raises BadRequest."""
    if shape.first_scored is not None and shape.first_scored > tokens:
        raise wrong(
            "logprob_start_len", f"is {shape.first_scored}, and the prompt has {tokens} tokens", "invalid_value"
        )


def _shape(chat: ChatModel, request: Request, part: SglangOne, context: RequestContext, several: bool) -> SglangShape:
    body = part.request
    own = part.rid if isinstance(body.rid, list) else None
    return SglangShape(
        own or request_id(request),
        own is not None,
        part.sampling_params.n or 1,
        TokenNames(chat.pool.tokenizer, as_ids=False),
        chat.admission.weight_version,
        context.arrival,
        several,
        part.return_logprob,
        part.top_logprobs_num,
        part.logprob_start_len if part.scores_prompt else None,
        body.return_text_in_logprobs,
        body.return_prompt_token_ids,
        part.probed,
    )


async def _prepared(chat: ChatModel, request: Request, part: SglangOne, context: RequestContext) -> PreparedCompletion:
    given = {name: value for name, value in part.fields().items() if value is not None}
    made: CompletionRequest = converted(given, CompletionRequest, "")
    made.check(chat.limits)
    # as many tokens as the client names must fit; a default need not
    fills = not isinstance(part.sampling_params.max_new_tokens, int)
    return await prepare_completion(chat, made, caller_of(request.scope), context, fill_context=fills)
