"""Results as a load test leaves them, computed instead of measured."""

import random
from collections.abc import Sequence

from stentor.loadtest.record import (
    RequestRecord,
    Result,
    Spread,
    Startup,
    StartupRound,
    Steps,
    Summary,
    Sweep,
    SweepPoint,
    Target,
)
from stentor.loadtest.step_curves import Figure


def request(
    start: float = 0.0,
    ttft: float | None = 0.1,
    itl: Sequence[float] = (0.02, 0.02),
    prompt_tokens: int = 128,
    error: str | None = None,
) -> RequestRecord:
    e2e = (ttft or 0.0) + sum(itl)
    return RequestRecord(
        start=start,
        scheduled=start,
        prompt_tokens=prompt_tokens,
        output_tokens=0 if ttft is None else 1 + len(itl),
        ttft=ttft,
        itl=list(itl),
        chunk_tokens=[1] * len(itl),
        e2e=e2e or 0.5,
        error=error,
        finish_reason=None if error else "length",
    )


def spread(p50: float, p99: float | None = None, count: int = 100) -> Spread:
    high = 2 * p50 if p99 is None else p99
    return Spread(mean=p50, p50=p50, p90=high, p95=high, p99=high, max=high, count=count)


def summary(rate: float = 100.0, ttft: float = 80.0, itl: float = 20.0, share: float | None = None) -> Summary:
    return Summary(
        seconds=10.0,
        requests=100,
        completed=99,
        errors=1,
        prompt_tokens=12_800,
        output_tokens=round(10 * rate),
        output_tokens_per_s=rate,
        total_tokens_per_s=2 * rate,
        requests_per_s=rate / 128,
        ttft=spread(ttft),
        itl=spread(itl),
        tpot=spread(itl),
        e2e=spread(ttft + 127 * itl),
        goodput_per_s=None if share is None else share * rate / 128,
        goodput_share=share,
        peak_concurrency=8,
        errors_by_kind={"timeout": 1},
    )


def result(
    requests: Sequence[RequestRecord] = (), name: str = "run", of: Summary | None = None, **fields: object
) -> Result:
    made = {
        "name": name,
        "started_at": "2026-01-02T03:04:05.000+00:00",
        "command": ["stentor", "bench", "serve"],
        "target": Target("http://127.0.0.1:8000", "model", "completions"),
        "workload": {"seed": 0},
        "machine": {"cpu": "a processor", "cores": 2},
        "summary": of or summary(),
        "requests": list(requests),
        **fields,
    }
    return Result(**made)  # type: ignore[arg-type]


def sweep(rates: dict[float | str, Sequence[float]], name: str = "ours", axis: str = "concurrency") -> Sweep:
    """A sweep with one repeat for each rate of a value; TTFT falls as the rate grows."""
    points = [
        SweepPoint(value, result(of=summary(rate, ttft=1e5 / rate, itl=9 + rate / 20, share=min(1.0, 300 / rate))))
        for value, each in rates.items()
        for rate in each
    ]
    return Sweep(name=name, started_at="2026-01-02T03:04:05.000+00:00", axis=axis, points=points)


def startup(rounds: Sequence[tuple[bool, float]], name: str = "ours") -> Startup:
    """Starts of so many seconds, a quarter of them importing; True is cold."""
    made = [StartupRound(cold, {"importing": 0.25 * ready, "loading": 0.75 * ready}, ready) for cold, ready in rounds]
    return Startup(name=name, started_at="2026-01-02T03:04:05.000+00:00", command=["stentor"], rounds=made)


def lively(seed: int = 1, count: int = 300, speed: float = 1.0) -> list[RequestRecord]:
    """Requests as a busy server answers them: long tails, prompts of many lengths, a few errors."""
    rng = random.Random(seed)
    made, now = [], 0.0
    for index in range(count):
        now += rng.expovariate(12)
        prompt = int(rng.lognormvariate(5.5, 0.8))
        if index % 60 == 59:
            made.append(request(now, None, (), prompt, f"timeout: request {index} had no answer"))
            continue
        gaps = [
            0.0 if rng.random() < 0.05 else rng.lognormvariate(-4.0, 0.25) / speed + 0.1 * (rng.random() < 0.02)
            for _ in range(rng.randrange(40, 128))
        ]
        made.append(request(now, (0.02 + 2e-4 * prompt) * rng.lognormvariate(0, 0.3) / speed, gaps, prompt))
    return made


def steps(rows: Sequence[int] = (1, 2)) -> Steps:
    """Steps that take a millisecond for each row and 16 tokens."""

    def step(kind: str, rows: int, tokens: int, context: int, milliseconds: float) -> Figure:
        return Figure(kind, rows, tokens, context, milliseconds, milliseconds, 5, 1.0, 1.0, 1.0, 0.5)

    figures = [step("decode", count, 1, context, count + context / 16) for count in rows for context in (16, 64)]
    figures += [step("prefill", 1, tokens, 0, tokens / 16) for tokens in (16, 32)]
    figures += [step("chunk", 1, 512, context, 32 + context / 16) for context in (16, 64)]
    return Steps(started_at="2026-01-02T03:04:05.000+00:00", worker={"model": "tiny"}, figures=figures)
