"""What is measured of speech, on the page that all metrics are on."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_FIRST: Final = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 40, 80, 160)
_FACTOR: Final = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5)


class SpeechMetrics:
    """Observes a model; see :class:`.model.SpeechObserver`. The model's first name is the only label."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(
                f"stentor:speech_{name}", text, ("model_name",), registry=registry, buckets=buckets
            ).labels(model)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"stentor:speech_{name}", text, ("model_name",), registry=registry).labels(model)

        self._requests = counter("requests", "Texts that the speech model has begun to speak.")
        self._audio = counter("audio_seconds", "Seconds of audio that the speech model has made.")
        self._restarts = counter("process_restarts", "Speech processes started to replace a crashed one.")
        self._first = histogram(
            "time_to_first_audio_seconds", "Seconds from the arrival of a text to its first audio.", _FIRST
        )
        self._factor = histogram(
            "real_time_factor", "Seconds to synthesize a sentence, divided by the seconds that it lasts.", _FACTOR
        )
        self._running = Gauge(
            "stentor:speech_requests_running",
            "Texts that the speech model is speaking.",
            ("model_name",),
            registry=registry,
        ).labels(model)

    def began(self) -> None:
        self._requests.inc()
        self._running.inc()

    def first_audio(self, seconds: float) -> None:
        self._first.observe(seconds)

    def made(self, audio_seconds: float, seconds: float) -> None:
        self._audio.inc(audio_seconds)
        if audio_seconds > 0:
            self._factor.observe(seconds / audio_seconds)

    def ended(self) -> None:
        self._running.dec()

    def restarted(self) -> None:
        self._restarts.inc()
