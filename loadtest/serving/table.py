"""What a run came to, as tables for a terminal."""

from collections.abc import Mapping
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..record import RequestRecord, Result, Spread, Summary
from .measure import lateness, span, summarise
from .metrics import changes

_BUSY: Final = 0.8
"""Share of a core from which a client reads late."""
_LATE_MS: Final = 20.0
"""Requests that leave later than this, one in a hundred, did not come as the arrivals say."""
_MANY_CHUNKS: Final = 10_000
"""Below, what a run costs the client once is most of it."""


def print_result(console: Console, result: Result, interrupted: bool = False) -> None:
    """Totals, latencies, stages where there are several, errors, and what the server counted."""
    parts: list[RenderableType] = [_totals(result)]
    if result.summary.completed:
        parts.append(_latencies(result.summary))
    if len({request.stage for request in result.requests}) > 1:
        parts.append(_stages(result))
    if result.summary.errors:
        parts.append(_errors(result))
    if result.summary.seconds >= 1 and result.client_seconds > _BUSY * result.summary.seconds:
        parts.append(Text("the client was busy most of the time: what it measured is partly itself", style="yellow"))
    late = lateness(result.requests)
    if late.p99 > _LATE_MS:
        about = f"p50 {late.p50:,.0f} ms, p99 {late.p99:,.0f} ms, at most {late.max:,.0f} ms"
        parts.append(
            Text(f"requests were sent later than they were due, which no latency counts: {about}", style="yellow")
        )
    if interrupted:
        parts.append(Text("interrupted: only what had ended is counted", style="yellow"))
    console.print(Group(*parts))


def _totals(result: Result) -> Table:
    summary = result.summary
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    streamed = sum(1 + len(request.itl) for request in result.requests if request.ttft is not None)
    without = sum(request.error is None and request.ttft is None for request in result.requests)
    empty = f" ({without} without output)" if without else ""
    rows = [
        ("server", " ".join(filter(None, (result.target.url, result.target.server and f"({result.target.server})")))),
        ("model, API", f"{result.target.model}, {result.target.api}"),
        ("requests", f"{summary.completed} completed{empty}, {summary.errors} failed in {summary.seconds:.2f} s"),
        ("at once, at most", str(summary.peak_concurrency)),
        ("tokens", f"{summary.prompt_tokens:,} in, {summary.output_tokens:,} out"),
        ("output", f"{summary.output_tokens_per_s:,.1f} tokens/s"),
        ("in and out", f"{summary.total_tokens_per_s:,.1f} tokens/s"),
        ("answers", f"{summary.requests_per_s:,.2f} requests/s"),
        ("client", _client(result, streamed)),
    ]
    if summary.goodput_per_s is not None and summary.goodput_share is not None:
        limits = ", ".join(f"{name} {limit:g} ms" for name, limit in result.limits.items())
        rows.append(
            ("goodput", f"{summary.goodput_per_s:,.2f} requests/s, {summary.goodput_share:.1%} within {limits}")
        )
    rows += _counted(changes(result.metrics_before, result.metrics_after))
    for name, value in rows:
        table.add_row(name, Text(value))  # names that servers choose are no markup
    return table


def _client(result: Result, chunks: int) -> str:
    seconds = result.client_seconds
    share = f", {seconds / result.summary.seconds:.0%} of a core" if result.summary.seconds >= 1 else ""
    each = f", {seconds / chunks * 1e6:.1f} µs a chunk" if chunks >= _MANY_CHUNKS else ""
    return f"{seconds:.2f} CPU s{share}{each}"


def _counted(rose: Mapping[str, float]) -> list[tuple[str, str]]:
    """What the server's counters say of its prefix cache and of preemptions; vLLM's names, whatever stands before."""
    sums: dict[str, float] = {}
    for name, change in rose.items():
        bare = name.partition("{")[0].rpartition(":")[2]
        sums[bare] = sums.get(bare, 0.0) + change
    rows = []
    if queries := sums.get("prefix_cache_queries_total"):
        hits = sums.get("prefix_cache_hits_total", 0.0)
        rows.append(("prefix cache", f"{hits:,.0f} of {queries:,.0f} prompt tokens, {hits / queries:.1%}"))
    if preempted := sums.get("num_preemptions_total"):
        rows.append(("preemptions", f"{preempted:,.0f}"))
    return rows


def _latencies(summary: Summary) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("ms")
    for name in ("mean", "p50", "p90", "p95", "p99", "max"):
        table.add_column(name, justify="right")
    rows = {
        "ttft": ("time to first token", summary.ttft),
        "itl": ("between chunks", summary.itl),
        "tpot": ("a token after the first", summary.tpot),
        "e2e": ("whole answer", summary.e2e),
    }
    for name, (title, spread) in rows.items():
        label = f"{name.upper() if name != 'e2e' else 'E2E'}  [dim]{title}[/dim]"
        table.add_row(label, *_cells(spread))
    return table


def _cells(spread: Spread) -> list[str]:
    if not spread.count:
        return ["-"] * 6
    return [f"{value:,.2f}" for value in (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max)]


def _stages(result: Result) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("stage")
    for title in ("completed", "failed", "output tokens/s", "requests/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99"):
        table.add_column(title, justify="right")
    stages: dict[str, list[RequestRecord]] = {}
    for request in result.requests:
        stages.setdefault(request.stage, []).append(request)
    for name, requests in stages.items():
        summary = summarise(requests, span(requests), result.limits)
        table.add_row(
            name,
            str(summary.completed),
            str(summary.errors),
            f"{summary.output_tokens_per_s:,.1f}",
            f"{summary.requests_per_s:,.2f}",
            *(f"{ms:,.1f}" for ms in (summary.ttft.p50, summary.ttft.p99, summary.itl.p50, summary.itl.p99)),
        )
    return table


def _errors(result: Result) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for title in ("failed", "how many", "for example"):
        table.add_column(title, overflow="fold")
    for kind, number in sorted(result.summary.errors_by_kind.items(), key=lambda item: -item[1]):
        example = next(request.error or "" for request in result.requests if request.error_kind == kind)
        table.add_row(kind, str(number), Text(example.partition(": ")[2]))
    return table
