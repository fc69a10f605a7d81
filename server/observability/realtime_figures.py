"""Metrics of realtime sessions from the caller's side: latencies and interruptions."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from .declarations import MODEL, Declarations

SessionKind = Literal["realtime", "transcription", "vllm"]
KINDS: Final[tuple[SessionKind, ...]] = ("realtime", "transcription", "vllm")

Pass = Literal["partial", "final", "stream"]
"""A hypothesis while the caller speaks, one for the transcript, or a streaming model's single request for a turn."""
PASSES: Final[tuple[Pass, ...]] = ("partial", "final", "stream")
OUTCOMES: Final = ("completed", "dropped", "failed")

_PASS_SECONDS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 300.0)
_SECONDS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0)


class OnePass:
    """Facts about a pass that become known during it."""

    def __init__(self) -> None:
        self.audio_seconds = 0.0


class PassFigures:
    """Observes transcription passes of turns."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        made = Declarations(registry, model)
        ended = Counter(
            "stentor:realtime_transcriptions",
            "Transcription passes over the audio of a realtime turn, by kind of pass and outcome.",
            (MODEL, "pass", "outcome"),
            registry=registry,
        )
        self._ended = {(kind, how): ended.labels(model, kind, how) for kind in PASSES for how in OUTCOMES}
        self._audio = made.each(
            Counter,
            "realtime_transcription_audio_seconds",
            "Seconds of audio that transcription passes of realtime turns covered, by kind of pass.",
            "pass",
            PASSES,
        )
        self._lasted = made.each(
            Histogram,
            "realtime_transcription_seconds",
            "Seconds that a completed transcription pass of a realtime turn took, by kind of pass.",
            "pass",
            PASSES,
            buckets=_PASS_SECONDS,
        )

    @contextmanager
    def one(self, kind: Pass) -> Iterator[OnePass]:
        """Around one."""
        began, outcome, observed = time.monotonic(), "failed", OnePass()
        try:
            yield observed
            outcome = "completed"
            self._lasted[kind].observe(time.monotonic() - began)
        except asyncio.CancelledError:
            outcome = "dropped"
            raise
        finally:
            self._ended[kind, outcome].inc()
            self._audio[kind].inc(observed.audio_seconds)


class RealtimeFigures:
    """Metrics of all sessions of one server. Registers itself."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        made = Declarations(registry, model)
        self.sessions: Final = made.each(
            Gauge, "realtime_sessions", "Realtime sessions that are open, by kind.", "kind", KINDS
        )
        self.turn_latency: Final = made.quick(
            "realtime_turn_latency_seconds",
            "Seconds from the end of a caller's speech to the first audio of the answer.",
            _SECONDS,
        )
        self.transcription_lag: Final = made.quick(
            "realtime_transcription_lag_seconds", "Seconds from the end of a caller's turn to its transcript.", _SECONDS
        )
        self.partial_interval: Final = made.quick(
            "realtime_partial_interval_seconds", "Seconds between two partial transcripts of a turn.", _SECONDS
        )
        self.interruptions: Final = made.counter(
            "realtime_interruptions", "Spoken answers that were cut off because the caller began to speak."
        )
        self.passes: Final = PassFigures(model, registry)
        self.audio_held: Final = made.gauge(
            "realtime_audio_bytes", "Bytes of callers' audio that all realtime sessions hold."
        )
        self.audio_refused: Final = made.counter(
            "realtime_audio_refused",
            "Times that a realtime session was refused more audio because all sessions hold the most allowed.",
        )

    def session(self, kind: SessionKind) -> AbstractContextManager[object]:
        """Around one session."""
        return self.sessions[kind].track_inprogress()


class SessionFigures:
    """Figures of one session, for its log line; also added to the server's."""

    def __init__(self, figures: RealtimeFigures, clock: Callable[[], float] = time.monotonic) -> None:
        self._figures = figures
        self._clock = clock
        self._began = clock()
        self._spoke_until: float | None = None
        self.turns = 0
        self.answers = 0
        self.interruptions = 0
        self.slowest = 0.0
        """Seconds of the longest turn latency."""
        self._waited = 0.0

    def turn_ended(self, spoke_until: float) -> None:
        """A turn was found that ended with speech at that moment, by ``time.monotonic()``."""
        self.turns += 1
        self._spoke_until = spoke_until

    def audio_sent(self) -> None:
        """Records sent audio of an answer; the first after a turn ends the caller's wait."""
        if self._spoke_until is None:
            return
        latency = max(0.0, self._clock() - self._spoke_until)
        self._spoke_until = None
        self.answers += 1
        self._waited += latency
        self.slowest = max(self.slowest, latency)
        self._figures.turn_latency.observe(latency)

    def interrupted(self) -> None:
        self.interruptions += 1
        self._spoke_until = None
        self._figures.interruptions.inc()

    def __str__(self) -> str:
        mean = self._waited / self.answers if self.answers else 0.0
        return (
            f"{self._clock() - self._began:.1f} s, {self.turns} turns, {self.answers} spoken answers after "
            f"{mean:.2f} s on average and {self.slowest:.2f} s at most, {self.interruptions} interruptions"
        )
