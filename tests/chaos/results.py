"""What the long forms leave behind, and the tables that a page shows of it.

python -P -m stentor.tests.chaos.results loadtest/results/2026-11-chaos-cpu.json
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from stentor.loadtest.record import describe_machine, now_iso
from stentor.tests.chaos.bombing import Bombed
from stentor.tests.chaos.exactness import Outcome
from stentor.tests.chaos.fuzzing import Fuzzed
from stentor.tests.chaos.mixing import Mixed
from stentor.tests.chaos.poisoning import Poisoned
from stentor.tests.chaos.soaking import Soak, Trend

FORMAT: Final = 1


class Chaos(msgspec.Struct, kw_only=True):
    """``make chaos``. What has not run is None or empty."""

    format: int = FORMAT
    kind: Literal["chaos"] = "chaos"
    started_at: str = msgspec.field(default_factory=now_iso)
    seed: int = 0
    machine: dict[str, Any] = msgspec.field(default_factory=describe_machine)
    exact: Outcome | None = None
    default: Outcome | None = None
    fuzzed: Fuzzed | None = None
    poisoned: list[Poisoned] = []
    bombed: Bombed | None = None
    seconds: float = 0.0


class Soaked(msgspec.Struct, kw_only=True):
    """``make soak``."""

    format: int = FORMAT
    kind: Literal["soak"] = "soak"
    started_at: str = msgspec.field(default_factory=now_iso)
    seed: int = 0
    machine: dict[str, Any] = msgspec.field(default_factory=describe_machine)
    soak: Soak | None = None


class MixedRun(msgspec.Struct, kw_only=True):
    """``make mix``."""

    format: int = FORMAT
    kind: Literal["mix"] = "mix"
    started_at: str = msgspec.field(default_factory=now_iso)
    seed: int = 0
    machine: dict[str, Any] = msgspec.field(default_factory=describe_machine)
    mix: Mixed | None = None


AnyResult = Chaos | Soaked | MixedRun
_TYPES: Final[dict[str, type[AnyResult]]] = {"chaos": Chaos, "soak": Soaked, "mix": MixedRun}


def save(result: AnyResult, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)  # after a quarter of an hour a missing folder must not lose it
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def load(path: Path) -> AnyResult:
    raw = path.read_bytes()
    return msgspec.json.decode(raw, type=_TYPES[msgspec.json.decode(raw)["kind"]])


def markdown(result: AnyResult) -> str:
    """Tables for a page."""
    if isinstance(result, Soaked):
        return "" if result.soak is None else _soak_table(result.soak)
    if isinstance(result, MixedRun):
        return "" if result.mix is None else _mix_table(result.mix)
    parts = [_recovery_table(result)]
    if result.fuzzed is not None:
        parts.append(_fuzz_line(result.fuzzed))
    parts += [_poison_line(each) for each in result.poisoned]
    if result.bombed is not None:
        parts.append(_bomb_line(result.bombed))
    return "\n\n".join(part for part in parts if part)


def _recovery_table(result: Chaos) -> str:
    rows = []
    for name, outcome in (("float32, `--batch-invariant`", result.exact), ("default", result.default)):
        if outcome is None:
            continue
        for each in outcome.recoveries:
            rows.append(f"| {name} | {each.kind} | {each.kills} | {each.median:.2f} s | {each.worst:.2f} s |")
    if not rows:
        return ""
    head = ["| dtype | lost | times | streams go on after, median | worst |", "|---|---|--:|--:|--:|"]
    lines = [
        f"{name}: {outcome.streams} streams, {outcome.survivors} of them lived over a death or more; "
        f"{outcome.incomplete} lost or repeated a token; {outcome.identical_survivors} of the {outcome.survivors} "
        "are token by token what they are undisturbed."
        for name, outcome in (("float32, `--batch-invariant`", result.exact), ("default dtype", result.default))
        if outcome is not None
    ]
    return "\n".join([*head, *rows]) + "\n\n" + "\n".join(f"- {line}" for line in lines)


def _fuzz_line(fuzzed: Fuzzed) -> str:
    failures = sum(count for status, count in fuzzed.statuses.items() if int(status) >= 500)
    memory = ", ".join(
        f"{role} {fuzzed.resident_before_mib.get(role, 0):.0f} to {size:.0f} MiB"
        for role, size in fuzzed.resident_after_mib.items()
    )
    return (
        f"- {fuzzed.requests} random requests in {fuzzed.seconds:.0f} s, {fuzzed.clients_that_left} of whose clients "
        f"left early: {failures} answers of 500 and above; blocks, descriptors, tasks, `/dev/shm` as before; "
        f"resident {memory}."
    )


def _poison_line(poisoned: Poisoned) -> str:
    return (
        f"- {poisoned.poisons} poisonous among {poisoned.streams} streams: "
        f"{', '.join(map(str, poisoned.statuses))} after {poisoned.seconds:.1f} s and {poisoned.worker_deaths} "
        f"workers; {poisoned.identical} of {poisoned.streams} streams as undisturbed."
    )


def _bomb_line(bombed: Bombed) -> str:
    return (
        f"- {bombed.thrown} bombs of {bombed.bombs} kinds, refused within {bombed.slowest_refusal_s:.2f} s; between "
        f"tokens of {bombed.streams} streams {bombed.median_before_ms:.1f} ms in peace and {bombed.median_ms:.1f} "
        f"under attack (median), {bombed.p99_before_ms:.1f} and {bombed.p99_ms:.1f} (99th percentile)."
    )


def _soak_table(soak: Soak) -> str:
    head = [
        f"{soak.seconds / 60:.0f} minutes of {soak.streams} streams after {soak.warmup_seconds:.0f} s of warm-up: "
        f"{soak.requests} requests, {soak.failed} failed, {soak.tokens_per_second:.0f} tokens/s.",
        "",
    ]
    return "\n".join([*head, *_trend_rows(soak.trends)])


def _mix_table(mix: Mixed) -> str:
    kills = ", ".join(f"{count} {process}s" for process, count in mix.kills.items())
    done = ", ".join(f"{count} of {kind.replace('_', ' ')}" for kind, count in mix.done.items())
    head = [
        f"{mix.seconds / 60:.0f} minutes ({done}); killed: {kills}. {mix.identical} of {mix.done['stream']} streams, "
        f"{mix.tokens} tokens, are token by token what they are undisturbed. "
        f"Answers beside the streams: {mix.statuses}.",
        "",
    ]
    return "\n".join([*head, *_trend_rows(mix.trends)])


def _trend_rows(trends: Sequence[Trend]) -> list[str]:
    return [
        "| process | resident, first third | second | last | trend |",
        "|---|--:|--:|--:|--:|",
        *(
            f"| {each.role} | {each.first_mib:.1f} MiB | {each.second_mib:.1f} | {each.last_mib:.1f} "
            f"| {each.slope_mib_per_hour:+.1f} MiB/h |"
            for each in trends
        ),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    for name in sys.argv[1:] if argv is None else argv:
        print(markdown(load(Path(name))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
