"""Full load for a long time, and the memory of every process meanwhile."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec
import numpy as np

from stentor.loadtest.record import Result
from stentor.loadtest.server_process import ServerProcess
from stentor.loadtest.serving.options import build_load, build_parser
from stentor.loadtest.serving.run import measure_async
from stentor.server.observability.processes import usage_by_role
from stentor.tests.chaos.bodies import MODEL
from stentor.tests.chaos.footprint import returned, settled, touch_cache
from stentor.tests.chaos.killing import Note

STREAMS: Final = 32
CONTEXT: Final = 1024
SERVE: Final = ("--served-model-name", MODEL, "--max-model-len", str(CONTEXT), "--kv-cache-memory", "128M")
"""A KV cache so small that it is soon touched as a whole."""
INPUT: Final = "lognormal:60:0.8:1:600"
OUTPUT: Final = "lognormal:60:0.6:1:400"
"""Bounded: among thousands of draws without bounds are some that no context of this size holds."""
GROWTH_BYTES: Final = 6 << 20
GROWTH_SHARE: Final = 0.01
"""What a process may grow by in the span that is judged, by the trend: bytes or a share of it, whichever is more.

The rings of its channels are part of it, 2 MiB each pair, which are touched page by page until so much has passed."""
THIRDS_SHARE: Final = 0.03
"""What the median of the last third of that span may be above that of the second."""
_SAMPLE_SECONDS: Final = 1.0
_TELL_SECONDS: Final = 30.0
_MOST_POINTS: Final = 600
"""Of which every pair gives a slope."""
_MOST_FAILURES: Final = 20
"""That are kept with what is known of them; the rest are counted."""


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """Resident memory of the processes of one role over the span that is judged."""

    role: str
    samples: int
    first_mib: float
    """Medians of the first, second and last third."""
    second_mib: float
    last_mib: float
    slope_mib_per_hour: float
    """Theil and Sen's: the median of the slopes of all pairs of samples."""
    growth_mib: float
    """The slope times the span."""

    @property
    def problem(self) -> str | None:
        """Why this is a trend upward; None where it is none."""
        allowed = max(GROWTH_BYTES / 2**20, GROWTH_SHARE * self.second_mib)
        if self.growth_mib > allowed:
            return f"{self.role} grows by {self.growth_mib:.1f} MiB in the span, allowed are {allowed:.1f}"
        if self.last_mib > self.second_mib * (1 + THIRDS_SHARE):
            return f"{self.role}: the median of the last third is {self.last_mib:.1f} MiB, before {self.second_mib:.1f}"
        return None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One request that went wrong."""

    at: str
    """When it was sent, ISO 8601, UTC."""
    seconds: float
    """From then to the error."""
    error: str
    """``kind: detail``; ``http 400: …`` where the server refused it."""
    request_id: str
    """In the server's log; empty where no answer came."""
    prompt_tokens: int
    output_tokens: int
    """That had come."""

    def __str__(self) -> str:
        return (
            f"request {self.request_id or 'without an answer'}, sent {self.at}, failed after {self.seconds:.2f} s, a "
            f"prompt of {self.prompt_tokens} tokens and {self.output_tokens} of output: {self.error}"
        )


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    warmup_seconds: float
    streams: int
    requests: int
    failed: int
    output_tokens: int
    tokens_per_second: float
    trends: list[Trend]
    leaks: list[str]
    problems: list[str]
    failures: list[Failure] = []
    """The first of them."""


@dataclass(frozen=True)
class Sample:
    at: float
    resident: dict[str, int]
    """Bytes by role."""


def soak(server: ServerProcess, seconds: float, warmup: float, seed: int, note: Note) -> Soak:
    """``warmup`` seconds of the same load come first, and are not judged."""
    touch_cache(server.port, MODEL)
    baseline = settled(server.port, server.pid)
    samples, result = asyncio.run(_load(server, seconds + warmup, seed, note))
    summary = result.summary
    failures = failures_in(result)
    began = samples[0].at + warmup
    judged = [sample for sample in samples if sample.at >= began]
    trends = [trend_of(role, judged) for role in sorted(set.intersection(*(set(each.resident) for each in judged)))]
    _, leaks = returned(server.port, server.pid, baseline)
    # memory is judged by its trend: under load it is not what it was when nothing had been asked yet
    leaks = [leak for leak in leaks if not leak.startswith("resident memory")]
    problems = [*leaks, *(trend.problem for trend in trends if trend.problem is not None)]
    if summary.errors:
        problems.append(f"{summary.errors} of {summary.requests} requests failed: {summary.errors_by_kind}")
        problems += map(str, failures)
    return Soak(
        seconds=seconds,
        warmup_seconds=warmup,
        streams=STREAMS,
        requests=summary.requests,
        failed=summary.errors,
        output_tokens=summary.output_tokens,
        tokens_per_second=summary.output_tokens / (seconds + warmup),
        trends=trends,
        leaks=leaks,
        problems=problems,
        failures=failures,
    )


def failures_in(result: Result) -> list[Failure]:
    """The first that went wrong, in order of sending."""
    began = datetime.fromisoformat(result.started_at)
    failed = [request for request in result.requests if request.error is not None]
    return [
        Failure(
            at=(began + timedelta(seconds=request.start)).isoformat(timespec="milliseconds"),
            seconds=request.e2e,
            error=request.error or "",
            request_id=request.request_id,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
        )
        for request in failed[:_MOST_FAILURES]
    ]


def trend_of(role: str, samples: Sequence[Sample]) -> Trend:
    """Of at least three samples."""
    times = np.array([sample.at for sample in samples])
    mib = np.array([sample.resident[role] for sample in samples]) / 2**20
    slope = theil_sen(times, mib)
    first, second, last = np.array_split(mib, 3)
    return Trend(
        role=role,
        samples=len(samples),
        first_mib=statistics.median(first.tolist()),
        second_mib=statistics.median(second.tolist()),
        last_mib=statistics.median(last.tolist()),
        slope_mib_per_hour=slope * 3600,
        growth_mib=slope * float(times[-1] - times[0]),
    )


def theil_sen(times: np.ndarray, values: np.ndarray) -> float:
    """The median of the slopes of all pairs: a few jumps and peaks do not move it."""
    step = max(1, -(-len(times) // _MOST_POINTS))
    times, values = times[::step], values[::step]
    earlier, later = np.triu_indices(len(times), 1)
    return float(np.median((values[later] - values[earlier]) / (times[later] - times[earlier])))


async def _load(server: ServerProcess, seconds: float, seed: int, note: Note) -> tuple[list[Sample], Result]:
    arguments = build_parser().parse_args(
        [
            *("--url", f"http://127.0.0.1:{server.port}", "--tokens", "--ignore-eos", "--seed", str(seed)),
            *("--input", INPUT, "--output", OUTPUT, "--temperature", "0.8"),
            *("--concurrency", str(STREAMS), "--duration", str(seconds), "--timeout", "120"),
        ]
    )
    samples: list[Sample] = []
    sampling = asyncio.create_task(sample_memory(server.pid, samples, note))
    try:
        outcome = await measure_async(build_load(arguments, ["soak"]))
    finally:
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling
    within = [sample for sample in samples if sample.at <= samples[0].at + seconds]  # not while the last ones end
    return within, outcome.result


async def sample_memory(server: int, samples: list[Sample], note: Note) -> None:
    """Until it is cancelled."""
    noted = began = time.monotonic()
    while True:
        usage = usage_by_role(server)
        now = time.monotonic()
        samples.append(Sample(now, {role: one.resident_bytes for role, one in usage.items()}))
        if now - noted >= _TELL_SECONDS:
            noted = now
            sizes = ", ".join(f"{role} {one.resident_bytes >> 20}" for role, one in sorted(usage.items()))
            note(f"{now - began:.0f} s of load; resident MiB: {sizes}")
        await asyncio.sleep(_SAMPLE_SECONDS)
