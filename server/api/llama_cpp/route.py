"""Endpoints of llama.cpp's server: completions, fill-in, templates, and its description."""

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NoReturn

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

import stentor
from stentor.protocols.common.decoding import converted, decode
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.llama_cpp.objects import (
    LlamaAdapter,
    LlamaCompletion,
    LlamaPrompt,
    LlamaProps,
    LlamaSlot,
    LlamaTokensCount,
)
from stentor.protocols.llama_cpp.request import (
    ExtraFile,
    LlamaCompletionRequest,
    LlamaFields,
    LlamaInfillRequest,
    completion_decoder,
    infill_decoder,
)
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.chat import decoder as chat_decoder
from stentor.protocols.openai.completions import CompletionRequest, Prompt

from ...common.errors import Unavailable
from ...common.task_scope import run_together
from ...generation.chat_model import ChatModel
from ...generation.completion import infill_prompts, prepare_completion
from ...generation.error_fields import map_error_fields
from ...generation.prepare import prompt_of
from ...http.error_responses import error_frame
from ...http.error_shapes import LLAMA_CPP
from ...http.sse import EventStream
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ...state.engine_control import EngineControl
from ..common.described import Operation, Operations, generation
from ..common.endpoint import generation_route, json_response
from ..common.merging import merge
from ..common.query import switch_of
from .encoder import CompletionShape, CompletionStream, MergedStream, whole_completion
from .prompts import joined_prompts

_COMPLETION: Final = ("/completion", "/completions")
_COUNT: Final = "/v1/chat/completions/input_tokens"
_NAMES: Final = {
    "max_tokens": "n_predict",
    "repetition_penalty": "repeat_penalty",
    "structured_outputs.json": "json_schema",
    "structured_outputs.grammar": "grammar",
    "logprobs": "n_probs",
}

_REFUSED: Final = {
    "/props": "properties are options of `stentor serve`; start it with others",
    "/lora-adapters": "no adapter is scaled for all requests; a request names an adapter as `model`",
    "/slots/{id_slot}": "slots have no caches of their own; prefixes are cached for all requests, also in host memory "
    "with --kv-offloading-size",
}
"""Requests that are always refused, and the alternative."""

OPERATIONS: Final[Operations] = {
    **dict.fromkeys(
        _COMPLETION,
        generation(
            "Complete one or several prompts (llama.cpp's server)",
            LlamaCompletion | list[LlamaCompletion],
            LlamaCompletionRequest,
            streams=True,
            errors=LLAMA_CPP,
        ),
    ),
    "/infill": generation(
        "Fill in the middle of a text (llama.cpp's server)",
        LlamaCompletion,
        LlamaInfillRequest,
        streams=True,
        errors=LLAMA_CPP,
    ),
    "/apply-template": generation(
        "Write a conversation as a prompt (llama.cpp's server)", LlamaPrompt, ChatRequest, errors=LLAMA_CPP
    ),
    _COUNT: generation("Count the prompt tokens of a conversation (llama.cpp's server)", LlamaTokensCount, ChatRequest),
    "/props": Operation("Describe the model and its defaults (llama.cpp's server)", LlamaProps, errors=LLAMA_CPP),
    "/lora-adapters": Operation("List the adapters (llama.cpp's server)", list[LlamaAdapter], errors=LLAMA_CPP),
    **{f"POST {path}": Operation(f"Is refused: {why}", None, errors=LLAMA_CPP) for path, why in _REFUSED.items()},
    "/slots": Operation(
        "Say how many sequences are computed (llama.cpp's server)",
        list[LlamaSlot],
        query={"fail_on_no_slot": bool},
        needs_engine=True,
        errors=LLAMA_CPP,
    ),
}


def routes(chat: ChatModel, control: EngineControl) -> list[Route]:
    return [
        *(generation_route(path, chat, completion) for path in _COMPLETION),
        generation_route("/infill", chat, infill),
        generation_route("/apply-template", chat, apply_template),
        generation_route(_COUNT, chat, count_tokens),
        Route("/props", partial(props, chat, control), methods=["GET"]),
        Route("/slots", partial(show_slots, chat), methods=["GET"]),
        Route("/lora-adapters", partial(list_adapters, chat), methods=["GET"]),
        *(Route(path, partial(_refuse, why), methods=["POST"]) for path, why in _REFUSED.items()),
    ]


async def completion(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(completion_decoder, content, chat.limits)
    body.check()
    with map_error_fields(_NAMES):
        wanted = _request(body, await joined_prompts(chat.pool, body.prompts, "prompt", chat.limits))
        wanted.check(chat.limits)
    return await _answer(chat, request, body, wanted, context)


async def infill(chat: ChatModel, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(infill_decoder, content, chat.limits)
    body.check()
    with map_error_fields({**_NAMES, "suffix": "input_suffix", "prompt": "input_prefix"}):
        wanted = _request(body, body.input_prefix + body.prompt)
        wanted.check(chat.limits)
        wanted = infill_prompts(chat, wanted, body.input_suffix)
        assert isinstance(wanted.prompt, list)
        wanted.prompt = [_extra(chat, body.input_extra) + str(text) for text in wanted.prompt]
        wanted.check(chat.limits)
    return await _answer(chat, request, body, wanted, context)


async def apply_template(chat: ChatModel, _request: Request, content: bytes, context: RequestContext) -> Response:
    body = decode(chat_decoder, content, chat.limits)
    tokens = await prompt_of(chat, body, context.queue_slot.memory)
    return json_response(LlamaPrompt(await chat.pool.decode(tokens, skip_special_tokens=False)))


async def count_tokens(chat: ChatModel, _request: Request, content: bytes, context: RequestContext) -> Response:
    body = decode(chat_decoder, content, chat.limits)
    return json_response(LlamaTokensCount(len(await prompt_of(chat, body, context.queue_slot.memory))))


async def props(chat: ChatModel, control: EngineControl, _request: Request) -> Response:
    tokenizer, defaults, modalities = chat.pool.tokenizer, chat.defaults, chat.input_modalities
    params = {
        "temperature": defaults.temperature,
        "top_k": defaults.top_k,
        "top_p": defaults.top_p,
        "min_p": defaults.min_p,
        "repeat_penalty": defaults.repetition_penalty,
        "n_predict": -1,
    }
    settings: dict[str, Any] = {"n_ctx": chat.max_model_len or 0, "params": params}
    name = chat.config.served_names[0]
    return json_response(
        LlamaProps(
            settings,
            _slots(chat),
            name,
            name,
            tokenizer.template_source,
            tokenizer.bos_token or "",
            tokenizer.eos_token or "",
            {"vision": "image" in modalities, "audio": "audio" in modalities},
            f"stentor-{stentor.__version__}",
            control.level is not None,
        )
    )


async def show_slots(chat: ChatModel, request: Request) -> Response:
    """One slot for each possible sequence; only the number of busy ones is meaningful."""
    chat.admission.check_available()
    slots = _slots(chat)
    busy = min(chat.client.stats.running, slots)
    if switch_of(request, "fail_on_no_slot") and busy == slots:
        raise Unavailable("No sequence can begin now; requests wait.", "no_slot")
    context = chat.max_model_len or 0
    return json_response([LlamaSlot(place, context, place < busy) for place in range(slots)])


async def list_adapters(chat: ChatModel, _request: Request) -> Response:
    adapters = chat.registry.adapters
    return json_response([LlamaAdapter(place, adapter.name, 0.0) for place, adapter in enumerate(adapters)])


async def _refuse(why: str, _request: Request) -> NoReturn:
    raise BadRequest(f"This server does not do that: {why}.", code="unsupported")


def _slots(chat: ChatModel) -> int:
    """Sequences that a step computes at most, as the engine settled it; before it is ready, 0."""
    return 0 if chat.client.ready is None else chat.client.ready.max_num_seqs


def _request(body: LlamaFields, prompt: Prompt | list[Prompt]) -> CompletionRequest:
    fields = {**body.fields(), "prompt": prompt}
    given = {name: value for name, value in fields.items() if value is not None}
    made: CompletionRequest = converted(given, CompletionRequest, "")
    return made


def _extra(chat: ChatModel, files: Sequence[ExtraFile]) -> str:
    mark = "" if chat.infill is None else chat.infill.file
    return "".join(f"{mark}{file.filename}\n{file.text}\n" for file in files)


async def _answer(
    chat: ChatModel, request: Request, body: LlamaFields, wanted: CompletionRequest, context: RequestContext
) -> ASGIApp:
    with map_error_fields(_NAMES):
        prepared = await prepare_completion(chat, wanted, caller_of(request.scope), context, fill_context=True)
    shapes = [
        CompletionShape(
            prepared.model,
            len(job.prompt.tokens),
            prepared.names,
            index,
            body.n_probs or 0,
            body.post_sampling_probs,
            body.return_tokens,
            tuple(body.response_fields or ()),
            warm_up=body.n_predict == 0,
        )
        for index, job in enumerate(prepared.jobs)
    ]
    batches = [job.batches for job in prepared.jobs]
    if body.stream:
        to_frame = partial(error_frame, shape=LLAMA_CPP)
        if len(batches) == 1:
            return EventStream(batches[0], CompletionStream(shapes[0]), bounds=context.bounded, to_frame=to_frame)
        return EventStream(merge(batches), MergedStream(shapes), bounds=context.bounded, to_frame=to_frame)
    answers: dict[int, Any] = {}

    async def collect(index: int) -> None:
        async with aclosing(batches[index]):
            answers[index] = await whole_completion(shapes[index], batches[index])

    await run_together(partial(collect, index) for index in range(len(batches)))
    return json_response(answers[0] if len(batches) == 1 else [answers[index] for index in range(len(batches))])
