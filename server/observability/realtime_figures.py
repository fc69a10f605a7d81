"""What realtime sessions were like for those who spoke: how long they waited, and how often they interrupted."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from .quick_metrics import QuickHistogram

SessionKind = Literal["realtime", "transcription", "vllm"]
KINDS: Final[tuple[SessionKind, ...]] = ("realtime", "transcription", "vllm")

Pass = Literal["partial", "final", "stream"]
"""A guess while the caller speaks, what may become the transcript, or the one request over all of a turn, to a model
that hears while it is spoken to."""
PASSES: Final[tuple[Pass, ...]] = ("partial", "final", "stream")
OUTCOMES: Final = ("completed", "dropped", "failed")

_PASS_SECONDS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 300.0)
_SECONDS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0)


class OnePass:
    """What becomes known of it on the way."""

    def __init__(self) -> None:
        self.audio_seconds = 0.0


class PassFigures:
    """Of every time that the audio of a turn is given to the model that hears."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        ended = Counter(
            "stentor:realtime_transcriptions",
            "Transcription passes over the audio of a realtime turn, by kind of pass and outcome.",
            ("model_name", "pass", "outcome"),
            registry=registry,
        )
        audio = Counter(
            "stentor:realtime_transcription_audio_seconds",
            "Seconds of audio that transcription passes of realtime turns covered, by kind of pass.",
            ("model_name", "pass"),
            registry=registry,
        )
        lasted = Histogram(
            "stentor:realtime_transcription_seconds",
            "Seconds that a completed transcription pass of a realtime turn took, by kind of pass.",
            ("model_name", "pass"),
            registry=registry,
            buckets=_PASS_SECONDS,
        )
        self._ended = {(kind, how): ended.labels(model, kind, how) for kind in PASSES for how in OUTCOMES}
        self._audio = {kind: audio.labels(model, kind) for kind in PASSES}
        self._lasted = {kind: lasted.labels(model, kind) for kind in PASSES}

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
    """Of all sessions of one server. Registers itself."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        labels = {"model_name": model}
        running = Gauge(
            "stentor:realtime_sessions",
            "Realtime sessions that are open, by kind.",
            ("model_name", "kind"),
            registry=registry,
        )
        self.sessions: Final = {kind: running.labels(model, kind) for kind in KINDS}
        self.turn_latency: Final = QuickHistogram(
            "stentor:realtime_turn_latency_seconds",
            "Seconds from the end of a caller's speech to the first audio of the answer.",
            labels,
            registry,
            _SECONDS,
        )
        self.transcription_lag: Final = QuickHistogram(
            "stentor:realtime_transcription_lag_seconds",
            "Seconds from the end of a caller's turn to its transcript.",
            labels,
            registry,
            _SECONDS,
        )
        self.partial_interval: Final = QuickHistogram(
            "stentor:realtime_partial_interval_seconds",
            "Seconds between two partial transcripts of a turn.",
            labels,
            registry,
            _SECONDS,
        )
        self.interruptions: Final = Counter(
            "stentor:realtime_interruptions",
            "Spoken answers that were cut off because the caller began to speak.",
            ("model_name",),
            registry=registry,
        ).labels(model)

        self.passes: Final = PassFigures(model, registry)
        self.audio_held: Final = Gauge(
            "stentor:realtime_audio_bytes",
            "Bytes of callers' audio that all realtime sessions hold.",
            ("model_name",),
            registry=registry,
        ).labels(model)
        self.audio_refused: Final = Counter(
            "stentor:realtime_audio_refused",
            "Times that a realtime session was refused more audio because all sessions hold the most allowed.",
            ("model_name",),
            registry=registry,
        ).labels(model)

    @contextmanager
    def session(self, kind: SessionKind) -> Iterator[None]:
        """Around one session."""
        gauge = self.sessions[kind]
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()


class SessionFigures:
    """Of one session, for its log line; told to those of the server as well."""

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
        """Some audio of an answer; the first after a turn is what the caller waited for."""
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
