"""``GET /v1/models`` and ``/v1/models/{id}``."""

import time
from functools import partial
from typing import Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.anthropic.objects import ModelInfo, ModelPage, time_text

from ...config.model_registry import ServedModel
from ...generation.chat_model import ChatModel
from ...pooling.model import EmbeddingModel
from ..common.described import Operation, Operations
from ..common.endpoint import json_response, wants_anthropic


class ModelCard(msgspec.Struct, frozen=True):
    id: str
    created: int
    root: str
    max_model_len: int | None
    """Longest sequence, prompt and output; null until the model has been loaded, and for one that does not chat."""
    parent: str | None = None
    """For an adapter: its base model."""
    kind: Literal["chat", "transcription", "speech", "embedding"] = "chat"
    """The model's role; not in OpenAI's API."""
    input_modalities: tuple[str, ...] = ("text",)
    """Inputs by OpenRouter's names: text, image, video, audio, file."""
    object: Literal["model"] = "model"
    owned_by: str = "stentor"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"


OPERATIONS: Final[Operations] = {
    "/v1/models": Operation(
        "List all names of all models; in Anthropic's shape with the header `anthropic-version`", ModelList
    ),
    "/v1/models/{model:path}": Operation("Describe one model; its name may hold slashes", ModelCard, not_found=True),
}


class _Models(msgspec.Struct, frozen=True):
    chat: ChatModel
    embedding: EmbeddingModel | None
    created: int
    """Seconds since the epoch."""


def routes(chat: ChatModel, embedding: EmbeddingModel | None) -> list[Route]:
    models = _Models(chat, embedding, int(time.time()))
    return [
        Route("/v1/models", partial(list_models, models), methods=["GET"]),
        Route("/v1/models/{model:path}", partial(one_model, models), methods=["GET"]),
    ]


async def list_models(models: _Models, request: Request) -> Response:
    registry = models.chat.registry
    named = [(model, name) for model in (*registry, *registry.adapted) for name in model.names]
    if wants_anthropic(request):
        shown = [_info(models, model, name) for model, name in named]
        return json_response(ModelPage(shown, shown[0].id, shown[-1].id))
    return json_response(ModelList([_card(models, model, name) for model, name in named]))


async def one_model(models: _Models, request: Request) -> Response:
    """Ids may hold slashes; without one it is the list, by the path with a slash at its end."""
    name = request.path_params["model"]
    if not name:
        return await list_models(models, request)
    model = models.chat.registry.find(name)
    return json_response(_info(models, model, name) if wants_anthropic(request) else _card(models, model, name))


def _info(models: _Models, model: ServedModel, name: str) -> ModelInfo:
    created = time_text(models.created)
    return ModelInfo(name, name, created, _context(models, model), _context(models, model))


def _card(models: _Models, model: ServedModel, name: str) -> ModelCard:
    root = model.root or model.names[0]
    return ModelCard(
        name,
        models.created,
        root,
        _context(models, model),
        model.parent or None,
        kind=model.kind,
        input_modalities=tuple(_modalities(models, model)),
    )


def _modalities(models: _Models, model: ServedModel) -> list[str]:
    match model.kind:
        case "chat":
            return models.chat.input_modalities
        case "transcription":
            return ["audio"]
        case _:
            return ["text"]


def _context(models: _Models, model: ServedModel) -> int | None:
    """None for transcription and speech models, where it means nothing to a client."""
    if model.kind == "embedding" and models.embedding is not None and models.embedding.client.ready is not None:
        return models.embedding.max_length
    return models.chat.max_model_len if model.kind == "chat" else None
