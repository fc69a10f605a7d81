"""Probes, version and metrics."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import stentor

from ..metrics import CONTENT_TYPE
from ..state import ServerState
from .endpoint import json_response


def routes(state: ServerState) -> list[Route]:
    return [
        Route("/health", partial(health, state), methods=["GET"]),
        Route("/ping", ping, methods=["GET", "POST"]),
        Route("/version", version, methods=["GET"]),
        Route("/metrics", partial(metrics, state), methods=["GET"]),
    ]


async def health(state: ServerState, _request: Request) -> Response:
    """Readiness: 200 once the model has completed a real step, 503 while it cannot run."""
    state.check_available()
    return json_response({"status": "ready"})


async def ping(_request: Request) -> Response:
    """Liveness: the server answers."""
    return json_response({"status": "alive"})


async def version(_request: Request) -> Response:
    return json_response({"version": stentor.__version__})


async def metrics(state: ServerState, _request: Request) -> Response:
    return Response(state.metrics.render(), headers={"content-type": CONTENT_TYPE})
