"""Control in SGLang's paths and shapes, as trainers call it: other weights, pause, memory, cache. For admin keys."""

import time
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import stentor
from stentor.engine.client.controls import ControlFailed
from stentor.protocols.common.decoding import decode
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest

from ...common.errors import WeightsNotLoaded
from ...common.keys import Keyring
from ...generation.chat_model import ChatModel
from ...middleware.auth import AdminRoute
from ...state.engine_control import Part, PauseMode
from ..common.described import Operation, Operations
from ..common.endpoint import json_response, read_counted_body
from .control import ControlStatus
from .weights import Version, WeightInfo, WeightServices, WeightsPath

_Tag = Literal["weights", "kv_cache", "cuda_graph"]
_Tags = Annotated[list[_Tag], msgspec.Meta(max_length=16)]


class UpdateFromDiskRequest(msgspec.Struct, kw_only=True):
    """``is_async``, ``torch_empty_cache``, ``recapture_cuda_graph``, ``token_step`` and ``manifest`` have no effect."""

    model_path: WeightsPath
    """A folder or file below ``--weights-folder``, or MODEL's own path."""
    load_format: str | None = None
    abort_all_requests: bool = False
    """Live requests are ended with an error; else they are finished first, or wait if the server is paused."""
    weight_version: Version | None = None
    keep_pause: bool = False
    """Leave the server paused."""
    flush_cache: bool = True


class PauseGenerationRequest(msgspec.Struct, kw_only=True):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class AbortGenerationRequest(msgspec.Struct, kw_only=True):
    rid: Annotated[str, msgspec.Meta(max_length=256)] = ""
    abort_all: bool = False


class MemoryRequest(msgspec.Struct, kw_only=True):
    tags: _Tags | None = None


class UpdateOutcome(msgspec.Struct, frozen=True):
    success: bool
    message: str
    num_paused_requests: int = 0


class MainModelInfo(msgspec.Struct, frozen=True):
    model_path: str
    tokenizer_path: str
    is_generation: bool
    weight_version: str
    has_image_understanding: bool
    has_audio_understanding: bool
    architectures: list[str]
    preferred_sampling_params: None = None


class EngineInfo(msgspec.Struct, frozen=True):
    version: str
    model_path: str
    served_model_name: str
    weight_version: str
    tp_size: int
    pp_size: int
    dp_size: int
    max_total_num_tokens: int | None
    max_running_requests: int | None
    internal_states: list[dict[str, float]]


class EngineLoad(msgspec.Struct, frozen=True):
    dp_rank: int
    num_running_reqs: int
    num_waiting_reqs: int
    num_reqs: int
    """Both."""
    num_used_tokens: int
    """Of the KV cache."""
    num_tokens: int
    """The same, by its former name."""
    max_total_num_tokens: int | None
    token_usage: float
    max_running_requests: int | None


class Loads(msgspec.Struct, frozen=True):
    timestamp: float
    version: str
    dp_rank_count: int
    loads: list[EngineLoad]


update_decoder: Final = msgspec.json.Decoder(UpdateFromDiskRequest)
pause_decoder: Final = msgspec.json.Decoder(PauseGenerationRequest)
abort_decoder: Final = msgspec.json.Decoder(AbortGenerationRequest)
memory_decoder: Final = msgspec.json.Decoder(MemoryRequest)

_MODES: Final[dict[str, PauseMode]] = {"abort": "abort", "retract": "keep", "in_place": "keep"}

OPERATIONS: Final[Operations] = {
    "/update_weights_from_disk": Operation(
        "Have the main model's engine load other weights of the same architecture (SGLang)",
        UpdateOutcome,
        UpdateFromDiskRequest,
    ),
    "/pause_generation": Operation(
        "As `/pause`; the modes `retract` and `in_place` are `keep`", ControlStatus, PauseGenerationRequest
    ),
    "/continue_generation": Operation("As `/resume`", ControlStatus),
    "/release_memory_occupation": Operation(
        "As `/sleep?level=1&mode=keep`, for any `tags`", ControlStatus, MemoryRequest
    ),
    "/resume_memory_occupation": Operation(
        "As `/wake_up`, with `tags` once `weights` and `kv_cache` were both named", ControlStatus, MemoryRequest
    ),
    "/abort_request": Operation("End a live request, or with `abort_all` all", ControlStatus, AbortGenerationRequest),
    "/flush_cache": Operation("As `/reset_prefix_cache`", str, media_type="text/plain"),
    "/get_weight_version": Operation("The version of the weights", WeightInfo),
    "/weight_version": Operation("The version of the weights", WeightInfo),
    "/get_model_info": Operation("Describe the main model and the version of its weights", MainModelInfo),
    "/model_info": Operation("Describe the main model and the version of its weights", MainModelInfo),
    "/get_load": Operation("The load of the main model's engine", list[EngineLoad]),
    "/v1/loads": Operation("The load of the main model's engine", Loads),
    "/get_server_info": Operation("Describe the server: version, sizes, present figures", EngineInfo),
}


class _Services(msgspec.Struct, frozen=True):
    weights: WeightServices
    chat: ChatModel
    """The main model, also where it does not chat."""


def routes(weights: WeightServices, chat: ChatModel, keys: Keyring) -> list[Route]:
    services = _Services(weights, chat)
    return [
        AdminRoute("/update_weights_from_disk", partial(update_from_disk, weights), keys, methods=["POST"]),
        AdminRoute("/pause_generation", partial(pause_generation, weights), keys, methods=["POST"]),
        AdminRoute("/continue_generation", partial(continue_generation, weights), keys, methods=["POST"]),
        AdminRoute("/release_memory_occupation", partial(release_memory, weights), keys, methods=["POST"]),
        AdminRoute("/resume_memory_occupation", partial(resume_memory, weights), keys, methods=["POST"]),
        AdminRoute("/abort_request", partial(abort_request, weights), keys, methods=["POST"]),
        AdminRoute("/flush_cache", partial(flush_cache, weights), keys, methods=["GET", "POST"]),
        Route("/get_weight_version", partial(weight_version, weights), methods=["GET"]),
        Route("/weight_version", partial(weight_version, weights), methods=["GET"]),
        Route("/get_model_info", partial(model_info, services), methods=["GET"]),
        Route("/model_info", partial(model_info, services), methods=["GET"]),
        AdminRoute("/get_load", partial(engine_load, services), keys, methods=["GET"], open_without=True),
        AdminRoute("/v1/loads", partial(engine_loads, services), keys, methods=["GET"], open_without=True),
        AdminRoute("/get_server_info", partial(server_info, services), keys, methods=["GET"]),
    ]


async def update_from_disk(services: WeightServices, request: Request) -> Response:
    content, admission = await read_counted_body(request, services.admission), services.admission
    body = decode(update_decoder, content, admission.limits)
    if not body.flush_cache:
        raise BadRequest(
            "The cache is of the former weights and is always dropped: leave `flush_cache` out.",
            "flush_cache",
            "unsupported",
        )
    weights = await services.others.find(body.model_path, body.load_format, "model_path")
    version = services.named(body.weight_version, "weight_version")
    paused = services.control.paused
    mode: PauseMode = "abort" if body.abort_all_requests else "keep" if paused else "wait"
    waiting = admission.live_requests if mode == "keep" else 0
    try:
        await services.update(weights, version, mode, keep_pause=body.keep_pause)
    except ControlFailed as failure:
        message = f"The weights could not be loaded, and the former ones are in use: {failure}."
        refused = encode(UpdateOutcome(False, message, waiting))
        return Response(refused, HTTPStatus.BAD_REQUEST, media_type="application/json")
    return json_response(UpdateOutcome(True, "Succeeded to update model weights.", waiting))


async def pause_generation(services: WeightServices, request: Request) -> Response:
    content = await read_counted_body(request, services.admission)
    mode = _MODES[decode(pause_decoder, content or b"{}", services.admission.limits).mode]
    stands = await services.control.pause(mode, clear_cache=mode != "keep")
    return json_response(ControlStatus("paused" if stands else "resumed"))


async def continue_generation(services: WeightServices, _request: Request) -> Response:
    await services.control.resume()
    return json_response(ControlStatus("resumed"))


async def release_memory(services: WeightServices, request: Request) -> Response:
    content = await read_counted_body(request, services.admission)
    decode(memory_decoder, content or b"{}", services.admission.limits)
    await services.control.sleep(1, "keep")
    return _asleep_or_not(services)


async def resume_memory(services: WeightServices, request: Request) -> Response:
    content = await read_counted_body(request, services.admission)
    tags = decode(memory_decoder, content or b"{}", services.admission.limits).tags
    parts: list[Part] = [tag for tag in tags or () if tag != "cuda_graph"]
    if not tags or parts:
        try:
            await services.control.wake(parts)
        except ControlFailed as failure:
            raise WeightsNotLoaded(str(failure)) from failure
    return _asleep_or_not(services)


def _asleep_or_not(services: WeightServices) -> Response:
    return json_response(ControlStatus("awake" if services.control.level is None else "sleeping"))


async def abort_request(services: WeightServices, request: Request) -> Response:
    content = await read_counted_body(request, services.admission)
    body = decode(abort_decoder, content, services.admission.limits)
    if not (body.rid or body.abort_all):
        raise BadRequest("`rid` must name a request, or `abort_all` be true.", "rid", "missing_required_parameter")
    services.control.abort([] if body.abort_all else [body.rid])
    return json_response(ControlStatus("aborted"))


async def flush_cache(services: WeightServices, _request: Request) -> Response:
    await services.control.reset_prefix_cache()
    return PlainTextResponse("Cache flushed.\n")


async def weight_version(services: WeightServices, _request: Request) -> Response:
    return json_response(WeightInfo(services.control.weight_version))


async def model_info(services: _Services, _request: Request) -> Response:
    chat, modalities = services.chat, services.chat.input_modalities
    config = chat.config
    return json_response(
        MainModelInfo(
            config.name,
            str(config.tokenizer or config.name),
            any(model.kind == "chat" for model in chat.registry),
            services.weights.control.weight_version,
            "image" in modalities,
            "audio" in modalities,
            [chat.facts.architecture] if chat.facts.architecture else [],
        )
    )


async def server_info(services: _Services, _request: Request) -> Response:
    chat, worker, ready = services.chat, services.weights.worker, services.chat.client.ready
    stats = chat.client.stats
    return json_response(
        EngineInfo(
            stentor.__version__,
            chat.config.name,
            chat.config.served_names[0],
            services.weights.control.weight_version,
            worker.tensor_parallel_size,
            worker.pipeline_parallel_size,
            worker.data_parallel_size,
            None if ready is None else ready.num_blocks * ready.block_size,
            None if ready is None else ready.max_num_seqs,
            [{"num_running_reqs": stats.running, "num_waiting_reqs": stats.waiting, "token_usage": stats.kv_usage}],
        )
    )


async def engine_load(services: _Services, _request: Request) -> Response:
    return json_response([_load(services.chat)])


async def engine_loads(services: _Services, _request: Request) -> Response:
    load = _load(services.chat)
    return json_response(Loads(time.time(), stentor.__version__, 1, [load]))


def _load(chat: ChatModel) -> EngineLoad:
    stats, ready = chat.client.stats, chat.client.ready
    room = None if ready is None else ready.num_blocks * ready.block_size
    used = round(stats.kv_usage * (room or 0))
    return EngineLoad(
        0,
        stats.running,
        stats.waiting,
        stats.running + stats.waiting,
        used,
        used,
        room,
        stats.kv_usage,
        None if ready is None else ready.max_num_seqs,
    )
