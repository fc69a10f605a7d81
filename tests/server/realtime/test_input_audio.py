"""The input side of a session, with made-up speech: what it hears, when, and as which item."""

import itertools
import math
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.realtime.session import (
    AudioInput,
    AudioPcmu,
    SemanticVad,
    ServerVad,
    Transcription,
)
from stentor.server.api.realtime.common.interfaces import (
    SpeechEvent,
    SpeechStarted,
    SpeechStopped,
    TimedOut,
    TokenProbability,
)
from stentor.server.api.realtime.listening import input_audio_pipeline as input_audio_module
from stentor.server.api.realtime.listening import partial_pace
from stentor.server.api.realtime.listening.hypotheses import Hypothesis, TranscriptionSettings
from stentor.server.api.realtime.listening.input_audio_pipeline import InputAudioPipeline
from stentor.server.api.realtime.listening.partial_pace import PartialPace
from stentor.server.audio.g711 import encode
from stentor.server.common.errors import GenerationFailed
from stentor.tests.examples import examples
from stentor.tests.server.realtime.sounds import WORD_MS, LoudnessDetector, Model, silence, until, words

pytestmark = pytest.mark.anyio

RATE = 24_000
VAD = AudioInput(turn_detection=ServerVad(silence_duration_ms=200))
MANUAL = AudioInput(turn_detection=None)
WRITTEN = Transcription()


class Session:
    def __init__(self, model: Model, max_seconds: float = math.inf) -> None:
        self.model = model
        self.partials: list[tuple[str, str]] = []
        self.found: list[SpeechEvent] = []
        self.tokens: list[TokenProbability] = []
        self.lags: list[float] = []
        numbers = itertools.count(1)
        self.input_audio = InputAudioPipeline(
            model,
            LoudnessDetector,
            PartialPace(),
            self._told,
            self.found.append,
            on_lag=self.lags.append,
            max_seconds=max_seconds,
            new_id=lambda: f"item{next(numbers)}",
        )

    def _told(self, item_id: str, text: str, tokens: list[TokenProbability] | None) -> None:
        self.partials.append((item_id, text))
        self.tokens += tokens or []

    async def send(self, audio: bytes, ms: int = 100) -> list[SpeechEvent]:
        """In pieces, with a moment for the others after each; returns what was found meanwhile."""
        since = len(self.found)
        step = RATE * ms // 1000 * 2
        for at in range(0, len(audio), step):
            assert await self.input_audio.append(audio[at : at + step]) == []
            await anyio.sleep(0)
        return self.found[since:]


@asynccontextmanager
async def session(input: AudioInput, model: Model | None = None, **options: float) -> AsyncIterator[Session]:
    running = Session(model or Model(), **options)
    running.input_audio.configure(input, logprobs=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.input_audio.run)
        yield running
        tasks.cancel_scope.cancel()


async def waits(call: Awaitable[object]) -> bool:
    """Whether ``call``, which is then given up, is not done although every other task has had many turns."""

    async def give_up() -> None:
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(give_up)
            await call
            tasks.cancel_scope.cancel()
    return scope.cancelled_caught


def speech(*numbers: int) -> bytes:
    return words(*numbers, rate=RATE)


def quiet(ms: int) -> bytes:
    return silence(ms, rate=RATE)


async def test_a_turn_is_found_committed_and_transcribed() -> None:
    async with session(VAD) as running:
        found = await running.send(quiet(1000) + speech(1, 2) + quiet(600))
        match found:
            case [SpeechStarted(started, start), SpeechStopped(stopped, end, turn)]:
                assert started == stopped == turn.item_id == "item1"
            case _:
                raise AssertionError(found)
        assert start == pytest.approx(700, abs=32)
        assert end == pytest.approx(1000 + 2 * WORD_MS + 200, abs=32)
        assert (turn.duration_ms, len(turn.audio)) == (end - start, (end - start) * 48)
        transcript = await turn.transcript()
    assert transcript.text == "w1 w2"
    assert transcript.seconds == pytest.approx((end - start) / 1000, abs=0.001)
    assert running.partials == []
    assert len(running.lags) == 1


async def test_two_turns_share_no_audio() -> None:
    async with session(VAD) as running:
        found = await running.send((speech(1) + quiet(260)) * 2 + quiet(500))
        first, second = (one for one in found if isinstance(one, SpeechStopped))
        starts = [one.audio_start_ms for one in found if isinstance(one, SpeechStarted)]
        assert starts[1] >= first.audio_end_ms
        texts = [(await one.turn.transcript()).text for one in (first, second)]
    assert texts == ["w1", "w1"]
    assert (first.item_id, second.item_id) == ("item1", "item2")


async def test_what_is_said_is_told_while_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_pace, "MIN_SECONDS", 0.005)
    async with session(AudioInput(transcription=WRITTEN, turn_detection=ServerVad())) as running:
        for number in range(1, 8):
            calls = len(running.model.calls)
            await running.send(speech(number))
            await running.model.asked_again(calls)
        early = list(running.partials)
        found = await running.send(quiet(1000))
        (stopped,) = (one for one in found if isinstance(one, SpeechStopped))
        text = (await stopped.turn.transcript()).text
    assert early
    assert {item_id for item_id, _ in running.partials} == {stopped.item_id}
    assert "".join(piece for _, piece in running.partials) == text == "w1 w2 w3 w4 w5 w6 w7"


async def test_nothing_is_told_of_a_turn_before_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_pace, "MIN_SECONDS", 0.0)
    async with session(AudioInput(transcription=WRITTEN, turn_detection=ServerVad())) as running:
        reported: list[str] = []
        running.input_audio._on_partial = lambda item_id, text, tokens: reported.append(item_id)
        running.input_audio._on_speech_event = lambda heard: reported.append(f"{type(heard).__name__} {heard.item_id}")
        await running.input_audio.append(
            quiet(1000) + speech(*range(8), *range(8)) + quiet(900) + speech(1) + quiet(5000)
        )
        await until(lambda: reported.count("item2") >= 1)
        for item in ("item1", "item2"):
            assert reported.index(f"SpeechStarted {item}") < reported.index(item)


async def test_manual_turns_end_where_the_client_says() -> None:
    async with session(MANUAL) as running:
        assert await running.send(speech(1) + quiet(3000) + speech(2)) == []
        turn = running.input_audio.commit()
        assert (turn.item_id, turn.duration_ms) == ("item1", 3000 + 2 * WORD_MS)
        assert (await turn.transcript()).text == "w1 w2"
        await running.send(speech(3))
        second = running.input_audio.commit()
        assert (second.item_id, (await second.transcript()).text) == ("item2", "w3")


async def test_an_empty_commit_is_refused_and_leaves_everything_as_it_was() -> None:
    async with session(MANUAL) as running:
        await running.send(speech(1)[: 48 * 50])
        with pytest.raises(BadRequest, match="buffer too small") as caught:
            running.input_audio.commit()
        assert caught.value.code == "input_audio_buffer_commit_empty"
        await running.send(speech(1)[48 * 50 :])
        assert (await running.input_audio.commit().transcript()).text == "w1"


async def test_a_client_may_commit_in_the_middle_of_a_turn_that_was_found() -> None:
    async with session(VAD) as running:
        found = await running.send(quiet(1000) + speech(1, 2))
        turn = running.input_audio.commit()
        assert isinstance(found[0], SpeechStarted)
        assert turn.item_id == found[0].item_id
        assert turn.duration_ms == pytest.approx(1000 + 2 * WORD_MS - found[0].audio_start_ms, abs=1)
        assert (await turn.transcript()).text == "w1 w2"
        assert await running.send(quiet(1000)) == []


async def test_a_client_may_commit_what_no_turn_was_found_in() -> None:
    async with session(VAD) as running:
        await running.send(quiet(2000))
        assert running.input_audio.commit().duration_ms == 2000
        with pytest.raises(BadRequest):
            running.input_audio.commit()


async def test_clearing_forgets_a_turn_that_has_begun() -> None:
    async with session(VAD) as running:
        await running.send(speech(1))
        running.input_audio.clear()
        found = await running.send(quiet(500) + speech(2) + quiet(500))
        started, stopped = found
        assert isinstance(started, SpeechStarted)
        assert isinstance(stopped, SpeechStopped)
        assert started.audio_start_ms == pytest.approx(WORD_MS + 200, abs=32)
        assert (await stopped.turn.transcript()).text == "w2"


async def test_nobody_who_speaks_after_an_answer_is_told_with_the_silence() -> None:
    async with session(AudioInput(turn_detection=ServerVad(idle_timeout_ms=5000))) as running:
        await running.send(quiet(1000))
        running.input_audio.responded(500)
        found = await running.send(quiet(6000))
        (timed_out,) = found
        assert isinstance(timed_out, TimedOut)
        assert (timed_out.audio_start_ms, timed_out.audio_end_ms) == (1500, 6500)
        assert timed_out.turn.duration_ms == 5000
        assert (await timed_out.turn.transcript()).text == ""
        running.input_audio.responded(500)
        running.input_audio.responding()
        assert await running.send(quiet(9000)) == []


async def test_a_complete_sentence_ends_a_semantic_turn_early_and_an_open_one_late() -> None:
    class Sentences(Model):
        said = ""

        async def __call__(
            self, pcm: bytes, settings: TranscriptionSettings, *, continued: str, final: bool
        ) -> Hypothesis:
            await super().__call__(pcm, settings, continued=continued, final=final)
            return Hypothesis(self.said)

    ends = {}
    for said in (" Stop it.", " I want to"):
        model = Sentences()
        model.said = said
        async with session(AudioInput(turn_detection=SemanticVad(eagerness="high")), model) as running:
            found = await running.send(speech(1) + quiet(4000), ms=20)
            (stopped,) = (one for one in found if isinstance(one, SpeechStopped))
            ends[said] = stopped.audio_end_ms - WORD_MS
    assert ends[" Stop it."] == pytest.approx(220, abs=64)
    assert ends[" I want to"] == pytest.approx(2000, abs=64)


async def test_audio_in_an_item_is_transcribed_like_any_other() -> None:
    async with session(VAD) as running:
        turn = running.input_audio.turn_of("mine", speech(4, 5))
        assert (turn.item_id, turn.duration_ms) == ("mine", 2 * WORD_MS)
        assert (await turn.transcript()).text == "w4 w5"


async def test_telephone_audio_is_heard_too() -> None:
    async with session(AudioInput(format=AudioPcmu(), turn_detection=ServerVad())) as running:
        audio = encode("pcmu", silence(400, 8000) + words(3, rate=8000) + silence(1000, 8000))
        for at in range(0, len(audio), 160):
            await running.input_audio.append(audio[at : at + 160])
        stopped = running.found[-1]
        assert isinstance(stopped, SpeechStopped)
        assert len(stopped.turn.audio) == stopped.turn.duration_ms * 8
        assert (await stopped.turn.transcript()).text == "w3"


async def test_detection_that_is_switched_off_and_on_goes_on_with_the_same_audio() -> None:
    async with session(VAD) as running:
        await running.send(speech(1))
        running.input_audio.configure(MANUAL, logprobs=False)
        assert await running.send(quiet(1000) + speech(2)) == []
        turn = running.input_audio.commit()
        assert (await turn.transcript()).text == "w1 w2"
        running.input_audio.configure(VAD, logprobs=False)
        found = await running.send(quiet(500) + speech(3) + quiet(500))
        started, stopped = found
        assert isinstance(started, SpeechStarted)
        assert isinstance(stopped, SpeechStopped)
        assert started.audio_start_ms == pytest.approx(2 * WORD_MS + 1000 + 200, abs=33)


async def test_a_buffer_that_is_full_refuses_more_and_keeps_what_it_has() -> None:
    async with session(MANUAL, max_seconds=1) as running:
        await running.send(quiet(900))
        with pytest.raises(BadRequest, match="Commit or clear it first"):
            await running.input_audio.append(quiet(200))
        assert running.input_audio.commit().duration_ms == 900


async def test_a_turn_that_would_fill_the_buffer_is_cut_before_it_does() -> None:
    async with session(VAD, max_seconds=4) as running:
        found = await running.send(speech(*(at % 9 for at in range(20))))
        assert sum(isinstance(one, SpeechStopped) for one in found) >= 3
        assert running.input_audio.commit().duration_ms > 0


async def test_silence_between_turns_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_audio_module, "KEPT_MS", 1000)
    async with session(VAD, max_seconds=3) as running:
        await running.input_audio.append(quiet(20_000))
        assert running.input_audio.received_ms == 20_000
        assert running.input_audio.commit().duration_ms == 1000


async def test_audio_waits_while_too_much_waits_to_be_transcribed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_audio_module, "BACKLOG_MS", 1000)
    model = Model()
    model.gate = anyio.Event()
    async with session(MANUAL, model) as running:
        await running.send(speech(1, 2, 3))
        running.input_audio.commit()
        assert await waits(running.input_audio.append(speech(4)))
        model.gate.set()
        with anyio.fail_after(60):
            await running.input_audio.append(speech(4))


async def test_audio_that_comes_whole_counts_among_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_audio_module, "BACKLOG_MS", 1000)
    model = Model()
    model.gate = anyio.Event()
    async with session(MANUAL, model) as running:
        for _ in range(2):  # before it has been brought to its turn, and afterwards
            running.input_audio.turn_of("mine", speech(1, 2, 3))
            assert await waits(running.input_audio.room())
        model.gate.set()
        with anyio.fail_after(60):
            await running.input_audio.room()


async def test_an_item_may_bring_no_more_audio_than_the_buffer_would_hold() -> None:
    async with session(MANUAL, max_seconds=1) as running:
        with pytest.raises(BadRequest, match="lasts 2 s; at most 1 s"):
            running.input_audio.turn_of("mine", quiet(2000))
        assert running.input_audio.turn_of("mine", quiet(1000)).duration_ms == 1000


@pytest.mark.parametrize("whole", [False, True])
async def test_others_go_on_while_much_audio_comes_at_once(whole: bool) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.sleep(0)

    async with session(MANUAL) as running, anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        if whole:
            await running.input_audio.turn_of("mine", quiet(60_000)).transcript()
        else:
            await running.input_audio.append(quiet(60_000))
        tasks.cancel_scope.cancel()
    assert turns >= 60


async def test_a_turn_that_detection_takes_over_is_not_heard_any_more() -> None:
    model = Model()
    async with session(MANUAL, model) as running:
        await running.send(speech(1))
        running.input_audio.configure(VAD, logprobs=False)
        _, stopped = await running.send(quiet(500) + speech(2) + quiet(500))
        assert isinstance(stopped, SpeechStopped)
        assert (await stopped.turn.transcript()).text == "w2"
        await until(lambda: not running.input_audio._unsettled)


async def test_when_the_connection_ends_nothing_is_left_running() -> None:
    model = Model(seconds=100)
    async with session(MANUAL, model) as running:
        await running.send(speech(1))
        turn = running.input_audio.commit()
        await until(lambda: len(model.calls) == 1)
    assert model.dropped == 1
    with pytest.raises(GenerationFailed):
        await turn.transcript()


async def events_of(audio: bytes, pieces: list[int], input: AudioInput) -> list[object]:
    async with session(input) as running:
        at = 0
        for piece in [*pieces, len(audio)]:
            await running.input_audio.append(audio[at : at + piece])
            at += piece
        return [
            (type(one), one.audio_start_ms)
            if isinstance(one, SpeechStarted)
            else (type(one), one.audio_end_ms, one.turn.audio, (await one.turn.transcript()).text)
            for one in running.found
        ]


@settings(max_examples=examples(20, 200), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 8)), min_size=1, max_size=4),
    st.lists(st.integers(1, 60_000), max_size=12),
)
def test_any_cut_of_the_same_audio_gives_the_same_turns(said: list[tuple[int, int]], pieces: list[int]) -> None:
    audio = b"".join(quiet(pause) + speech(number) for pause, number in said) + quiet(400)
    assert anyio.run(events_of, audio, pieces, VAD) == anyio.run(events_of, audio, [], VAD)
