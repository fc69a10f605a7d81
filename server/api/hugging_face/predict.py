"""``POST /predict`` and ``/similarity`` of Text Embeddings Inference."""

import re
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.hugging_face.objects import Prediction
from stentor.protocols.hugging_face.request import (
    PredictRequest,
    SimilarityRequest,
    predict_decoder,
    similarity_decoder,
)
from stentor.protocols.ipc.pooling import Pooled

from ...generation.error_fields import map_error_fields, rename_error_fields
from ...http.error_shapes import TEXT_EMBEDDINGS
from ...overload.request_context import RequestContext
from ...pooling.encoding import floats
from ...pooling.pairs import PairRules, read_pairs
from ...pooling.scoring import cosines
from ..common.described import Operations, generation
from ..common.endpoint import generation_route, json_response
from ..embeddings.pooling import score_head_of
from ..embeddings.requests import EmbeddingServices, pool_input, pooling_of, resolve_request, room_of, vectors
from .embed import RENAMED, embedding_request

OPERATIONS: Final[Operations] = {
    "/predict": generation(
        "Classify texts or pairs (Text Embeddings Inference)",
        list[Prediction | list[Prediction]],
        PredictRequest,
        errors=TEXT_EMBEDDINGS,
    ),
    "/similarity": generation(
        "Compare a text with others by their vectors (Text Embeddings Inference)",
        list[float],
        SimilarityRequest,
        errors=TEXT_EMBEDDINGS,
    ),
}

_INPUT: Final = re.compile(r"input\[(\d+)\]$")


def routes(services: EmbeddingServices) -> list[Route]:
    return [
        generation_route("/predict", services, predict, "embedding"),
        generation_route("/similarity", services, similarity, "embedding"),
    ]


async def predict(services: EmbeddingServices, request: Request, content: bytes, context: RequestContext) -> Response:
    body = decode(predict_decoder, content, services.limits)
    what = resolve_request(services, request, context, None, 0)
    labels = score_head_of(what.model).labels
    texts = body.texts
    wanted = pooling_of(what.model, "classify", None, None, not body.raw_scores)
    with map_error_fields(RENAMED):
        made = embedding_request(services, {**body.fields(), "input": [text for each in texts for text in each]})
        if len(texts[0]) == 1:
            found = await pool_input(services, what, made, wanted)
        else:
            first, second = zip(*texts, strict=True)
            rules = PairRules(room_of(services, what.model, made))
            pairs = await read_pairs(what.model, first, second, rules, ("input", "input"))
            found = await what.job.run(pairs, wanted)
    predicted = [_predictions(each, labels) for each in found]
    return json_response(predicted if body.several else predicted[0])


def _predictions(pooled: Pooled, labels: tuple[str, ...]) -> list[Prediction]:
    """The most likely first."""
    named = (
        Prediction(score, labels[place] if place < len(labels) else f"LABEL_{place}")
        for place, score in enumerate(floats(pooled))
    )
    return sorted(named, key=lambda one: -one.score)


async def similarity(
    services: EmbeddingServices, request: Request, content: bytes, context: RequestContext
) -> Response:
    body = decode(similarity_decoder, content, services.limits)
    what = resolve_request(services, request, context, None, 0)
    with rename_error_fields(_similarity_field):
        made = embedding_request(services, body.fields())
        wanted = vectors(what.model, None, True, made.prompt_name)
        found = await pool_input(services, what, made, wanted, made.purpose)
    return json_response(await anyio.to_thread.run_sync(cosines, found[:1], found[1:]))


def _similarity_field(path: str) -> str:
    """The name of a field of embeddings here: their first input is the source, and the others are the sentences."""
    if (place := _INPUT.match(path)) is None:
        return {"input": "inputs.sentences", "truncate_prompt_tokens": "parameters.truncate"}.get(path, path)
    index = int(place[1])
    return f"inputs.sentences[{index - 1}]" if index else "inputs.source_sentence"
