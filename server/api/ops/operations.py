"""Probes, version and metrics."""

from functools import partial
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import stentor

from ...observability.metrics import CONTENT_TYPE, Metrics
from ...state.admission_control import AdmissionControl
from ..common.described import Operation, Operations
from ..common.endpoint import json_response


class Status(msgspec.Struct, frozen=True):
    status: str


class ServerLoad(msgspec.Struct, frozen=True):
    server_load: int
    """Requests for generation and transfers of files that have not ended."""


class Version(msgspec.Struct, frozen=True):
    version: str


OPERATIONS: Final[Operations] = {
    "/health": Operation("Readiness: 200 while every model can run, otherwise 503", Status, needs_engine=True),
    "/ping": Operation(
        "Liveness: 200 while the server answers, 503 once it has given up an engine", Status, needs_engine=True
    ),
    "/load": Operation("Requests that have not ended, for a balancer; path and answer are vLLM's", ServerLoad),
    "/version": Operation("Version of the server", Version),
    "/metrics": Operation("Metrics in Prometheus' text format", str, media_type="text/plain"),
}


def routes(admission: AdmissionControl, figures: Metrics) -> list[Route]:
    return [
        Route("/health", partial(health, admission), methods=["GET"]),
        Route("/ping", partial(ping, admission), methods=["GET", "POST"]),
        Route("/load", partial(load, admission), methods=["GET"]),
        Route("/version", version, methods=["GET"]),
        Route("/metrics", partial(metrics, figures), methods=["GET"]),
    ]


async def health(admission: AdmissionControl, _request: Request) -> Response:
    """Readiness: 200 once the model has completed a real step, 503 while it cannot run."""
    admission.check_ready()
    return json_response(Status("ready"))


async def ping(admission: AdmissionControl, _request: Request) -> Response:
    """Liveness: 200 while the server answers, 503 once it has given up its engine and is about to end."""
    admission.check_alive()
    return json_response(Status("alive"))


async def load(admission: AdmissionControl, _request: Request) -> Response:
    return json_response(ServerLoad(admission.live_requests))


async def version(_request: Request) -> Response:
    return json_response(Version(stentor.__version__))


async def metrics(figures: Metrics, _request: Request) -> Response:
    return Response(figures.render(), headers={"content-type": CONTENT_TYPE})
