"""``GET /v1/models`` and ``/v1/models/{id}``."""

from datetime import UTC, datetime
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.anthropic.models import ModelInfo, ModelPage
from stentor.protocols.openai.models import ModelCard, ModelList

from ...config.model_registry import ServedModel
from ...http.error_shapes import speaks_anthropic
from ...http.root_path import route_path
from ...state.state import ServerState
from ..common.described import Operation, Operations
from ..common.endpoint import json_response

OPERATIONS: Final[Operations] = {
    "/v1/models": Operation(
        "The names that the models go by; as Anthropic has them with `anthropic-version`", ModelList
    ),
    "/v1/models/{model:path}": Operation("One of the names; it may hold slashes", ModelCard, finds=True),
}


def routes(state: ServerState) -> list[Route]:
    return [
        Route("/v1/models", partial(list_models, state), methods=["GET"]),
        Route("/v1/models/{model:path}", partial(one_model, state), methods=["GET"]),
    ]


async def list_models(state: ServerState, request: Request) -> Response:
    if _is_theirs(request):
        models = [_info(state, model, name) for model in state.registry for name in model.names]
        return json_response(ModelPage(models, models[0].id, models[-1].id))
    return json_response(ModelList([_card(state, model, name) for model in state.registry for name in model.names]))


async def one_model(state: ServerState, request: Request) -> Response:
    """Ids may hold slashes."""
    name = request.path_params["model"]
    model = state.registry.find(name)
    return json_response(_info(state, model, name) if _is_theirs(request) else _card(state, model, name))


def _is_theirs(request: Request) -> bool:
    return speaks_anthropic(route_path(request.scope), request.scope["headers"])


def _info(state: ServerState, model: ServedModel, name: str) -> ModelInfo:
    created = datetime.fromtimestamp(state.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ModelInfo(name, name, created, _context(state, model), _context(state, model))


def _card(state: ServerState, model: ServedModel, name: str) -> ModelCard:
    root = model.root or model.names[0]
    return ModelCard(name, state.created, root, _context(state, model), kind=model.kind)


def _context(state: ServerState, model: ServedModel) -> int | None:
    """Of a model that hears or speaks it would mean nothing to a client."""
    if model.kind == "embedding" and state.embedding is not None and state.embedding.client.ready is not None:
        return state.embedding.max_length
    return state.max_model_len if model.kind == "chat" else None
