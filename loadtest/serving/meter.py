"""What a run counts while it goes on: for the live view, and for the peak of concurrency."""

from collections import deque
from typing import Final

import msgspec

_RECENT: Final = 2048


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a run at one moment. Latencies are in milliseconds, of what was seen most recently."""

    seconds: float
    stage: str
    sent: int
    completed: int
    errors: int
    in_flight: int
    tokens: int
    planned: int | None
    """Requests in all, where a number was asked for."""
    planned_seconds: float | None
    ttft_p50: float | None
    ttft_p99: float | None
    itl_p50: float | None
    itl_p99: float | None


class Meter:
    """Counters, and the latest latencies. Nothing here grows with the length of a run."""

    def __init__(self) -> None:
        self.stage = ""
        self.sent = 0
        self.completed = 0
        self.errors = 0
        self.in_flight = 0
        self.peak = 0
        self.tokens = 0
        self._ttft: deque[float] = deque(maxlen=_RECENT)
        self._gaps: deque[float] = deque(maxlen=_RECENT)
        self.first = self._ttft.append
        """Call with the seconds to a first token."""
        self.gap = self._gaps.append
        """Call with the seconds between two reads of one stream."""

    def read(self, tokens: int) -> None:
        """One read brought so many output tokens."""
        self.tokens += tokens

    def began(self) -> None:
        self.sent += 1
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)

    def ended(self) -> None:
        """Also called for a request that an interrupt cut off, which counts as nothing."""
        self.in_flight -= 1

    def count(self, failed: bool) -> None:
        if failed:
            self.errors += 1
        else:
            self.completed += 1

    def snapshot(self, seconds: float, planned: int | None, planned_seconds: float | None) -> Snapshot:
        ttft, gaps = sorted(self._ttft), sorted(self._gaps)
        return Snapshot(
            seconds=seconds,
            stage=self.stage,
            sent=self.sent,
            completed=self.completed,
            errors=self.errors,
            in_flight=self.in_flight,
            tokens=self.tokens,
            planned=planned,
            planned_seconds=planned_seconds,
            ttft_p50=_at(ttft, 0.5),
            ttft_p99=_at(ttft, 0.99),
            itl_p50=_at(gaps, 0.5),
            itl_p99=_at(gaps, 0.99),
        )


def _at(ordered: list[float], share: float) -> float | None:
    return ordered[round(share * (len(ordered) - 1))] * 1e3 if ordered else None
