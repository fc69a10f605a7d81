"""Control of the engines, for admin keys: pause, sleep, abort, resets, profiles. Paths are vLLM's."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Final, TypeVar, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.engine.client.controls import ControlFailed
from stentor.protocols.common.decoding import decode
from stentor.protocols.common.errors import BadRequest, wrong

from ...common.errors import WeightsNotLoaded
from ...common.keys import Keyring
from ...media.processor import MediaProcessor
from ...middleware.auth import AdminRoute
from ...observability.metrics import Metrics, SleepOperation
from ...state.admission_control import AdmissionControl
from ...state.engine_control import EngineControl, Part, PauseMode, SleepLevel
from ..common.described import Operation, Operations
from ..common.endpoint import json_response, read_counted_body
from ..common.query import switch_of

T = TypeVar("T")

MODES: Final[dict[str, PauseMode]] = {mode: mode for mode in get_args(PauseMode)}
_LEVELS: Final[dict[str, SleepLevel]] = {str(level): level for level in get_args(SleepLevel)}
_PARTS: Final[dict[str, Part]] = {part: part for part in get_args(Part)}
_MOST_IDS: Final = 10_000


class AbortRequest(msgspec.Struct, kw_only=True):
    """Ids as in the header ``x-request-id``, or as answers carry them; none: all live requests."""

    request_ids: Annotated[list[Annotated[str, msgspec.Meta(max_length=256)]], msgspec.Meta(max_length=_MOST_IDS)] = []


abort_decoder: Final = msgspec.json.Decoder(AbortRequest)


class ControlStatus(msgspec.Struct, frozen=True):
    status: str


class PauseState(msgspec.Struct, frozen=True):
    is_paused: bool


class SleepStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    status: str
    level: SleepLevel | None = None


class SleepState(msgspec.Struct, frozen=True):
    is_sleeping: bool


class AbortedRequests(msgspec.Struct, frozen=True):
    aborted: int
    """Live requests that were ended."""


OPERATIONS: Final[Operations] = {
    "/pause": Operation(
        "Let no step run until `/resume`. `?mode=` is `abort` (live requests end with an error; the default), `wait` "
        "(they are finished first) or `keep` (they wait, and new ones with them; the other modes refuse these). "
        "`?clear_cache=` resets the prefix cache too: true, but for `keep`",
        ControlStatus,
        query={"mode": PauseMode, "clear_cache": bool},
    ),
    "/resume": Operation("Let steps run again", ControlStatus),
    "/is_paused": Operation("Whether the server is paused", PauseState),
    "/sleep": Operation(
        "Pause, and free the device's memory until `/wake_up`. `?level=` is 1 (workers end; weights prepared for a CPU "
        "are kept; the default), 2 (nothing is kept, weights are read again) or 0 (a pause alone); `?mode=` is that of "
        "`/pause`",
        SleepStatus,
        query={"level": SleepLevel, "mode": PauseMode},
    ),
    "/wake_up": Operation(
        "Start the workers again, and resume. With `?tags=weights` and `?tags=kv_cache`, in one call or in two, once "
        "both were named",
        SleepStatus,
        query={"tags": Part},
    ),
    "/is_sleeping": Operation("Whether anything has not been woken since `/sleep`", SleepState),
    "/abort_requests": Operation("End live requests with an error", AbortedRequests, AbortRequest),
    "/reset_prefix_cache": Operation(
        "Let no prompt find what was computed before. With `?reset_running_requests=true`, live requests compute what "
        "they have anew",
        ControlStatus,
        query={"reset_running_requests": bool},
    ),
    "/reset_mm_cache": Operation("Forget processed media, which are processed again when they come", ControlStatus),
    "/reset_encoder_cache": Operation("Forget encoded media that no live request holds", ControlStatus),
    "/start_profile": Operation("Trace the steps of all workers, 2,000 at most, until `/stop_profile`", ControlStatus),
    "/stop_profile": Operation("Write the traces to the folder of `--profiler-folder`, one a worker", ControlStatus),
}


class _Services(msgspec.Struct, frozen=True):
    control: EngineControl
    admission: AdmissionControl
    metrics: Metrics
    media: Sequence[MediaProcessor]
    profiles: bool
    """Whether there is a folder for them."""


def routes(
    control: EngineControl,
    admission: AdmissionControl,
    metrics: Metrics,
    keys: Keyring,
    media: Sequence[MediaProcessor],
    *,
    profiles: bool,
) -> list[Route]:
    """``media``: of all models; ``profiles``: whether there is a folder for them."""
    services = _Services(control, admission, metrics, media, profiles)
    return [
        AdminRoute("/pause", partial(pause, control), keys, methods=["POST"]),
        AdminRoute("/resume", partial(resume, control), keys, methods=["POST"]),
        AdminRoute("/is_paused", partial(is_paused, control), keys, methods=["GET"]),
        AdminRoute("/sleep", partial(sleep, services), keys, methods=["POST"]),
        AdminRoute("/wake_up", partial(wake_up, services), keys, methods=["POST"]),
        AdminRoute("/is_sleeping", partial(is_sleeping, control), keys, methods=["GET"]),
        AdminRoute("/abort_requests", partial(abort_requests, services), keys, methods=["POST"]),
        AdminRoute("/reset_prefix_cache", partial(reset_prefix_cache, control), keys, methods=["POST"]),
        AdminRoute("/reset_mm_cache", partial(reset_mm_cache, services), keys, methods=["POST"]),
        AdminRoute("/reset_encoder_cache", partial(reset_encoder_cache, control), keys, methods=["POST"]),
        AdminRoute("/start_profile", partial(profile, services, True), keys, methods=["POST"]),
        AdminRoute("/stop_profile", partial(profile, services, False), keys, methods=["POST"]),
    ]


async def pause(control: EngineControl, request: Request) -> Response:
    mode = one_of(MODES, "mode", request.query_params.get("mode", "abort"))
    stands = await control.pause(mode, clear_cache=switch_of(request, "clear_cache", default=mode != "keep"))
    return json_response(ControlStatus("paused" if stands else "resumed"))


async def resume(control: EngineControl, _request: Request) -> Response:
    await control.resume()
    return json_response(ControlStatus("resumed"))


async def is_paused(control: EngineControl, _request: Request) -> Response:
    return json_response(PauseState(control.paused))


async def sleep(services: _Services, request: Request) -> Response:
    level = one_of(_LEVELS, "level", request.query_params.get("level", "1"))
    mode = one_of(MODES, "mode", request.query_params.get("mode", "abort"))
    began = time.monotonic()
    await services.control.sleep(level, mode)
    return _told(services, "sleep", time.monotonic() - began)


async def wake_up(services: _Services, request: Request) -> Response:
    parts = [one_of(_PARTS, "tags", tag) for tag in request.query_params.getlist("tags")]
    began = time.monotonic()
    try:
        await services.control.wake(parts)
    except ControlFailed as failure:
        raise WeightsNotLoaded(str(failure)) from failure
    return _told(services, "wake_up", time.monotonic() - began)


def _told(services: _Services, operation: SleepOperation, seconds: float) -> Response:
    level = services.control.level
    services.metrics.sleep.changed(operation, seconds, level)
    return json_response(SleepStatus("awake" if level is None else "sleeping", level))


async def is_sleeping(control: EngineControl, _request: Request) -> Response:
    return json_response(SleepState(control.level is not None))


async def abort_requests(services: _Services, request: Request) -> Response:
    content = await read_counted_body(request, services.admission)
    body = decode(abort_decoder, content, services.admission.limits)
    return json_response(AbortedRequests(services.control.abort(body.request_ids)))


async def reset_prefix_cache(control: EngineControl, request: Request) -> Response:
    await control.reset_prefix_cache(recompute=switch_of(request, "reset_running_requests"))
    return json_response(ControlStatus("reset"))


async def reset_mm_cache(services: _Services, _request: Request) -> Response:
    for processor in services.media:
        processor.forget()
    return json_response(ControlStatus("reset"))


async def reset_encoder_cache(control: EngineControl, _request: Request) -> Response:
    await control.reset_encoder_cache()
    return json_response(ControlStatus("reset"))


async def profile(services: _Services, starts: bool, _request: Request) -> Response:
    if not services.profiles:
        raise BadRequest("Profiles are written where the server was started with --profiler-folder.", code="no_folder")
    try:
        await (services.control.start_profile() if starts else services.control.stop_profile())
    except ControlFailed as failure:
        message = f"The profile could not be {'started' if starts else 'written'}: {failure}."
        raise BadRequest(message, code="profile_failed") from failure
    return json_response(ControlStatus("profiling" if starts else "written"))


def one_of(choices: Mapping[str, T], name: str, value: str) -> T:
    """Raises BadRequest."""
    if value not in choices:
        raise wrong(name, f"must be one of {', '.join(choices)}", "invalid_value")
    return choices[value]
