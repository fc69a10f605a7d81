"""Other weights for the main model, for admin keys. Paths are vLLM's; weights come from a folder or file."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.engine.client.controls import ControlFailed
from stentor.protocols.common.decoding import decode
from stentor.protocols.common.errors import BadRequest, wrong
from stentor.protocols.ipc.config import Weights, WorkerConfig

from ...common.keys import Keyring
from ...middleware.auth import AdminRoute
from ...observability.metrics import Metrics
from ...state.admission_control import AdmissionControl
from ...state.engine_control import EngineControl, PauseMode
from ...state.other_weights import OtherWeights
from ..common.described import Operation, Operations
from ..common.endpoint import json_response, read_counted_body
from ..common.query import switch_of
from .control import MODES, one_of

Version = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
"""A header of answers."""
WeightsPath = Annotated[str, msgspec.Meta(max_length=4096)]


class UpdateInfo(msgspec.Struct, kw_only=True):
    weights_path: WeightsPath = ""
    """A folder or file below ``--weights-folder``; empty: the files of MODEL, read again."""
    weight_version: Version | None = None
    """By default the version before, and 1 more if it is a number."""


class UpdateWeightsRequest(msgspec.Struct, kw_only=True):
    update_info: UpdateInfo


class UpdateVersionRequest(msgspec.Struct, kw_only=True):
    new_version: Version


class WeightsUpdated(msgspec.Struct, frozen=True):
    message: str
    weight_version: str


class VersionUpdated(msgspec.Struct, frozen=True):
    success: bool
    new_version: str


class WeightInfo(msgspec.Struct, frozen=True):
    weight_version: str


class WorldSize(msgspec.Struct, frozen=True):
    world_size: int


update_decoder: Final = msgspec.json.Decoder(UpdateWeightsRequest)
version_decoder: Final = msgspec.json.Decoder(UpdateVersionRequest)

_DIGITS: Final = 16
_ELSEWHERE: Final = "weights come from a folder: write them below --weights-folder, and name them to /update_weights"
_REFUSED: Final[Mapping[str, str]] = {
    "/init_weight_transfer_engine": _ELSEWHERE,
    "/start_weight_update": _ELSEWHERE,
    "/finish_weight_update": _ELSEWHERE,
    "/init_weights_update_group": _ELSEWHERE,
    "/update_weights_from_distributed": _ELSEWHERE,
    "/update_weights_from_tensor": _ELSEWHERE,
    "/collective_rpc": "workers run no methods that a client names; /update_weights replaces weights, and "
    "/start_profile traces steps",
    "/scale_elastic_ep": "the number of workers is that of the options until the server ends",
}
"""Paths of vLLM and SGLang that need a connection between workers and a trainer, or code that a client names."""

OPERATIONS: Final[Operations] = {
    "/update_weights": Operation(
        "Have the main model's engine load other weights of the same architecture. `?mode=` is `keep` (live requests "
        "go on with the new weights; the default), `wait` (they are finished first) or `abort`",
        WeightsUpdated,
        UpdateWeightsRequest,
        query={"mode": PauseMode},
    ),
    "/update_weight_version": Operation("Rename the version of the weights", VersionUpdated, UpdateVersionRequest),
    "/weight_info": Operation("The version of the weights", WeightInfo),
    "/get_world_size": Operation(
        "The number of workers of the main model. `?include_dp=` is whether those of all engines count (true)",
        WorldSize,
        query={"include_dp": bool},
    ),
    **{path: Operation(f"Refused: {why}", None) for path, why in _REFUSED.items()},
}


class WeightServices(msgspec.Struct, frozen=True):
    """What the routes about weights use."""

    control: EngineControl
    admission: AdmissionControl
    others: OtherWeights
    worker: WorkerConfig
    """How the main model's first worker was configured."""
    metrics: Metrics

    async def update(self, weights: Weights, version: str, mode: PauseMode, *, keep_pause: bool = False) -> None:
        """Loads other weights of the main model, and measures the time."""
        with self.metrics.weight_update_seconds.time():
            await self.control.update_weights(weights, version, mode, keep_pause=keep_pause)

    def named(self, version: str | None, field: str) -> str:
        """This version, or without one the next. Raises BadRequest."""
        if version is None:
            before = self.control.weight_version
            counts = before.isascii() and before.isdigit() and len(before) < _DIGITS
            return str(int(before) + 1) if counts else before
        if not (version.isascii() and version.isprintable()):
            raise wrong(field, "must be printable ASCII, as it is a header of answers", "invalid_value")
        return version


def routes(services: WeightServices, keys: Keyring) -> list[Route]:
    return [
        AdminRoute("/update_weights", partial(update_weights, services), keys, methods=["POST"]),
        AdminRoute("/update_weight_version", partial(update_version, services), keys, methods=["POST"]),
        AdminRoute("/weight_info", partial(weight_info, services), keys, methods=["GET"]),
        AdminRoute("/get_world_size", partial(world_size, services), keys, methods=["GET"]),
        *(AdminRoute(path, partial(refuse, why), keys, methods=["POST"]) for path, why in _REFUSED.items()),
    ]


async def update_weights(services: WeightServices, request: Request) -> Response:
    mode = one_of(MODES, "mode", request.query_params.get("mode", "keep"))
    content = await read_counted_body(request, services.admission)
    info = decode(update_decoder, content, services.admission.limits).update_info
    version = services.named(info.weight_version, "update_info.weight_version")
    weights = await services.others.find(info.weights_path, None, "update_info.weights_path")
    try:
        await services.update(weights, version, mode)
    except ControlFailed as failure:
        message = f"The weights could not be loaded, and the former ones are in use: {failure}."
        raise BadRequest(message, "update_info.weights_path", "weights_not_usable") from failure
    return json_response(WeightsUpdated("Weights updated", version))


async def update_version(services: WeightServices, request: Request) -> Response:
    content = await read_counted_body(request, services.admission)
    body = decode(version_decoder, content, services.admission.limits)
    services.control.weight_version = services.named(body.new_version, "new_version")
    return json_response(VersionUpdated(True, body.new_version))


async def weight_info(services: WeightServices, _request: Request) -> Response:
    return json_response(WeightInfo(services.control.weight_version))


async def world_size(services: WeightServices, request: Request) -> Response:
    every = switch_of(request, "include_dp", default=True)
    return json_response(WorldSize(services.worker.workers if every else services.worker.group_size))


async def refuse(why: str, _request: Request) -> Response:
    raise BadRequest(f"This server does not do that: {why}.", code="unsupported")
