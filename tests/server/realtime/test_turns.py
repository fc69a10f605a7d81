"""Turn detection over probabilities that are made up: every event at its exact place in the audio."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.server.api.realtime.listening.turns import (
    STRETCH_MS,
    IdleTimedOut,
    TurnDetector,
    TurnEnded,
    TurnEvent,
    TurnPaused,
    TurnResumed,
    TurnRules,
    TurnStarted,
)
from stentor.tests.examples import examples


def run(detector: TurnDetector, probabilities: list[float]) -> list[TurnEvent]:
    return [event for probability in probabilities for event in detector.push(probability)]


def reported(events: list[TurnEvent]) -> list[TurnEvent]:
    """What a client hears of."""
    return [event for event in events if not isinstance(event, TurnPaused | TurnResumed)]


def ms(stretches: int) -> int:
    return stretches * STRETCH_MS


def test_a_turn_begins_with_its_padding_and_ends_with_the_silence_that_ended_it() -> None:
    detector = TurnDetector(TurnRules.server(silence_duration_ms=200))
    events = reported(run(detector, [0.0] * 20 + [0.9] * 10 + [0.0] * 10))
    assert events == [TurnStarted(ms(20) - 300), TurnEnded(ms(20) - 300, ms(30) + 200, ms(30))]


def test_the_padding_does_not_reach_before_the_audio_or_into_the_last_turn() -> None:
    detector = TurnDetector(TurnRules.server(prefix_padding_ms=500, silence_duration_ms=100))
    events = reported(run(detector, [0.9] * 5 + [0.0] * 5 + [0.9] * 5 + [0.0] * 5))
    end = ms(5) + 100
    assert events[:3] == [TurnStarted(0), TurnEnded(0, end, ms(5)), TurnStarted(end)]


def test_one_stretch_is_a_click_and_begins_no_turn() -> None:
    assert run(TurnDetector(TurnRules()), [0.0, 0.9, 0.0] * 20) == []


def test_between_the_thresholds_speech_neither_begins_nor_ends() -> None:
    rules = TurnRules.server(threshold=0.5, silence_duration_ms=64)
    assert run(TurnDetector(rules), [0.45] * 50) == []
    events = reported(run(TurnDetector(rules), [0.9] * 3 + [0.4] * 50))
    assert events == [TurnStarted(0)]


def test_a_short_pause_is_told_and_taken_back_when_the_caller_goes_on() -> None:
    detector = TurnDetector(TurnRules.server(silence_duration_ms=500))
    events = run(detector, [0.9] * 5 + [0.0] * 6 + [0.9] * 5 + [0.0] * 16)
    assert events == [
        TurnStarted(0),
        TurnPaused(0),
        TurnResumed(),
        TurnPaused(ms(6)),
        TurnEnded(0, ms(16) + 500, ms(16)),
    ]


def test_a_pause_is_noticed_well_before_it_ends_the_turn() -> None:
    for silence in (200, 300, 500, 1000):
        detector = TurnDetector(TurnRules.server(silence_duration_ms=silence))
        run(detector, [0.9] * 5)
        found: list[tuple[TurnEvent, int]] = []
        while not any(isinstance(event, TurnEnded) for event, _ in found):
            found += [(event, detector.now_ms) for event in detector.push(0.0)]
        (paused, noticed), (_, ended) = found
        assert isinstance(paused, TurnPaused)
        assert ended - noticed >= silence // 2


def test_a_threshold_of_its_own_hears_only_what_is_surer() -> None:
    assert run(TurnDetector(TurnRules.server(threshold=0.8)), [0.7] * 20) == []
    assert run(TurnDetector(TurnRules.server(threshold=0.3)), [0.35] * 3) == [TurnStarted(0)]


def test_a_turn_that_is_too_long_is_cut_and_another_begins_where_it_ended() -> None:
    detector = TurnDetector(TurnRules(max_turn_ms=ms(10)))
    events = reported(run(detector, [0.9] * 15))
    assert events == [TurnStarted(0), TurnEnded(0, ms(10), ms(10)), TurnStarted(ms(10))]


def test_nobody_speaking_after_an_answer_is_told_once_with_the_silence() -> None:
    detector = TurnDetector(TurnRules.server(idle_timeout_ms=1000))
    assert run(detector, [0.0] * 100) == []  # nothing has been answered
    detector.await_speech(4000)
    assert run(detector, [0.0] * 200) == [IdleTimedOut(4000, 5000)]


def test_speech_ends_the_wait_for_speech() -> None:
    detector = TurnDetector(TurnRules.server(idle_timeout_ms=1000, silence_duration_ms=100))
    detector.await_speech(0)
    assert IdleTimedOut not in {type(event) for event in run(detector, [0.0] * 5 + [0.9] * 3 + [0.0] * 100)}


def test_an_answer_that_begins_ends_the_wait_for_speech() -> None:
    detector = TurnDetector(TurnRules.server(idle_timeout_ms=1000))
    detector.await_speech(0)
    detector.stop_waiting()
    assert run(detector, [0.0] * 100) == []


def test_the_silence_that_a_timeout_commits_is_kept_until_then() -> None:
    detector = TurnDetector(TurnRules.server(idle_timeout_ms=10_000))
    detector.await_speech(1000)
    run(detector, [0.0] * 100)
    assert detector.keep_from_ms == 1000


def test_a_judgement_ends_a_pause_that_has_lasted_long_enough() -> None:
    detector = TurnDetector(TurnRules.semantic("medium"))
    run(detector, [0.9] * 5 + [0.0] * 10)
    stopped = detector.judge(300)
    assert stopped == TurnEnded(0, ms(15), ms(5))
    assert not detector.speaking


def test_a_judgement_that_says_to_wait_ends_the_turn_at_its_time() -> None:
    detector = TurnDetector(TurnRules.semantic("low"))
    run(detector, [0.9] * 5 + [0.0] * 10)
    assert detector.judge(1000) is None
    assert run(detector, [0.0] * 40) == [TurnEnded(0, ms(5) + 1000, ms(5))]


def test_a_judgement_is_forgotten_when_the_caller_goes_on() -> None:
    detector = TurnDetector(TurnRules.semantic("high"))
    run(detector, [0.9] * 5 + [0.0] * 6)
    assert detector.judge(1000) is None
    events = reported(run(detector, [0.9] * 5 + [0.0] * 100))
    assert events == [TurnEnded(0, ms(16) + 2000, ms(16))]


@pytest.mark.parametrize(("eagerness", "most"), [("low", 8000), ("medium", 4000), ("high", 2000), ("auto", 4000)])
def test_without_a_judgement_the_longest_pause_ends_the_turn(eagerness: str, most: int) -> None:
    detector = TurnDetector(TurnRules.semantic(eagerness))
    assert reported(run(detector, [0.9] * 5 + [0.0] * 400)) == [TurnStarted(0), TurnEnded(0, ms(5) + most, ms(5))]


def test_a_judgement_comes_too_late_when_the_caller_speaks() -> None:
    detector = TurnDetector(TurnRules.semantic())
    run(detector, [0.9] * 5)
    assert detector.judge(0) is None


probabilities = st.lists(st.sampled_from([0.0, 0.3, 0.4, 0.55, 0.9]), max_size=200)


@settings(max_examples=examples(75, 10 * 300), deadline=None)
@given(probabilities, st.integers(0, 600), st.integers(0, 1000), st.one_of(st.none(), st.integers(0, 2000)))
def test_turns_follow_one_another_and_never_overlap(
    values: list[float], padding: int, silence: int, idle: int | None
) -> None:
    rules = TurnRules.server(prefix_padding_ms=padding, silence_duration_ms=silence, idle_timeout_ms=idle)
    detector = TurnDetector(rules)
    detector.await_speech(0)
    floor, started = 0, None
    for value in values:
        kept = detector.keep_from_ms
        for event in detector.push(value):
            match event:
                case TurnStarted():
                    assert started is None
                    assert floor <= event.start_ms <= detector.now_ms
                    assert event.start_ms >= kept, "audio of the turn could have been forgotten"
                    started = event.start_ms
                case TurnEnded():
                    assert event.start_ms == started
                    assert event.start_ms <= event.voiced_end_ms <= event.end_ms <= detector.now_ms
                    floor, started = event.end_ms, None
                case IdleTimedOut():
                    assert started is None
                    assert floor <= event.start_ms <= event.end_ms <= detector.now_ms
                    floor = event.end_ms
                case TurnPaused() | TurnResumed():
                    assert started is not None
        assert detector.speaking == (started is not None)
