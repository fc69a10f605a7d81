"""``GET /v1/models`` and ``/v1/models/{id}``."""

from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.openai.models import ModelCard, ModelList

from ..state import ServerState
from .described import Operation, Operations
from .endpoint import json_response

OPERATIONS: Final[Operations] = {
    "/v1/models": Operation("The names that the model goes by", ModelList),
    "/v1/models/{model:path}": Operation("One of the names; it may hold slashes", ModelCard, finds=True),
}


def routes(state: ServerState) -> list[Route]:
    return [
        Route("/v1/models", partial(list_models, state), methods=["GET"]),
        Route("/v1/models/{model:path}", partial(one_model, state), methods=["GET"]),
    ]


async def list_models(state: ServerState, _request: Request) -> Response:
    return json_response(ModelList([_card(state, name) for name in state.served_names]))


async def one_model(state: ServerState, request: Request) -> Response:
    """Ids may hold slashes."""
    return json_response(_card(state, state.resolve_model(request.path_params["model"])))


def _card(state: ServerState, name: str) -> ModelCard:
    return ModelCard(name, state.created, state.root or state.served_names[0], state.max_model_len)
