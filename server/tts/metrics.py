"""Metrics of speech."""

from typing import Final

from prometheus_client import CollectorRegistry

from ..observability.declarations import Declarations

_FIRST: Final = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 40, 80, 160)
_FACTOR: Final = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5)


class SpeechMetrics:
    """Observes a model; see :class:`.model.SpeechObserver`. The model's first name is the only label."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        made = Declarations(registry, model)
        self._requests = made.counter("speech_requests", "Texts that the speech model has begun to speak.")
        self._audio = made.counter("speech_audio_seconds", "Seconds of audio that the speech model has made.")
        self._restarts = made.counter("speech_process_restarts", "Speech processes started to replace a crashed one.")
        self._first = made.histogram(
            "speech_time_to_first_audio_seconds", "Seconds from the arrival of a text to its first audio.", _FIRST
        )
        self._factor = made.histogram(
            "speech_real_time_factor",
            "Seconds to synthesize a sentence, divided by the seconds that it lasts.",
            _FACTOR,
        )
        self._running = made.gauge("speech_requests_running", "Texts that the speech model is speaking.")

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
