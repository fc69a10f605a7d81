"""A whole measurement: find the model, warm up, load, and gather what came of it."""

import asyncio
import contextlib
import gc
import resource
import signal
import time
from collections.abc import Coroutine, Iterator
from typing import Any, Final

import msgspec
import uvloop

from ..record import Result, Target, describe_machine, now_iso
from ..tool import ToolError
from .api import error_text
from .driver import Driver, Load
from .http import HttpClient
from .measure import parse_metrics, span, summarise
from .meter import ProgressLine

VIEW_SECONDS: Final = 0.5
METRICS_SECONDS: Final = 5.0
"""How long a server's counters are waited for: one that hangs does not keep what was measured."""
_GC_THRESHOLD: Final = 200_000


class Outcome(msgspec.Struct, frozen=True):
    """A result, and whether it was cut short."""

    result: Result
    interrupted: bool


def measure(load: Load, view: ProgressLine | None = None) -> Outcome:
    """Runs ``load`` to its end, or until SIGINT, and returns what has completed. Raises :class:`..tool.ToolError`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # each request on its way is an open file
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure_async(load, view))


async def measure_async(load: Load, view: ProgressLine | None = None) -> Outcome:
    """Runs ``load`` in the running event loop; otherwise as :func:`measure`."""
    with contextlib.closing(HttpClient(load.address, load.headers, load.timeout, load.tls)) as client:
        model, server = await _find_model(load, client)
        named = msgspec.structs.replace(load, settings=msgspec.structs.replace(load.settings, model=model))
        driver = Driver(client, named)
        interrupted = bool(load.warmup) and await _until_interrupted(_warm_up(driver, load))
        before = await scrape(client)
        started_at, cpu_before = now_iso(), time.process_time()
        if not interrupted:
            interrupted = await _until_interrupted(_run(driver, load, view))
        client_seconds = time.process_time() - cpu_before
        after = {} if not before else await scrape(client)
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
        return Outcome(result, interrupted)


async def _until_interrupted(work: Coroutine[None, None, None]) -> bool:
    """Runs ``work`` to its end or until SIGINT, whichever comes first; whether it was SIGINT."""
    task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
    with contextlib.suppress(ValueError, RuntimeError):  # outside of the main thread there are no signals to take
        loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        await asyncio.wait([task])
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        task.cancel()  # where somebody else wants an end
    if not task.cancelled():
        task.result()
    return task.cancelled()


async def _run(driver: Driver, load: Load, view: ProgressLine | None) -> None:
    async def keep_showing() -> None:
        while view is not None:
            await asyncio.sleep(VIEW_SECONDS)
            view.show(driver.meter, time.perf_counter() - driver.origin)

    with _rare_collections():
        showing = asyncio.create_task(keep_showing())
        try:
            await driver.run(load.stages)
        finally:
            showing.cancel()


async def _warm_up(driver: Driver, load: Load) -> None:
    widest = max((stage.concurrency or load.max_concurrency or load.warmup for stage in load.stages), default=1)
    records = await driver.warm_up(load.warmup, min(load.warmup, widest))
    if records and all(record.error is not None for record in records):
        raise ToolError(f"every warm-up request failed, the first with {records[0].error}")


async def _find_model(load: Load, client: HttpClient) -> tuple[str, str]:
    """The model to ask for, and what the server calls itself."""
    where = f"{load.address.url}/v1/models"
    answer = await client.get("/v1/models")
    if answer.error is not None:
        raise ToolError(f"no answer from {where}: {answer.error.partition(': ')[2]}; is the server running?")
    if load.settings.model:
        return load.settings.model, answer.server
    if answer.status != 200:
        raise ToolError(f"{where} gave status {answer.status}: {error_text(answer.body)}; name the model by --model")
    try:
        return str(msgspec.json.decode(answer.body)["data"][0]["id"]), answer.server
    except (msgspec.DecodeError, LookupError, TypeError):
        raise ToolError(f"{where} lists no model; name one by --model") from None


async def scrape(client: HttpClient) -> dict[str, float]:
    try:
        async with asyncio.timeout(METRICS_SECONDS):
            answer = await client.get("/metrics")
    except TimeoutError:
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


def _describe(load: Load) -> dict[str, Any]:
    settings = load.settings
    return {
        **load.workload.describe(),
        "seed": load.seed,
        "stages": msgspec.to_builtins(list(load.stages)),
        **{name: getattr(load, name) for name in ("max_concurrency", "warmup", "timeout")},
        **{name: getattr(settings, name) for name in ("temperature", "ignore_eos")},
        "extra_body": dict(settings.extra),
    }
