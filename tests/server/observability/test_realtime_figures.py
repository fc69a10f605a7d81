"""How long callers waited, as metrics and as a line of the log."""

import pytest
from prometheus_client import CollectorRegistry

from stentor.server.observability.realtime_figures import RealtimeFigures, SessionFigures


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"stentor:{name}", {"model_name": "m", **labels})


def test_a_turn_waits_from_the_last_speech_to_the_first_audio() -> None:
    registry, now = CollectorRegistry(), 10.0
    session = SessionFigures(RealtimeFigures("m", registry), lambda: now)
    session.turn_ended(10.0)
    now = 10.9
    session.audio_sent()
    session.audio_sent()
    session.turn_ended(11.0)
    now = 12.1
    session.audio_sent()
    assert sample(registry, "realtime_turn_latency_seconds_count") == 2
    assert sample(registry, "realtime_turn_latency_seconds_sum") == pytest.approx(2.0)
    assert "2 turns, 2 spoken answers after 1.00 s on average and 1.10 s at most" in str(session)


def test_a_turn_that_is_interrupted_was_not_answered() -> None:
    registry = CollectorRegistry()
    session = SessionFigures(RealtimeFigures("m", registry))
    session.turn_ended(0.0)
    session.interrupted()
    session.audio_sent()
    assert sample(registry, "realtime_interruptions_total") == 1
    assert sample(registry, "realtime_turn_latency_seconds_count") == 0
    assert "1 turns, 0 spoken answers" in str(session)


def test_open_sessions_are_counted_by_kind() -> None:
    registry = CollectorRegistry()
    figures = RealtimeFigures("m", registry)
    with figures.session("transcription"):
        assert sample(registry, "realtime_sessions", kind="transcription") == 1
        assert sample(registry, "realtime_sessions", kind="realtime") == 0
    assert sample(registry, "realtime_sessions", kind="transcription") == 0
