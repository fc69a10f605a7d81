"""The real speech process with real voices."""

import json
import queue
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import numpy as np
import pytest

from stentor.engine.loading.download.hub import DEMO_SPEECH_MODEL, resolve_model
from stentor.engine.tts import process
from stentor.engine.tts.backend import Stop, Stopped
from stentor.engine.tts.client import SpeechClient
from stentor.engine.tts.piper import PiperSynthesizer
from stentor.engine.tts.transformers.vits import VitsSynthesizer
from stentor.engine.tts.voices import Voices, read_voices
from stentor.protocols.ipc.speech import StartSpeech, Synthesize
from stentor.tests.engine.tts.tiny_vits import write_tiny_vits

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def running(voices: Voices) -> AsyncIterator[SpeechClient]:
    client = SpeechClient(StartSpeech(voices.backend, voices.places, 1, "error"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.run)
        yield client
        tasks.cancel_scope.cancel()


@pytest.mark.proof  # imports torch and transformers anew; `test_vits` speaks with what the process loads
async def test_vits_speaks_in_the_process_as_it_does_here(tmp_path: Path) -> None:
    voices = read_voices(write_tiny_vits(tmp_path, speakers=2))
    async with running(voices) as client:
        made = await client.synthesize("hello there", "speaker-1", 2.0)
    assert made.pcm == VitsSynthesizer(voices.places, 1).speak("hello there", voices.places[1], 2.0, Stop())
    assert made.seconds > 0


def write_voice_without_noise(directory: Path) -> Path:
    """The demo voice, which draws how long each sound lasts, told to draw nothing: equal text is of equal length."""
    (place,) = read_voices(resolve_model(DEMO_SPEECH_MODEL)).places
    model, config = Path(place.path), json.loads(Path(f"{place.path}.json").read_bytes())
    config["inference"] |= {"noise_scale": 0.0, "noise_w": 0.0}
    (directory / model.name).symlink_to(model)
    (directory / f"{model.name}.json").write_text(json.dumps(config))
    return directory


@pytest.mark.proof
async def test_piper_speaks_at_any_speed_and_goes_on_after_one_that_was_given_up(
    demo_model: object, tmp_path: Path
) -> None:
    pytest.importorskip("piper")
    voices = read_voices(write_voice_without_noise(tmp_path))
    (name,) = (place.name for place in voices.places)
    async with running(voices) as client:
        await client.wait_started()
        usual = (await client.synthesize("How are you today?", name, 1.0)).pcm
        fast = (await client.synthesize("How are you today?", name, 2.0)).pcm
        samples = np.frombuffer(usual, "<i2").astype(np.int32)
        assert 0.9 < len(samples) / voices.sample_rate < 1.0
        assert 0.6 < len(fast) / len(usual) < 0.7  # not a half: every sound is rounded up to a frame
        assert np.abs(samples).max() > 30_000
        assert np.abs(samples[: voices.sample_rate // 100]).max() < 8_000  # it begins with quiet
        long = "one thing after another and then one more " * 30
        with anyio.move_on_after(0.3):
            await client.synthesize(long, name, 0.5)
        await client.synthesize("Yes.", name, 1.0)
        assert client.restarts == 0


@pytest.mark.proof  # of a client that goes: tests/e2e/test_speech.py
def test_piper_is_interrupted_in_the_middle_of_a_run(demo_model: object, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("piper")
    (place,) = read_voices(resolve_model(DEMO_SPEECH_MODEL)).places
    synthesizer, stop, ended = PiperSynthesizer([place], 1), Stop(), []
    session = synthesizer._voices[place.path].session
    run = session.run

    def stopped_on_the_way(*arguments: object) -> object:
        stop.set()
        samples = run(*arguments)
        ended.append(samples)
        return samples

    monkeypatch.setattr(session, "run", stopped_on_the_way)
    with pytest.raises(Stopped):
        synthesizer.speak("Yes.", place, 1.0, stop)
    assert not ended


def test_a_process_that_is_idle_gives_back_once_what_it_has_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    asked = process._SpeechProcess.__new__(process._SpeechProcess)
    asked._jobs = queue.SimpleQueue()
    job = process._Job(Synthesize(1, "Hello.", "v", 1.0))

    def grown_since(born: int) -> int:
        looks.append(born)
        asked._jobs.put(job)
        return 0

    monkeypatch.setattr(process, "grown_since", grown_since)
    monkeypatch.setattr(process, "IDLE_SECONDS", 0.001)
    assert asked._next_job(7) is job
    assert looks == [7]
    monkeypatch.setattr(process, "IDLE_SECONDS", 10.0)
    asked._jobs.put(job)
    assert asked._next_job(7) is job
    assert looks == [7], "nothing is done between two sentences"
