"""The owner's end of the speech process, with real processes."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from stentor.engine.processes.process import Child, spawn
from stentor.engine.processes.silence import Silence
from stentor.engine.tts import client as client_module
from stentor.engine.tts.client import SentenceFailed, SpeechClient, SpeechUnavailable
from stentor.protocols.ipc.speech import StartSpeech, VoicePlace
from stentor.tests.engine.tts.fake_voice import MODULE
from stentor.tests.engine.unkillable import Unkillable

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at the clock, and tries again, a good deal sooner than beside a model."""
    monkeypatch.setattr(client_module, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(client_module, "_POLICY", replace(client_module._POLICY, first_delay=0.01))


@asynccontextmanager
async def running(folder: Path, patience: float = 1.0) -> AsyncIterator[SpeechClient]:
    start = StartSpeech("piper", (VoicePlace("one", str(folder)), VoicePlace("second", str(folder))), 1, "error")
    client = SpeechClient(start, MODULE, patience)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.run)
        yield client
        tasks.cancel_scope.cancel()


def said(folder: Path) -> list[str]:
    return (folder / "said").read_text().splitlines()


async def test_sentences_become_samples_of_the_voice_and_the_speed(tmp_path: Path) -> None:
    async with running(tmp_path) as client:
        await client.wait_started()
        assert (await client.synthesize("hello", "one", 1.0)).pcm == bytes([3, 1]) * 40
        assert (await client.synthesize("hello", "second", 2.0)).pcm == bytes([6, 1]) * 20
        assert (client.ready, client.stalled, client.failure, client.restarts) == (True, None, None, 0)


async def test_what_is_asked_before_the_process_is_ready_waits(tmp_path: Path) -> None:
    async with running(tmp_path) as client:
        assert not client.ready
        assert len((await client.synthesize("early", "one", 1.0)).pcm) == 80


async def test_several_are_answered_in_order(tmp_path: Path) -> None:
    ended = []
    async with running(tmp_path) as client:

        async def ask(number: int) -> None:
            await client.synthesize(f"slow {number}" if number == 0 else f"{number}", "one", 1.0)
            ended.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(ask, number)
                await anyio.sleep(0)
    assert ended == [0, 1, 2, 3, 4]


async def test_a_sentence_that_is_given_up_is_stopped_and_the_next_one_is_said(tmp_path: Path) -> None:
    async with running(tmp_path) as client:
        await client.wait_started()
        with anyio.move_on_after(0.05):
            await client.synthesize("this takes ages", "one", 1.0)
        with anyio.fail_after(60):
            await client.synthesize("next", "one", 1.0)
        assert client.restarts == 0


async def test_a_sentence_in_work_is_said_by_the_next_process(tmp_path: Path) -> None:
    async with running(tmp_path) as client:
        assert len((await client.synthesize("die once", "one", 1.0)).pcm) == 128
        assert client.restarts == 1
        assert client.stalled is None
    assert said(tmp_path) == ["die once", "die once"]


async def test_a_voice_may_send_a_sentence_bit_by_bit(tmp_path: Path) -> None:
    parts: list[bytes] = []
    async with running(tmp_path) as client:
        made = await client.synthesize("bit by bit", "one", 1.0, parts.append)
    assert [len(part) for part in parts] == [40, 40, 40]
    assert b"".join([*parts, made.pcm]) == bytes(range(160))


async def test_of_a_sentence_that_another_process_makes_again_nothing_is_sent_twice(tmp_path: Path) -> None:
    parts: list[bytes] = []
    async with running(tmp_path) as client:
        made = await client.synthesize("falls bit by bit", "one", 1.0, parts.append)
        assert client.restarts == 1
    assert said(tmp_path) == ["falls bit by bit"] * 2
    assert b"".join([*parts, made.pcm]) == bytes(at % 251 for at in range(16 * len("falls bit by bit")))


async def test_a_sentence_that_kills_two_processes_fails_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as client:
        await client.wait_started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_expect_failure, client, "die")
            await anyio.sleep(0)
            other = await client.synthesize("patient", "one", 1.0)
        assert len(other.pcm) == 112
        assert client.restarts == 2
        assert said(tmp_path) == ["die", "die", "patient"]
        for _ in range(3):
            await _expect_failure(client, "die")
        await client.synthesize("as if nothing had happened", "one", 1.0)


async def _expect_failure(client: SpeechClient, text: str) -> None:
    with pytest.raises(SentenceFailed):
        await client.synthesize(text, "one", 1.0)


async def test_what_a_voice_cannot_say_fails_and_leaves_the_process_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as client:
        with pytest.raises(SentenceFailed, match="too shy"):
            await client.synthesize("refuse", "one", 1.0)
        with pytest.raises(SentenceFailed, match="failed on this sentence"):
            await client.synthesize("break", "one", 1.0)
        await client.synthesize("fine", "one", 1.0)
        assert client.restarts == 0


async def test_a_process_that_says_nothing_is_replaced(tmp_path: Path) -> None:
    async with running(tmp_path, patience=0.01) as client:
        await client.wait_started()
        with pytest.raises(SentenceFailed):
            await client.synthesize("hang", "one", 1.0)
        assert client.restarts >= 1
        client._patience = 10.0
        await client.synthesize("fine", "one", 1.0)


class Starved(Silence):
    def look(self) -> None:
        self.waited += 100.0


async def test_a_starved_process_is_told_of_once_and_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "Silence", Starved)
    async with running(tmp_path) as client:
        await client.wait_started()
        await client.synthesize("slow", "one", 1.0)
        await client.synthesize("slow again", "one", 1.0)
        assert client.restarts == 0
    told = [record.message for record in caplog.records if "too little" in record.message]
    assert len(told) == 1


async def test_a_process_that_cannot_be_killed_ends_speech_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawned: list[Child] = []

    def spawn_unkillable(*given: Any, **named: Any) -> Child:
        child = spawn(*given, **named)
        child.__class__ = Unkillable
        spawned.append(child)
        return child

    monkeypatch.setattr(client_module, "spawn", spawn_unkillable)
    try:
        async with running(tmp_path, patience=0.01) as client:
            await client.wait_started()
            with anyio.fail_after(60), pytest.raises(SpeechUnavailable, match="the process does not die"):
                await client.synthesize("hang", "one", 1.0)
            assert client.failure is not None
            assert not client.ready
            with pytest.raises(SpeechUnavailable):
                await client.synthesize("next", "one", 1.0)
        assert len(spawned) == 1, "no other is started beside it"
    finally:
        for child in spawned:
            os.kill(child.pid, signal.SIGKILL)


async def test_a_process_that_dies_idle_is_replaced_at_once(tmp_path: Path) -> None:
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1

    async with running(tmp_path) as client:
        client.on_restart = count
        await client.wait_started()
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        with anyio.fail_after(60):
            while client.stalled is None:
                await anyio.sleep(0.01)
            assert client.ready
            while client.stalled is not None:
                await anyio.sleep(0.01)
        await client.synthesize("back", "one", 1.0)
    assert counted == 1


async def test_a_voice_that_cannot_be_used_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "refuse").touch()
    async with running(tmp_path) as client:
        with pytest.raises(SpeechUnavailable, match="no mouth"):
            await client.wait_started()
        with pytest.raises(SpeechUnavailable, match="no mouth"):
            await client.synthesize("hello", "one", 1.0)
        assert not client.ready
    assert (tmp_path / "lives").read_text() == "."


async def test_a_voice_that_was_lost_later_is_tried_again_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    async with running(tmp_path) as client:
        await client.wait_started()
        (tmp_path / "refuse").touch()
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        with anyio.fail_after(60), pytest.raises(SpeechUnavailable, match="no mouth"):
            await client.synthesize("hello", "one", 1.0)
        assert client.ready
        assert client.failure is None
        (tmp_path / "refuse").unlink()
        with anyio.fail_after(60):
            while client.stalled is not None:
                await anyio.sleep(0.02)
        await client.synthesize("hello", "one", 1.0)


async def test_a_process_that_never_comes_up_is_given_up_after_some(tmp_path: Path) -> None:
    (tmp_path / "unready").touch()
    async with running(tmp_path) as client:
        with pytest.raises(SpeechUnavailable, match="before it was ready"):
            await client.wait_started()
    assert (tmp_path / "lives").read_text() == "..."
