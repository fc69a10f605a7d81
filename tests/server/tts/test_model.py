"""Texts that are spoken at the same time, over a real process with a voice that is made up."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from stentor.engine.tts.client import SpeechClient
from stentor.engine.tts.voices import Voices
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.speech import StartSpeech, VoicePlace
from stentor.server.common.errors import Overloaded, Unavailable
from stentor.server.http.listening import StartError
from stentor.server.tts import fairness
from stentor.server.tts import model as module
from stentor.server.tts.fairness import FIRSTS_IN_A_ROW
from stentor.server.tts.metrics import SpeechMetrics
from stentor.server.tts.model import Speaking, SpeechFailed, SpeechModel, Spoken
from stentor.server.tts.speaking import AHEAD
from stentor.tests.engine.tts.fake_voice import MODULE, RATE
from stentor.tests.server.harness import until

pytestmark = pytest.mark.anyio

TEXT = "Hello there, you. How are you? I am fine. What shall we say? Nothing more."


@asynccontextmanager
async def speaking_model(folder: Path, *, any_speed: bool = True) -> AsyncIterator[SpeechModel]:
    places = (VoicePlace("one", str(folder)), VoicePlace("second", str(folder)))
    start = StartSpeech("piper", places, 1, "error")
    model = SpeechModel(("voice",), Voices("piper", places, RATE, any_speed), SpeechClient(start, MODULE))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(model.run)
        yield model
        tasks.cancel_scope.cancel()


async def all_of(speaking: Speaking) -> list[Spoken]:
    async with aclosing(speaking):
        return [spoken async for spoken in speaking]


def said(folder: Path) -> list[str]:
    file = folder / "said"
    return file.read_text().splitlines() if file.exists() else []


async def deltas(text: str, size: int = 3) -> AsyncGenerator[str, None]:
    for start in range(0, len(text), size):
        await asyncio.sleep(0)
        yield text[start : start + size]


async def test_a_text_comes_back_as_pieces_that_join_to_it_the_last_marked(tmp_path: Path) -> None:
    async with speaking_model(tmp_path) as model:
        spoken = await all_of(model.speak(TEXT))
        assert "".join(each.text for each in spoken) == TEXT
        assert [each.last for each in spoken] == [False] * (len(spoken) - 1) + [True]
        assert all(each.pcm for each in spoken)
        assert said(tmp_path) == [each.text.strip() for each in spoken]
        assert model.callers == 0


async def test_deltas_are_spoken_as_the_whole_text_is(tmp_path: Path) -> None:
    async with speaking_model(tmp_path) as model:
        whole = await all_of(model.speak(TEXT, voice="second", speed=0.5))
        assert await all_of(model.speak(deltas(TEXT), voice="second", speed=0.5)) == whole


async def test_a_first_sentence_is_spoken_while_the_text_still_comes(tmp_path: Path) -> None:
    rest = asyncio.Event()

    async def text() -> AsyncGenerator[str, None]:
        yield "A first sentence. And "
        await rest.wait()
        yield "a second."

    async with speaking_model(tmp_path) as model, aclosing(model.speak(text())) as speaking:
        first = await anext(speaking)
        assert (first.text, first.last) == ("A first sentence. ", False)
        rest.set()
        assert [(each.text, each.last) async for each in speaking] == [("And a second.", True)]


async def test_parts_of_a_sentence_are_heard_while_it_is_made(tmp_path: Path) -> None:
    async with speaking_model(tmp_path) as model:
        spoken = await all_of(model.speak("This is said bit by bit. So it falls bit by bit."))
        assert [each.text for each in spoken if each.text] == ["This is said bit by bit. ", "So it falls bit by bit."]
        assert [bool(each.text) for each in spoken] == 2 * [True, False, False, False]
        assert [each.last for each in spoken] == 7 * [False] + [True]
        samples = b"".join(each.pcm for each in spoken)
        first, second = 16 * len("This is said bit by bit."), 16 * len("So it falls bit by bit.")
        assert samples == b"".join(bytes(at % 251 for at in range(size)) for size in (first, second))
        assert model.restarts == 1


async def test_a_text_with_nothing_to_say_makes_no_sound(tmp_path: Path) -> None:
    async with speaking_model(tmp_path) as model:
        for text in ("", "  \n", "😀 ***"):
            for given in (text, deltas(text, 1)):
                spoken = await all_of(model.speak(given))
                assert "".join(each.text for each in spoken) == text
                assert b"".join(each.pcm for each in spoken) == b""
        assert model.callers == 0
    assert said(tmp_path) == []


async def test_what_breaks_the_text_is_raised_behind_what_came_before(tmp_path: Path) -> None:
    async def text() -> AsyncGenerator[str, None]:
        yield "It begins well. And "
        raise ValueError("the end")

    async with speaking_model(tmp_path) as model, aclosing(model.speak(text())) as speaking:
        assert (await anext(speaking)).text == "It begins well. "
        assert (await anext(speaking)) == Spoken(bytes([3, 1]) * 24, "And ", False)
        with pytest.raises(ValueError, match="the end"):
            await anext(speaking)
        assert model.callers == 0


async def test_only_a_few_sentences_are_made_ahead_of_the_reader(tmp_path: Path) -> None:
    async with speaking_model(tmp_path) as model, aclosing(model.speak("Some words. " * 30)) as speaking:
        for made in (AHEAD, AHEAD + 1):
            await until(lambda made=made: len(said(tmp_path)) >= made, 60)
            await anyio.sleep(0.1)
            assert len(said(tmp_path)) == made
            await anext(speaking)


async def test_beginnings_go_first_and_the_rest_in_turn(tmp_path: Path) -> None:
    async with speaking_model(tmp_path) as model:
        await model.wait_started()
        texts = [f"slow {name}. Then {name} two. Then {name} three. " for name in ("Al", "Bo", "Cy")]
        async with anyio.create_task_group() as tasks:
            for text in texts:
                tasks.start_soon(all_of, model.speak(text))
    assert said(tmp_path) == [
        *("slow Al.", "slow Bo.", "slow Cy."),
        *("Then Al two.", "Then Bo two.", "Then Cy two."),
        *("Then Al three.", "Then Bo three.", "Then Cy three."),
    ]


async def test_a_short_text_is_through_before_long_ones_that_came_with_it_go_on(tmp_path: Path) -> None:
    async with speaking_model(tmp_path) as model:
        await model.wait_started()
        more = "And so it goes, and on and on and on, and on and on and on it goes. " * 40
        crowd = [model.speak(f"Number {number} begins. {more}") for number in range(50)]
        await all_of(model.speak("Good day to you. All is well here. Bye now."))
        order = said(tmp_path)
        for each in crowd:
            await each.aclose()
    assert order[0] == "Good day to you."
    begun = order[: order.index("Bye now.")]
    assert len(begun) <= 3 * FIRSTS_IN_A_ROW
    assert all(sentence.endswith("begins.") for sentence in begun if sentence.startswith("Number"))
    assert not any(sentence.startswith("And so") for sentence in begun)


async def test_a_crowd_of_beginnings_does_not_silence_who_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fairness, "FIRSTS_IN_A_ROW", 3)
    async with speaking_model(tmp_path) as model:
        await model.wait_started()
        first = model.speak("slow start. Its second. Its third.")
        await anext(first)
        crowd = [model.speak(f"slow {number}.") for number in range(2 * 3)]
        async with anyio.create_task_group() as tasks:
            for each in [first, *crowd]:
                tasks.start_soon(all_of, each)
    assert said(tmp_path).index("Its third.") < len(said(tmp_path)) - 1


async def test_closing_stops_the_sentence_in_work_and_makes_room_at_once(tmp_path: Path) -> None:
    async with speaking_model(tmp_path) as model:
        await model.wait_started()
        speaking = model.speak("It takes ages. And two. And three.")
        await until(lambda: bool(said(tmp_path)), 60)
        await speaking.aclose()
        await speaking.aclose()
        with anyio.fail_after(60):
            await all_of(model.speak("quick"))
        assert model.callers == 0
        with pytest.raises(StopAsyncIteration):
            await anext(speaking)
    assert said(tmp_path) == ["It takes ages.", "quick"]


async def test_closing_ends_the_text_that_comes(tmp_path: Path) -> None:
    closed = False

    async def text() -> AsyncGenerator[str, None]:
        nonlocal closed
        try:
            while True:
                yield "More and more. "
                await asyncio.sleep(0)
        finally:
            closed = True

    async with speaking_model(tmp_path) as model:
        speaking = model.speak(text())
        await anext(speaking)
        await speaking.aclose()
        assert closed


async def test_a_text_that_comes_faster_than_it_is_spoken_waits(tmp_path: Path) -> None:
    given = 0

    async def text() -> AsyncGenerator[str, None]:
        nonlocal given
        while True:
            given += 1
            yield "More and more. " * 100

    async with speaking_model(tmp_path) as model, aclosing(model.speak(text())) as speaking:
        await anext(speaking)
        await anyio.sleep(0.05)
        assert given < 60


async def test_a_killed_process_is_not_noticed_by_who_listens(tmp_path: Path) -> None:
    async with (
        speaking_model(tmp_path) as model,
        aclosing(model.speak("slow one. Now slow two. Three.")) as speaking,
    ):
        await anext(speaking)
        assert model.pid is not None
        os.kill(model.pid, signal.SIGKILL)
        assert [each.text async for each in speaking] == ["Now slow two. ", "Three."]
        assert model.restarts == 1


async def test_a_sentence_that_kills_fails_its_text_alone(tmp_path: Path) -> None:
    async with speaking_model(tmp_path) as model:
        await model.wait_started()
        with pytest.raises(SpeechFailed):
            await all_of(model.speak("It begins well. Then we die. And more."))
        with pytest.raises(SpeechFailed):
            await all_of(model.speak("We refuse."))
        assert await all_of(model.speak("fine"))
        assert model.callers == 0


async def test_too_many_at_once_are_refused_and_unknown_voices_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CALLERS", 2)
    async with speaking_model(tmp_path) as model:
        held = [model.speak("slow."), model.speak("slow.")]
        with pytest.raises(Overloaded) as refused:
            model.speak("one too many")
        assert refused.value.code == "speech_full"
        for each in held:
            await each.aclose()
        assert await all_of(model.speak("room again"))
        with pytest.raises(BadRequest, match="`second`") as unknown:
            model.speak("hello", voice="third")
        assert unknown.value.param == "voice"
        assert model.voice("alloy") == model.voice(None) == "one"


async def test_a_model_that_cannot_speak_says_so_at_start_and_to_callers(tmp_path: Path) -> None:
    (tmp_path / "refuse").touch()
    async with speaking_model(tmp_path) as model:
        early = model.speak("hello")
        with pytest.raises(StartError, match="Cannot serve the speech model: the voice has no mouth"):
            await model.wait_started()
        assert (model.ready, model.failure) == (None, "the voice has no mouth")
        with pytest.raises(Unavailable):
            await all_of(early)


async def test_what_happens_is_counted(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    async with speaking_model(tmp_path) as model:
        model.watch(SpeechMetrics(registry, "voice"))
        await all_of(model.speak("Eighty characters. "))
        await model.speak("slow and then gone").aclose()
        page = generate_latest(registry).decode()
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert values['stentor:speech_requests_total{model_name="voice"}'] == "2.0"
    assert values['stentor:speech_requests_running{model_name="voice"}'] == "0.0"
    assert float(values['stentor:speech_audio_seconds_total{model_name="voice"}']) == pytest.approx(0.018)
    assert values['stentor:speech_time_to_first_audio_seconds_count{model_name="voice"}'] == "1.0"
    assert values['stentor:speech_real_time_factor_count{model_name="voice"}'] == "1.0"
