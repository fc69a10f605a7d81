"""``POST /pooling``, and vLLM's ``/classify``: outputs of pooling models."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.engine.model_config.encoders.pooling import ScoreHead
from stentor.protocols.common.decoding import decode
from stentor.protocols.common.errors import BadRequest, refused
from stentor.protocols.ipc.pooling import Pooled
from stentor.protocols.pooling.contents import check_texts
from stentor.protocols.pooling.pooling import (
    Classified,
    ClassifyResponse,
    PluginResponse,
    PooledText,
    PoolingRequest,
    PoolingResponse,
    classify_decoder,
    pooling_decoder,
)

from ...overload.request_context import RequestContext
from ...pooling.encoding import FORMAT_BYTES, floats
from ...pooling.model import EmbeddingModel
from ...pooling.plugin import answer_of, prompts_of
from ...pooling.purposes import adapter_of
from ...pooling.reading import read_texts
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, json_response
from .requests import (
    EmbeddingServices,
    ResolvedRequest,
    binary_answer,
    now,
    pool_input,
    pooling_of,
    resolve_request,
    room_of,
)

OPERATIONS: Final[Operations] = {
    "/pooling": generation(
        "Pool texts: vectors, classes or sparse weights, of a text or of each token", PoolingResponse, PoolingRequest
    ),
}


def routes(services: EmbeddingServices) -> list[Route]:
    return [generation_route("/pooling", services, pooling, "embedding")]


async def pooling(services: EmbeddingServices, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(pooling_decoder, content, services.limits)
    body.check(services.limits)
    what = resolve_request(services, request, context, body.model, body.priority, body.cache_salt, body.request_id)
    if body.task == "plugin":
        return await _through_plugin(services, what, body)
    task = body.task or what.model.main_task
    normalize = body.use_activation if body.normalize is None else body.normalize
    wanted = pooling_of(what.model, task, body.dimensions, normalize, body.use_activation)
    if task == "sparse" and body.encoding_format != "float":
        raise refused("encoding_format", "weights of tokens come as `float` alone")
    purpose = None if body.prompt_name is None else (body.prompt_name, "prompt_name")
    if body.prompt_name is not None:
        wanted = msgspec.structs.replace(wanted, adapter=adapter_of(what.model.config, body.prompt_name))
    found = await pool_input(services, what, body, wanted, purpose, FORMAT_BYTES[body.encoding_format])
    flat = task in ("embed", "classify")
    if body.encoding_format in ("bytes", "bytes_only"):
        return await binary_answer(what, found, body, flat=flat)
    writer = what.writer()
    data = [PooledText(index, await writer.one(each, body, flat=flat)) for index, each in enumerate(found)]
    return writer.answer(PoolingResponse(what.id("pooling"), now(), what.name, data, what.usage))


async def _through_plugin(services: EmbeddingServices, what: ResolvedRequest, body: PoolingRequest) -> Response:
    plugin = what.model.plugin
    if plugin is None:
        raise refused("task", "this server has no plugin (--pooling-plugin)", "unsupported")
    texts = await prompts_of(plugin, body.data)
    check_texts(texts, services.limits, "data")
    wanted = pooling_of(what.model, plugin.task or what.model.main_task, None, body.normalize, body.use_activation)
    prompts = await read_texts(what.model, texts, room_of(services, what.model, body), "data")
    answer = await answer_of(plugin, body.data, await what.job.run(prompts, wanted))
    return json_response(PluginResponse(what.id("pooling"), now(), answer))


async def classify(services: EmbeddingServices, request: Request, content: bytes, context: RequestContext) -> Response:
    body = decode(classify_decoder, content, services.limits)
    body.check(services.limits)
    what = resolve_request(services, request, context, body.model, body.priority, body.cache_salt, body.request_id)
    score = score_head_of(what.model)
    wanted = pooling_of(what.model, "classify", None, None, body.use_activation)
    found = await pool_input(services, what, body, wanted)
    data = [_classified(index, each, score.labels) for index, each in enumerate(found)]
    return json_response(ClassifyResponse(what.id("classify"), now(), what.name, data, what.usage))


def score_head_of(model: EmbeddingModel) -> ScoreHead:
    """Raises BadRequest for a model that does not classify."""
    score = model.config.score
    if score is None or score.pooling is None:
        raise BadRequest(
            f"`{model.name}` does not classify texts; it serves {', '.join(model.tasks)}.",
            "model",
            "model_not_supported",
        )
    return score


def _classified(index: int, pooled: Pooled, labels: tuple[str, ...]) -> Classified:
    scores = floats(pooled)
    best = max(range(len(scores)), key=scores.__getitem__)
    return Classified(index, labels[best] if best < len(labels) else None, scores, len(scores))
