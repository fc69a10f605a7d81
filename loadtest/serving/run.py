"""A whole measurement: find the model, warm up, load, and gather what came of it."""

import asyncio
import contextlib
import gc
import resource
import signal
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from ..record import Result, Target, now_iso
from .address import Address
from .api import Api, Settings
from .arrivals import Stage
from .driver import Driver
from .http import HttpClient, HttpError, describe_status
from .machine import describe_machine
from .measure import span, summarise
from .meter import Snapshot
from .metrics import parse_metrics
from .workload import Workload

VIEW_SECONDS: Final = 0.25
METRICS_SECONDS: Final = 5.0
"""How long a server's counters are waited for: one that hangs does not keep what was measured."""
_GC_THRESHOLD: Final = 200_000


class LoadError(Exception):
    """The run could not begin; the message is one line."""


class View(Protocol):
    """Who is shown how a run goes."""

    def show(self, snapshot: Snapshot) -> None: ...


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run is told."""

    address: Address
    api: Api
    workload: Workload
    stages: Sequence[Stage]
    seed: int = 0
    name: str = ""
    command: Sequence[str] = ()
    model: str | None = None
    """None takes the first that the server lists."""
    endpoint: str | None = None
    headers: Mapping[str, str] = {}
    tls: ssl.SSLContext | None = None
    timeout: float = 600.0
    """Seconds that a server may be silent within a request."""
    temperature: float | None = None
    ignore_eos: bool = False
    extra_body: Mapping[str, Any] = {}
    max_concurrency: int | None = None
    warmup: int = 0
    limits: Mapping[str, float] = {}

    @property
    def planned_requests(self) -> int | None:
        shares = [stage.requests for stage in self.stages]
        return None if None in shares else sum(share for share in shares if share is not None)

    @property
    def planned_seconds(self) -> float | None:
        shares = [stage.seconds for stage in self.stages]
        return None if None in shares else sum(share for share in shares if share is not None)


class Outcome(msgspec.Struct, frozen=True):
    """A result, and whether it was cut short."""

    result: Result
    interrupted: bool


def measure(load: Load, view: View | None = None) -> Outcome:
    """Runs ``load`` to its end, or until SIGINT, and returns what has completed. Raises :class:`LoadError`."""
    _allow_many_sockets()
    try:
        import uvloop
    except ImportError:  # it is not on every platform
        factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(measure_async(load, view))


async def measure_async(load: Load, view: View | None = None) -> Outcome:
    """As :func:`measure`, in a loop that runs already."""
    client = HttpClient(load.address, load.headers, load.timeout, load.tls)
    try:
        return await _measure(load, client, view)
    finally:
        client.close()


async def _measure(load: Load, client: HttpClient, view: View | None) -> Outcome:
    model, server = await _find_model(load, client)
    settings = Settings(model, load.temperature, load.ignore_eos, dict(load.extra_body))
    driver = Driver(
        client,
        load.api,
        settings,
        load.workload,
        load.seed,
        path=load.endpoint,
        max_concurrency=load.max_concurrency,
    )
    with until_interrupted() as interrupt:
        if load.warmup:
            await interrupt.watch(_warm_up(driver, load))
        before = await _metrics(client)
        started_at, cpu_before = now_iso(), time.process_time()
        if not interrupt.raised:
            await interrupt.watch(_run(driver, load, view))
        client_seconds = time.process_time() - cpu_before
    after = {} if not before else await _metrics(client)
    records = driver.records
    result = Result(
        name=load.name or f"{load.api.name} {model}",
        started_at=started_at,
        command=list(load.command),
        target=Target(load.address.url, model, load.api.name, server),
        workload=_describe(load),
        machine=describe_machine(),
        limits=dict(load.limits),
        summary=summarise(records, span(records), load.limits, driver.meter.peak),
        requests=records,
        metrics_before=before,
        metrics_after=after,
        client_seconds=client_seconds,
    )
    return Outcome(result, interrupt.raised)


async def _run(driver: Driver, load: Load, view: View | None) -> None:
    with _rare_collections():
        shown = asyncio.create_task(_keep_showing(driver, load, view)) if view is not None else None
        try:
            await driver.run(load.stages)
        finally:
            if shown is not None and view is not None:
                shown.cancel()
                view.show(_snapshot(driver, load))


async def _keep_showing(driver: Driver, load: Load, view: View) -> None:
    while True:
        await asyncio.sleep(VIEW_SECONDS)
        view.show(_snapshot(driver, load))


def _snapshot(driver: Driver, load: Load) -> Snapshot:
    return driver.meter.snapshot(time.perf_counter() - driver.origin, load.planned_requests, load.planned_seconds)


async def _warm_up(driver: Driver, load: Load) -> None:
    widest = max((stage.concurrency or load.max_concurrency or load.warmup for stage in load.stages), default=1)
    records = await driver.warm_up(load.warmup, min(load.warmup, widest))
    if records and all(record.error is not None for record in records):
        raise LoadError(f"every warm-up request failed, the first with {records[0].error}")


async def _find_model(load: Load, client: HttpClient) -> tuple[str, str]:
    """The model to ask for, and what the server calls itself."""
    try:
        answer = await client.get("/v1/models")
    except HttpError as error:
        raise LoadError(f"no answer from {error}; is the server running?") from None
    if load.model is not None:
        return load.model, answer.server
    if answer.status != 200:
        raise LoadError(f"{load.address.url}/v1/models gave {describe_status(answer)}; name the model by --model")
    try:
        models = msgspec.json.decode(answer.body, type=_Models).data
    except msgspec.DecodeError:
        models = []
    if not models:
        raise LoadError(f"{load.address.url}/v1/models lists no model; name one by --model")
    return models[0].id, answer.server


async def _metrics(client: HttpClient) -> dict[str, float]:
    try:
        async with asyncio.timeout(METRICS_SECONDS):
            answer = await client.get("/metrics")
    except (HttpError, TimeoutError):
        return {}
    return parse_metrics(answer.body.decode(errors="replace")) if answer.status == 200 else {}


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """The collector looks seldom, and not at what is there already: each look is a pause in the time stamps."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _allow_many_sockets() -> None:
    """As many open files as the system lets us have: each request on its way is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _describe(load: Load) -> dict[str, Any]:
    return {
        **load.workload.describe(),
        "seed": load.seed,
        "stages": msgspec.to_builtins(list(load.stages)),
        "max_concurrency": load.max_concurrency,
        "warmup": load.warmup,
        "timeout": load.timeout,
        "temperature": load.temperature,
        "ignore_eos": load.ignore_eos,
        "extra_body": dict(load.extra_body),
    }


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class Interrupt:
    """Whether SIGINT came, and the task that it ends."""

    def __init__(self) -> None:
        self.raised = False
        self._task: asyncio.Task[None] | None = None

    async def watch(self, work: Coroutine[None, None, None]) -> None:
        """Runs ``work`` to its end or until the interrupt, whichever comes first; returns in both cases."""
        self._task = asyncio.ensure_future(work)
        if self.raised:
            self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            if not self.raised:  # not by us: whoever runs us wants an end
                self._task.cancel()
                raise
        finally:
            self._task = None

    def raise_(self) -> None:
        self.raised = True
        if self._task is not None:
            self._task.cancel()


@contextlib.contextmanager
def until_interrupted() -> Iterator[Interrupt]:
    """Takes SIGINT for a while. In a thread other than the main one there are no signals to take."""
    interrupt = Interrupt()
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, interrupt.raise_)
    except (ValueError, RuntimeError):
        yield interrupt
        return
    try:
        yield interrupt
    finally:
        loop.remove_signal_handler(signal.SIGINT)
