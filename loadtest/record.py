"""What a benchmark leaves behind: typed records, read and written as JSON, and one CSV row a request.

Times are seconds unless named otherwise; every :class:`Spread` is in milliseconds. A file carries its ``format`` and
``kind``, so that a later version can still tell what it reads.
"""

import csv
import math
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from .step_curves import Figure

FORMAT: Final = 1
MEASURES: Final = {
    "ttft": "time to first token",
    "itl": "inter-token latency",
    "tpot": "time per output token",
    "e2e": "end-to-end time",
}
STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99", "max")
CSV_COLUMNS: Final = (
    *("started_at", "scheduled_at", "stage", "prompt_tokens", "output_tokens"),
    *("ttft_ms", "tpot_ms", "itl_mean_ms", "itl_max_ms", "e2e_ms", "finish_reason", "error"),
)


class RecordError(ValueError):
    """A file that does not hold what it was read as; the message is one line for the operator."""


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What every file says of the run that it is from. Subclasses add what was measured; their tag is the file's kind:
    what the tool of ``stentor bench`` of nearly that name saves."""

    format: int = FORMAT
    started_at: str
    """ISO 8601, UTC."""
    command: list[str] = []
    machine: dict[str, Any] = {}

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)


def about(tool: str, given: Sequence[str]) -> dict[str, Any]:
    """The fields of :class:`Record` for a run of ``stentor bench TOOL`` that starts now."""
    return {
        "started_at": now_iso(),
        "command": ["stentor", "bench", tool, *given],
        "machine": describe_machine(),
    }


class RequestRecord(msgspec.Struct, frozen=True):
    """One request as the client saw it.

    ``itl`` has one gap for each chunk of output after the first and ``chunk_tokens`` as many counts: 1 each, unless
    the server put more tokens into one chunk. Chunks that one read brought share its time, so their gaps are 0.
    """

    start: float
    """Seconds since the run's start at which the request was sent."""
    scheduled: float
    """Seconds since the run's start at which the arrival process wanted it sent."""
    prompt_tokens: int
    output_tokens: int
    ttft: float | None
    """Seconds from ``start`` to the first output; None where none came."""
    itl: list[float]
    chunk_tokens: list[int]
    e2e: float
    """Seconds from ``start`` to the end of the answer, or to the error."""
    error: str | None = None
    """``kind: detail`` of what went wrong; None for a complete answer."""
    finish_reason: str | None = None
    stage: str = ""
    """The step of a ramp that sent it."""
    request_id: str = ""
    """What the server called a request that went wrong; empty where no answer named it."""

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first, (e2e - ttft) / (output_tokens - 1); None where all came at once."""
        if self.ttft is None or self.output_tokens < 2 or not self.itl:
            return None
        return (self.e2e - self.ttft) / (self.output_tokens - 1)

    @property
    def error_kind(self) -> str | None:
        """The error without its detail: what errors are counted by."""
        return self.error.partition(":")[0] if self.error is not None else None


class Spread(msgspec.Struct, frozen=True):
    """Mean and percentiles in milliseconds, all 0 where ``count`` is 0."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0
    count: int = 0


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of at least one value that at least ``share`` of them do not exceed, without interpolation."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to. Rates are over ``seconds``, and count completed requests alone."""

    seconds: float
    requests: int
    completed: int
    errors: int
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    ttft: Spread
    itl: Spread
    tpot: Spread
    e2e: Spread
    goodput_per_s: float | None = None
    """Requests a second that kept every limit; None where there were no limits."""
    goodput_share: float | None = None
    """Their share of all requests, errors included."""
    peak_concurrency: int = 0
    errors_by_kind: dict[str, int] = {}


class Target(msgspec.Struct, frozen=True):
    """The server or worker that was measured."""

    url: str
    model: str
    api: str
    """``completions`` or ``chat``; later APIs add their names."""
    server: str = ""
    """The ``Server`` header of its answers."""


class Result(Record, frozen=True, kw_only=True, tag="serve"):
    """One run of ``stentor bench serve``."""

    name: str
    target: Target
    workload: dict[str, Any] = {}
    """Every parameter of the requests and their arrivals, and the seed."""
    limits: dict[str, float] = {}
    """Milliseconds by measure (``ttft``, ``tpot``, ``itl``, ``e2e``): what goodput was counted by."""
    summary: Summary
    requests: list[RequestRecord] = []
    metrics_before: dict[str, float] = {}
    """Samples of the server's ``/metrics`` by name and labels, as Prometheus writes them."""
    metrics_after: dict[str, float] = {}
    client_seconds: float = 0.0
    """CPU seconds that the load client itself took."""


class SweepPoint(msgspec.Struct, frozen=True):
    """One value of the axis, and what it came to; mostly without the result's list of requests."""

    value: float | str
    result: Result


class Sweep(Record, frozen=True, kw_only=True, tag="sweep"):
    """Several runs along one axis."""

    name: str
    axis: str
    """``concurrency``, ``rate`` or a parameter's name."""
    points: list[SweepPoint] = []


class StartupRound(msgspec.Struct, frozen=True):
    """One start of a server, in seconds since its first instruction."""

    cold: bool
    phases: dict[str, float]
    """Of each phase, one after the other; together they are ``ready_s``."""
    ready_s: float
    """Until ``/health`` said 200."""
    listening_s: float = 0.0
    """Until ``/ping`` answered."""
    first_token_s: float = 0.0
    """Until the first token of a short completion, which is sent once the server is ready."""
    model_bytes_in_memory: int = 0
    """Of the model's files, in the page cache just before the start."""


class Startup(Record, frozen=True, kw_only=True, tag="startup"):
    """How long a server takes from its first instruction to its first answer."""

    name: str
    rounds: list[StartupRound] = []


class Steps(Record, frozen=True, kw_only=True, tag="step cost"):
    """Step times of a worker against batch and context, beside the machine's ceilings."""

    worker: dict[str, Any] = {}
    march: str = "native"
    """That the kernels were compiled for."""
    notes: list[str] = []
    """What start-up says of the form that runs."""
    ceilings: dict[str, Any] = {}
    figures: list[Figure] = []
    surprises: list[str] = []

    @property
    def name(self) -> str:
        return str(self.worker.get("model", "steps"))


Saved = Result | Sweep | Startup | Steps
"""What ``stentor bench report`` reads."""
KINDS: Final[dict[str, type[Saved]]] = {
    str(kind.__struct_config__.tag): kind for kind in (Result, Sweep, Startup, Steps)
}


class _Header(msgspec.Struct):
    kind: str
    format: int = 1


_read_header = msgspec.json.Decoder(_Header).decode


def load_record(path: str | os.PathLike[str]) -> Saved:
    """What a ``stentor bench`` command saved at ``path`` for reports. Raises :class:`RecordError`, and OSError."""
    raw = Path(path).read_bytes()
    try:
        header = _read_header(raw)
        if header.format > FORMAT:
            raise RecordError(
                f"{path} has format {header.format}, expected at most {FORMAT}: read it with a newer Stentor"
            )
        if header.kind not in KINDS:
            raise RecordError(f"{path} holds a {header.kind!r}, expected {', '.join(KINDS)}")
        return msgspec.json.decode(raw, type=KINDS[header.kind])
    except msgspec.DecodeError as error:
        raise RecordError(f"{path} is no file of `stentor bench` ({error}): expected what --save wrote") from None


def load_result(path: str | os.PathLike[str]) -> Result:
    """The result that ``stentor bench serve --save`` wrote. Raises :class:`RecordError`, and OSError."""
    record = load_record(path)
    if not isinstance(record, Result):
        raise RecordError(f"{path} holds a {record.kind}, expected the result of `stentor bench serve`")
    return record


def save_record(record: object, path: str | os.PathLike[str]) -> None:
    """Writes indented JSON, whole or not at all: an interrupted run leaves an older file as it was. What is there and
    no plain file, such as ``/dev/null``, is written to and stays."""
    target, text = Path(path), msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    if target.exists() and not target.is_file():
        target.write_bytes(text)
        return
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_bytes(text)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def save_csv(result: Result, path: str | os.PathLike[str]) -> None:
    """One row a request, in order of sending, with absolute times in UTC."""
    began = datetime.fromisoformat(result.started_at)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(CSV_COLUMNS)
        for one in sorted(result.requests, key=lambda request: request.start):
            moments = (began + timedelta(seconds=seconds) for seconds in (one.start, one.scheduled))
            gaps = (math.fsum(one.itl) / len(one.itl), max(one.itl)) if one.itl else (None, None)
            latencies = (one.ttft, one.tpot, *gaps, one.e2e)
            writer.writerow(
                [
                    *(moment.isoformat(timespec="microseconds") for moment in moments),
                    *(one.stage, one.prompt_tokens, one.output_tokens),
                    *("" if seconds is None else f"{seconds * 1e3:.3f}" for seconds in latencies),
                    *(one.finish_reason, one.error),
                ]
            )


def now_iso() -> str:
    """The present moment as ``started_at`` wants it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def describe_machine() -> dict[str, Any]:
    """CPU, cores that this process may use, memory in bytes, Python and platform."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.release()} {platform.machine()}",
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "CPU part"):
            return value.strip()
    return platform.processor()
