"""One turn, heard by a model that understands made-up speech exactly."""

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from stentor.protocols.common.errors import BadRequest
from stentor.server.api.realtime.common.formats import to_ticks
from stentor.server.api.realtime.listening import partial_pace
from stentor.server.api.realtime.listening.hypotheses import TranscriptionSettings
from stentor.server.api.realtime.listening.incremental_transcriber import (
    MAX_WINDOW_MS,
    SETTLE_MS,
    IncrementalTranscriber,
)
from stentor.server.api.realtime.listening.partial_pace import PartialPace
from stentor.server.common.errors import GenerationFailed
from stentor.tests.server.realtime.sounds import WORD_MS, DeliveredText, Model, silence, until, word, words

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def transcribing(
    model: Model, settings: TranscriptionSettings | None = None, begin: int = 0, pace: PartialPace | None = None
) -> AsyncIterator[tuple[IncrementalTranscriber, DeliveredText]]:
    reported = DeliveredText()
    turn = IncrementalTranscriber(
        begin, model, settings or TranscriptionSettings(), pace or PartialPace(), reported.tell, reported.guesses.append
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(turn.run)
        yield turn, reported
        tasks.cancel_scope.cancel()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_pace, "MIN_SECONDS", 0.01)


PARTIALS = TranscriptionSettings(partials=True)


async def test_a_turn_is_transcribed_once_it_is_complete() -> None:
    model = Model()
    async with transcribing(model) as (turn, reported):
        turn.push(words(1, 2))
        await anyio.sleep(0.02)
        assert model.calls == []
        turn.push(words(3))
        turn.finish()
        transcript = await turn.transcript()
        assert await turn.transcript() == transcript
    assert transcript == ("w1 w2 w3", 3 * WORD_MS / 1000, None)
    assert (reported.text, len(model.calls)) == ("w1 w2 w3", 1)
    assert turn.lag is not None


async def test_what_comes_after_the_end_is_not_heard() -> None:
    async with transcribing(Model(), begin=to_ticks(1000)) as (turn, _):
        turn.push(words(1, 2, 3))
        turn.finish(to_ticks(1000 + 2 * WORD_MS))
        assert (await turn.transcript())[:2] == ("w1 w2", 2 * WORD_MS / 1000)


async def test_the_transcript_is_there_when_the_pause_that_ends_the_turn_has_lasted_long_enough() -> None:
    model = Model()
    async with transcribing(model) as (turn, reported):
        turn.push(words(1, 2) + silence(100))
        turn.pause()
        await until(lambda: reported.guesses == ["w1 w2"])
        turn.push(silence(100))
        turn.finish()
        with anyio.fail_after(60):
            assert (await turn.transcript()).text == "w1 w2"
    assert len(model.calls) == 1
    assert reported.pieces == ["w1 w2"]


async def test_a_transcript_that_is_being_made_when_the_turn_ends_is_waited_for() -> None:
    model = Model()
    model.gate = anyio.Event()
    async with transcribing(model) as (turn, _):
        turn.push(words(1) + silence(100))
        turn.pause()
        await until(lambda: len(model.calls) == 1)
        turn.finish()
        await anyio.sleep(0.01)
        model.gate.set()
        assert (await turn.transcript()).text == "w1"
    assert (len(model.calls), model.dropped) == (1, 0)


async def test_a_caller_who_goes_on_after_a_pause_is_heard_again() -> None:
    model = Model()
    async with transcribing(model) as (turn, reported):
        turn.push(words(1) + silence(200))
        turn.pause()
        await until(lambda: bool(reported.guesses))
        turn.resume()
        turn.push(words(2))
        turn.finish()
        assert (await turn.transcript()).text == "w1 w2"
    assert len(model.calls) == 2


async def test_a_guess_that_has_become_stale_is_given_up() -> None:
    model = Model(seconds=3600)
    async with transcribing(model) as (turn, _):
        turn.push(words(1) + silence(200))
        turn.pause()
        await until(lambda: len(model.calls) == 1)
        turn.resume()
        await until(lambda: model.dropped == 1)
        model.seconds = 0
        turn.push(words(2))
        turn.finish()
        assert (await turn.transcript()).text == "w1 w2"


async def test_words_are_told_while_the_caller_speaks_and_never_taken_back(quick: None) -> None:
    model = Model()
    async with transcribing(model, PARTIALS) as (turn, reported):
        for number in range(1, 9):
            calls = len(model.calls)
            for _ in range(3):
                turn.push(word(number, ms=WORD_MS // 3))
                await anyio.sleep(0.001)
            await model.asked_again(calls)
        await until(lambda: reported.text.startswith("w1 w2 w3"))
        assert "cut" not in reported.text
        before = reported.text
        turn.finish()
        transcript = await turn.transcript()
    assert transcript.text == reported.text == "w1 w2 w3 w4 w5 w6 w7 w8"
    assert transcript.text.startswith(before)
    assert any(continued for _, continued, final in model.calls if not final)


async def test_without_partials_nothing_is_told_before_the_end(quick: None) -> None:
    model = Model()
    async with transcribing(model) as (turn, reported):
        for number in range(1, 5):
            turn.push(word(number))
            await anyio.sleep(0.02)
        assert (reported.pieces, model.calls) == ([], [])


async def test_a_partial_hypothesis_makes_way_for_what_is_waited_for(quick: None) -> None:
    model = Model(seconds=3600)
    async with transcribing(model, PARTIALS) as (turn, _):
        turn.push(words(1, 2))
        await until(lambda: len(model.calls) == 1)
        assert not model.calls[0][2]
        model.seconds = 0
        turn.finish()
        with anyio.fail_after(60):
            assert (await turn.transcript()).text == "w1 w2"
    assert (model.dropped, model.calls[1][2]) == (1, True)


async def test_a_turn_that_waits_for_its_place_among_others_is_not_kept_from_its_end(quick: None) -> None:
    pace, model = PartialPace(), Model()
    async with pace.place(), pace.place(), transcribing(model, PARTIALS, pace=pace) as (turn, _):
        turn.push(words(1, 2))
        await anyio.sleep(0.03)
        assert model.calls == []
        turn.finish()
        with anyio.fail_after(60):
            assert (await turn.transcript()).text == "w1 w2"


async def test_a_long_turn_without_a_pause_is_cut_where_it_is_quietest() -> None:
    model = Model()
    numbers = [at % 9 for at in range(140)]
    async with transcribing(model) as (turn, reported):
        for at, number in enumerate(numbers):
            turn.push(word(number, ms=WORD_MS) + silence(120 if at % 10 == 9 else 0))
            await anyio.sleep(0)
        turn.finish()
        transcript = await turn.transcript()
    assert transcript.text == " ".join(f"w{number}" for number in understood_runs(numbers))
    assert reported.text == transcript.text
    assert model.longest_ms <= MAX_WINDOW_MS
    assert transcript.seconds == pytest.approx((140 * WORD_MS + 14 * 120) / 1000)


def understood_runs(numbers: list[int]) -> list[int]:
    assert all(one != other for one, other in itertools.pairwise(numbers))
    return numbers


async def test_a_long_window_is_settled_at_a_pause() -> None:
    model = Model()
    count = SETTLE_MS // WORD_MS + 1
    async with transcribing(model) as (turn, reported):
        turn.push(words(*(at % 9 for at in range(count))) + silence(200))
        turn.pause()
        await until(lambda: bool(reported.text))
        turn.resume()
        turn.push(words(3))
        turn.finish()
        transcript = await turn.transcript()
    assert transcript.text == " ".join([f"w{at % 9}" for at in range(count)] + ["w3"])
    assert model.calls[-1][0] == WORD_MS


async def test_a_turn_that_ends_at_the_pause_where_it_was_settled_is_not_heard_again() -> None:
    model = Model()
    count = SETTLE_MS // WORD_MS + 1
    async with transcribing(model) as (turn, reported):
        turn.push(words(*(at % 9 for at in range(count))) + silence(200))
        turn.pause()
        await until(lambda: bool(reported.text))
        turn.push(silence(300))
        turn.finish()
        await turn.transcript()
    assert len(model.calls) == 1


async def test_what_comes_all_at_once_is_heard_window_by_window() -> None:
    model = Model()
    numbers = [at % 9 for at in range(200)]
    async with transcribing(model, PARTIALS) as (turn, _):
        turn.push(b"".join(word(number) + silence(100 * (at % 7 == 6)) for at, number in enumerate(numbers)))
        turn.finish()
        assert (await turn.transcript()).text == " ".join(f"w{number}" for number in numbers)
    assert model.longest_ms <= MAX_WINDOW_MS


async def test_the_tokens_that_are_told_join_to_the_text(quick: None) -> None:
    async with transcribing(Model(), TranscriptionSettings(logprobs=True, partials=True)) as (turn, reported):
        for number in range(1, 7):
            turn.push(word(number))
            await anyio.sleep(0.02)
        turn.finish()
        transcript = await turn.transcript()
    assert transcript.logprobs == reported.tokens
    assert "".join(token.token for token in reported.tokens).strip() == transcript.text


@pytest.mark.parametrize("error", [GenerationFailed(), BadRequest("no")], ids=["ours", "theirs"])
async def test_a_failure_is_told_to_all_who_wait(error: Exception) -> None:
    model = Model()
    model.error = error
    async with transcribing(model) as (turn, _):
        turn.push(words(1))
        turn.finish()
        for _ in range(2):
            with pytest.raises(type(error)):
                await turn.transcript()
    assert turn.waiting_ms == 0


async def test_a_turn_that_is_given_up_takes_its_request_back() -> None:
    model = Model(seconds=3600)
    async with transcribing(model) as (turn, _):
        turn.push(words(1))
        turn.finish()
        await until(lambda: len(model.calls) == 1)
        turn.give_up()
        with pytest.raises(GenerationFailed):
            await turn.transcript()
    assert model.dropped == 1


async def test_a_moment_of_sound_is_not_worth_a_request() -> None:
    model = Model()
    async with transcribing(model) as (turn, _):
        turn.push(silence(50))
        turn.finish()
        assert (await turn.transcript())[:2] == ("", 0.05)
    assert model.calls == []


async def test_the_interval_stretches_with_what_a_hypothesis_takes_and_how_many_share_the_model() -> None:
    now = 0.0
    pace = PartialPace(clock=lambda: now)
    assert pace.interval == partial_pace.MIN_SECONDS
    for _ in range(4):
        pace.join()
    async with pace.place():
        now += 0.4
    assert pace.interval == pytest.approx(4 * 0.4 / (partial_pace.AT_ONCE * partial_pace.SHARE))
    for _ in range(2):
        pace.leave()
    assert pace.interval == pytest.approx(0.8)
    for _ in range(100):
        pace.join()
    assert pace.interval == partial_pace.MAX_SECONDS


async def test_a_hypothesis_that_is_given_up_is_not_measured() -> None:
    now = 0.0
    pace = PartialPace(clock=lambda: now)
    pace.join()
    with anyio.CancelScope() as scope:
        async with pace.place():
            now += 10
            scope.cancel()
            await anyio.sleep(1)
    assert pace.interval == partial_pace.MIN_SECONDS


async def test_only_so_many_hypotheses_are_made_at_once() -> None:
    pace, running, most = PartialPace(), 0, 0

    async def guess(done: Callable[[], None]) -> None:
        nonlocal running, most
        async with pace.place():
            running += 1
            most = max(most, running)
            await anyio.sleep(0.005)
            running -= 1
        done()

    finished: list[int] = []
    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(guess, lambda: finished.append(1))
    assert (most, len(finished)) == (partial_pace.AT_ONCE, 6)


async def test_a_fault_of_ours_fails_the_turn_and_not_the_session(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    model.error = KeyError("xx")
    async with transcribing(model) as (turn, _):
        turn.push(words(1))
        turn.finish()
        with pytest.raises(GenerationFailed):
            await turn.transcript()
    assert "a turn could not be transcribed" in caplog.text


async def test_no_guess_is_begun_while_somebody_waits_for_a_transcript() -> None:
    pace, begun = PartialPace(), anyio.Event()

    async def guess() -> None:
        async with pace.place():
            begun.set()

    async with anyio.create_task_group() as tasks:
        with pace.awaited():
            with pace.awaited():
                tasks.start_soon(guess)
                await anyio.sleep(0.01)
            await anyio.sleep(0.01)
            assert not begun.is_set()
        with anyio.fail_after(60):
            await begun.wait()


async def test_a_guess_that_fails_costs_the_turn_nothing(quick: None) -> None:
    model = Model()
    model.error = GenerationFailed()
    async with transcribing(model, PARTIALS) as (turn, reported):
        turn.push(words(1, 2) + silence(200))
        await until(lambda: len(model.calls) == 1)
        turn.pause()
        await until(lambda: len(model.calls) == 2)
        await anyio.sleep(0.02)
        assert len(model.calls) == 2
        model.error = None
        turn.finish()
        assert (await turn.transcript()).text == reported.text == "w1 w2"


async def test_who_always_has_transcripts_to_wait_for_keeps_nobodys_guesses_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partial_pace, "PATIENCE_SECONDS", 0.02)
    pace = PartialPace()
    with pace.awaited(), anyio.fail_after(60):
        async with pace.place():
            pass
