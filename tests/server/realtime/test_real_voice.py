"""The input side of a session with the real voice detector, on speech that Piper reads out."""

import random
import struct

import anyio
import pytest

from stentor.loadtest.voice.clips import SENTENCES, spoken
from stentor.loadtest.voice.realtime import Speech, speech_of
from stentor.protocols.openai.realtime.session import AudioInput, AudioPcma, AudioPcmu, ServerVad
from stentor.server.api.realtime.common.interfaces import SpeechEvent, SpeechStarted, SpeechStopped
from stentor.server.api.realtime.listening.hypotheses import Hypothesis, TranscriptionSettings
from stentor.server.api.realtime.listening.input_audio_pipeline import InputAudioPipeline
from stentor.server.api.realtime.listening.partial_pace import PartialPace
from stentor.server.audio.g711 import Law, encode
from stentor.server.audio.vad import SpeechProbabilities
from stentor.tests.server.realtime.sounds import silence
from stentor.tests.support.whole_audio import resample

pytest.importorskip("piper", reason="what is heard here is read out by a voice of Piper's")
pytestmark = pytest.mark.anyio

SILENCE_MS = 300
GAP_MS = 1200


@pytest.fixture(scope="module")
def speeches() -> list[Speech]:
    clips = spoken(SENTENCES[:3], natural=False)
    return [speech_of(clip.path, clip.text) for clip in clips]


async def events_of(audio: bytes, pieces: list[int], input: AudioInput) -> list[SpeechEvent]:
    found: list[SpeechEvent] = []
    input_audio = InputAudioPipeline(never, SpeechProbabilities, PartialPace(), on_speech_event=found.append)
    input_audio.configure(input, logprobs=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(input_audio.run)
        at = 0
        for piece in [*pieces, len(audio)]:
            await input_audio.append(audio[at : at + piece])
            at += piece
        tasks.cancel_scope.cancel()
    return found


async def never(pcm: bytes, settings: TranscriptionSettings, *, continued: str, final: bool) -> Hypothesis:
    """Nobody is interested in what is said."""
    await anyio.sleep_forever()
    return Hypothesis("")


def conversation(speeches: list[Speech]) -> tuple[bytes, list[tuple[float, float]]]:
    """Everything after one another, and where speech lies in it."""
    audio, places = silence(GAP_MS, 24_000), []
    for speech in speeches:
        at = len(audio) / 48
        places.append((at, at + speech.voiced_ms))
        audio += speech.pcm + silence(GAP_MS, 24_000)
    return audio, places


async def test_turns_lie_where_speech_is(speeches: list[Speech]) -> None:
    audio, places = conversation(speeches)
    input = AudioInput(turn_detection=ServerVad(silence_duration_ms=SILENCE_MS))
    found = await events_of(audio, [1920] * (len(audio) // 1920), input)
    starts = [one.audio_start_ms for one in found if isinstance(one, SpeechStarted)]
    ends = [one.audio_end_ms for one in found if isinstance(one, SpeechStopped)]
    assert len(starts) == len(ends) == len(places)
    for start, end, (begin, last) in zip(starts, ends, places, strict=True):
        assert begin - 300 - 100 <= start <= begin + 100 - 300 + 150
        assert last - 150 <= end - SILENCE_MS <= last + 250


async def test_any_cut_of_the_same_speech_gives_the_same_turns(speeches: list[Speech]) -> None:
    audio, _ = conversation(speeches)
    input = AudioInput(turn_detection=ServerVad(silence_duration_ms=SILENCE_MS))
    cut = random.Random(7)

    def reported(found: list[SpeechEvent]) -> list[tuple[object, ...]]:
        return [
            ("stopped", one.audio_end_ms, one.turn.audio)
            if isinstance(one, SpeechStopped)
            else ("started", one.audio_start_ms)
            for one in found
            if not hasattr(one, "audio_start_ms") or isinstance(one, SpeechStarted)
        ]

    whole = reported(await events_of(audio, [], input))
    assert len(whole) == 6
    for longest in (100, 5_000, 100_000):
        assert reported(await events_of(audio, [cut.randint(1, longest) for _ in range(4000)], input)) == whole


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
async def test_speech_on_the_telephone_is_found_as_well(speeches: list[Speech], law: Law) -> None:
    audio, places = conversation(speeches[:1])
    format = AudioPcmu() if law == "pcmu" else AudioPcma()
    input = AudioInput(format=format, turn_detection=ServerVad(silence_duration_ms=SILENCE_MS))
    codes = encode(law, resample(audio, 24_000, 8_000))
    started, stopped = await events_of(codes, [320] * (len(codes) // 320), input)
    assert isinstance(started, SpeechStarted)
    assert isinstance(stopped, SpeechStopped)
    assert started.audio_start_ms == pytest.approx(places[0][0] - 300, abs=150)
    assert stopped.audio_end_ms == pytest.approx(places[0][1] + SILENCE_MS, abs=250)


async def test_noise_and_clicks_are_no_speech() -> None:
    noise = random.Random(3)
    quiet = struct.pack("<48000h", *(noise.randint(-300, 300) for _ in range(48_000)))
    click = silence(500, 24_000) + struct.pack("<240h", *[20_000, -20_000] * 120) + silence(500, 24_000)
    assert await events_of(quiet + click * 3, [], AudioInput(turn_detection=ServerVad())) == []
