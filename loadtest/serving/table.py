"""What a run came to, as tables for a terminal."""

from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..record import MEASURES, STATISTICS, Result, Summary
from ..tool import table
from .measure import rise, rise_by, span, spread, summarise

_BUSY: Final = 0.8
"""Share of a core from which a client reads late."""
_LATE_MS: Final = 20.0
"""Requests that leave later than this, one in a hundred, did not come as the arrivals say."""
_MANY_CHUNKS: Final = 10_000
"""Below, what a run costs the client once is most of it."""


def print_result(console: Console, result: Result, interrupted: bool = False) -> None:
    """Totals, latencies, stages where there are several, errors, and what the server counted."""
    summary = result.summary
    parts: list[RenderableType] = [_totals(result)]
    if summary.completed:
        parts.append(_latencies(summary))
    if len({request.stage for request in result.requests}) > 1:
        parts.append(_stages(result))
    if summary.errors:
        parts.append(_errors(result))
    if summary.seconds >= 1 and result.client_seconds > _BUSY * summary.seconds:
        parts.append(Text("the client was busy most of the time: what it measured is partly itself", style="yellow"))
    late = spread([request.start - request.scheduled for request in result.requests])
    if late.p99 > _LATE_MS:
        warning = "requests were sent later than they were due, which no latency counts: p99 "
        parts.append(Text(f"{warning}{late.p99:,.0f} ms, at most {late.max:,.0f} ms", style="yellow"))
    if interrupted:
        parts.append(Text("interrupted: only what had ended is counted", style="yellow"))
    console.print(Group(*parts))


def _totals(result: Result) -> Table:
    target, summary, seconds = result.target, result.summary, result.client_seconds
    chunks = sum(1 + len(request.itl) for request in result.requests if request.ttft is not None)
    without = sum(request.error is None and request.ttft is None for request in result.requests)
    empty = f" ({without} without output)" if without else ""
    share = f", {seconds / summary.seconds:.0%} of a core" if summary.seconds >= 1 else ""
    each = f", {seconds / chunks * 1e6:.1f} µs a chunk" if chunks >= _MANY_CHUNKS else ""
    rows = {
        "server": f"{target.url} ({target.server})" if target.server else target.url,
        "model, API": f"{target.model}, {target.api}",
        "requests": f"{summary.completed} completed{empty}, {summary.errors} failed in {summary.seconds:.2f} s",
        "at once, at most": str(summary.peak_concurrency),
        "tokens": f"{summary.prompt_tokens:,} in, {summary.output_tokens:,} out",
        "output": f"{summary.output_tokens_per_s:,.1f} tokens/s",
        "in and out": f"{summary.total_tokens_per_s:,.1f} tokens/s",
        "answers": f"{summary.requests_per_s:,.2f} requests/s",
        "client": f"{seconds:.2f} CPU s{share}{each}",
    }
    if summary.goodput_share is not None:
        limits = ", ".join(f"{name} {limit:g} ms" for name, limit in result.limits.items())
        rows["goodput"] = f"{summary.goodput_per_s:,.2f} requests/s, {summary.goodput_share:.1%} within {limits}"
    counters = result.metrics_before, result.metrics_after  # vLLM's names
    if queries := rise(*counters, "prefix_cache_queries_total"):
        hits = rise(*counters, "prefix_cache_hits_total")
        rows["prefix cache"] = f"{hits:,.0f} of {queries:,.0f} prompt tokens, {hits / queries:.1%}"
    if drafts := rise(*counters, "spec_decode_num_drafts_total"):
        rows["drafts"] = _drafts(result, drafts)
    if preempted := rise(*counters, "num_preemptions_total"):
        rows["preemptions"] = f"{preempted:,.0f}"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    for name, value in rows.items():
        grid.add_row(name, escape(value))  # names that servers choose are no markup
    return grid


def _drafts(result: Result, drafts: float) -> str:
    """Tokens that a step with drafts gained a sequence, and how many of these were accepted at each position."""
    counters = result.metrics_before, result.metrics_after
    accepted = rise(*counters, "spec_decode_num_accepted_tokens_total")
    tokens = rise(*counters, "spec_decode_num_draft_tokens_total")
    at = rise_by(*counters, "spec_decode_num_accepted_tokens_per_pos_total", "position")
    shares = ", ".join(f"{at[position] / drafts:.0%}" for position in sorted(at, key=int))
    return (
        f"{1 + accepted / drafts:.2f} tokens a step, {accepted:,.0f} of {tokens:,.0f} accepted ({shares} by position)"
    )


def _latencies(summary: Summary) -> Table:
    rows = []
    for name, title in MEASURES.items():
        found = getattr(summary, name)
        cells = [f"{getattr(found, each):,.2f}" if found.count else "-" for each in STATISTICS]
        rows.append([f"{name.upper()}  [dim]{title}[/dim]", *cells])
    return table(["ms", *STATISTICS], rows, box=SIMPLE_HEAD)


def _stages(result: Result) -> Table:
    columns = ("completed", "failed", "output tokens/s", "requests/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99")
    rows = []
    for name in dict.fromkeys(request.stage for request in result.requests):
        requests = [request for request in result.requests if request.stage == name]
        summary = summarise(requests, span(requests), result.limits)
        rates = (f"{summary.output_tokens_per_s:,.1f}", f"{summary.requests_per_s:,.2f}")
        latencies = (summary.ttft.p50, summary.ttft.p99, summary.itl.p50, summary.itl.p99)
        rows.append([name, str(summary.completed), str(summary.errors), *rates, *(f"{ms:,.1f}" for ms in latencies)])
    return table(["stage", *columns], rows, box=SIMPLE_HEAD)


def _errors(result: Result) -> Table:
    rows = []
    for kind, number in sorted(result.summary.errors_by_kind.items(), key=lambda item: -item[1]):
        example = next(request.error or "" for request in result.requests if request.error_kind == kind)
        rows.append([escape(kind), str(number), escape(example.partition(": ")[2])])
    return table(["failed", "how many", "for example"], rows, left=3, box=SIMPLE_HEAD)
