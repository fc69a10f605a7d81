"""What is measured of each time that audio of a turn is given to the model that hears."""

import anyio
import pytest
from prometheus_client import CollectorRegistry

from stentor.engine.client.errors import EngineUnavailable
from stentor.server.api.realtime.listening.hypotheses import TranscriptionSettings
from stentor.server.api.realtime.listening.streamed import StreamedTurn, StreamTranscriber
from stentor.server.api.realtime.listening.transcribing import ModelTranscriber
from stentor.server.common.errors import GenerationFailed, ServerError, Unavailable
from stentor.server.observability.realtime_figures import PassFigures
from stentor.tests.server.asr.scripted import Asked, Said, engine_of, model_of, says, sound
from stentor.tests.server.asr.streams import StreamingEngine, streaming_model
from stentor.tests.server.realtime.sounds import words

pytestmark = pytest.mark.anyio

ENGLISH = TranscriptionSettings(language="en")


class Page:
    """Of metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.passes = PassFigures("m", self.registry)

    def ended(self, kind: str, outcome: str) -> float | None:
        labels = {"model_name": "m", "pass": kind, "outcome": outcome}
        return self.registry.get_sample_value("stentor:realtime_transcriptions_total", labels)

    def value(self, name: str, kind: str) -> float | None:
        labels = {"model_name": "m", "pass": kind}
        return self.registry.get_sample_value(f"stentor:realtime_transcription_{name}", labels)


def hears(asked: Asked) -> Said:
    return Said(says(" Guten Tag"))


async def test_guesses_and_what_may_stay_are_counted_apart() -> None:
    page = Page()
    transcribe = ModelTranscriber(model_of(hears), page.passes)
    for final in (False, False, True):
        heard = await transcribe(sound(1.5), ENGLISH, continued="", final=final)
        assert heard.text == " Guten Tag"
    assert [page.ended(kind, "completed") for kind in ("partial", "final", "stream")] == [2, 1, 0]
    assert [page.value("audio_seconds_total", kind) for kind in ("partial", "final")] == [3, 1.5]
    assert [page.value("seconds_count", kind) for kind in ("partial", "final")] == [2, 1]
    sums = [page.value("seconds_sum", kind) for kind in ("partial", "final")]
    assert all(value is not None and 0 < value < 5 for value in sums)


async def test_what_is_given_up_and_what_fails_is_told_apart() -> None:
    page = Page()
    model = model_of(lambda asked: Said([], reason="error"))
    engine = engine_of(model)
    transcribe = ModelTranscriber(model, page.passes)
    with pytest.raises(GenerationFailed):
        await transcribe(sound(1), ENGLISH, continued="", final=True)
    engine.failure = "gone"
    with pytest.raises(Unavailable):
        await transcribe(sound(1), ENGLISH, continued="", final=True)
    engine.failure, engine.gate = None, anyio.sleep_forever
    with anyio.move_on_after(0.05):
        await transcribe(sound(2), ENGLISH, continued="", final=False)
    assert page.ended("final", "failed") == 2
    assert page.ended("partial", "dropped") == 1
    assert page.value("audio_seconds_total", "partial") == 2
    assert [page.value("seconds_count", kind) for kind in ("partial", "final")] == [0, 0]


async def heard(turn: StreamedTurn, pcm: bytes) -> str:
    turn.push(pcm)
    turn.finish()
    await turn.run()
    return (await turn.transcript()).text


async def test_a_model_that_hears_while_it_is_spoken_to_has_one_request_for_a_turn() -> None:
    page, engine = Page(), StreamingEngine()
    transcriber = StreamTranscriber(streaming_model(engine), page.passes)
    pcm = words(1, 2)
    assert await heard(StreamedTurn(0, transcriber, ENGLISH), pcm) == "ẃ1 ẃ2"
    assert [page.ended("stream", how) for how in ("completed", "dropped", "failed")] == [1, 0, 0]
    assert page.value("audio_seconds_total", "stream") == pytest.approx(len(pcm) / 32_000)
    assert page.value("seconds_count", "stream") == 1

    def refuse(*_: object, **__: object) -> None:
        raise EngineUnavailable("gone")

    engine.submit = refuse  # type: ignore[method-assign,assignment]  # for this turn
    with pytest.raises(ServerError):
        await heard(StreamedTurn(0, transcriber, ENGLISH), pcm)
    assert page.ended("stream", "failed") == 1
    assert page.value("seconds_count", "stream") == 1


async def test_a_turn_that_is_given_up_is_dropped() -> None:
    page = Page()
    turn = StreamedTurn(0, StreamTranscriber(streaming_model(StreamingEngine()), page.passes), ENGLISH)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(turn.run)
        turn.push(words(1))
        await anyio.sleep(0.02)
        turn.give_up()
    assert page.ended("stream", "dropped") == 1
    assert page.ended("stream", "completed") == 0
