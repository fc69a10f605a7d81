"""Audio is sent at most so far ahead of what is played, and what was said by a moment is known."""

import anyio
import anyio.lowlevel
import pytest

from stentor.server.api.realtime.conversation.pacing import PlaybackPacer, SpokenText


class Clock:
    """Moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await anyio.lowlevel.checkpoint()
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(anyio, "sleep", clock.sleep)
    return clock


@pytest.mark.anyio
async def test_what_fits_ahead_is_sent_at_once_and_the_rest_in_its_time(clock: Clock) -> None:
    pacer = PlaybackPacer(1.0, clock)
    for _ in range(10):
        await pacer.admit(100)
    assert clock.slept == []
    assert pacer.unplayed_ms == pytest.approx(1000)
    for _ in range(20):
        await pacer.admit(100)
    assert clock.now - 100 == pytest.approx(2.0)
    assert pacer.unplayed_ms == pytest.approx(1000)


@pytest.mark.anyio
async def test_a_piece_that_is_longer_than_may_be_ahead_waits_until_all_is_played(clock: Clock) -> None:
    pacer = PlaybackPacer(1.0, clock)
    await pacer.admit(3000)
    assert clock.now == 100
    await pacer.admit(3000)
    assert clock.now == pytest.approx(103)


@pytest.mark.anyio
async def test_after_a_break_nothing_is_owed(clock: Clock) -> None:
    pacer = PlaybackPacer(1.0, clock)
    await pacer.admit(500)
    clock.now += 10
    assert pacer.unplayed_ms == 0
    await pacer.admit(1000)
    assert (clock.slept, pacer.unplayed_ms) == ([], 1000)


def spoken() -> SpokenText:
    text = SpokenText()
    text.add("Hello there.", 600)
    text.add("", 600)
    text.add(" How are you today?", 1800)
    return text


def test_whole_sentences_and_whole_words_have_been_said() -> None:
    text = spoken()
    assert text.duration_ms == 3000
    assert text.until(0) == ""
    assert text.until(1200) == "Hello there."
    assert text.until(3000) == text.until(9000) == text.text == "Hello there. How are you today?"
    assert text.until(599) == "Hello"
    assert text.until(1199) == "Hello"
    assert text.until(2100) == "Hello there. How are"


def test_what_was_said_grows_with_time_and_is_never_more_than_its_share() -> None:
    text, before = spoken(), ""
    for ms in range(0, 3001, 10):
        said = text.until(ms)
        assert text.text.startswith(said)
        assert len(said) >= len(before)
        before = said


def test_nothing_was_said_of_an_empty_answer() -> None:
    assert (SpokenText().until(100), SpokenText().duration_ms) == ("", 0.0)
