"""The processes that decode sounds: replaced when they die or hang, shared fairly, bounded, and closed."""

import asyncio
import gc
import math
import os
import signal
import threading

import pytest

from stentor.loadtest.processes import alive
from stentor.protocols.common.errors import BadRequest
from stentor.server.audio import decode_process
from stentor.server.audio.decode import AudioDecoder, AudioUnavailable, Decoded
from stentor.server.audio.decode_process import DecodeProcess
from stentor.server.common.errors import Overloaded
from stentor.server.common.fair_queue import current_owner
from stentor.tests.server.audio.decoders import LONG, child_of, loop_busy, run, standing
from stentor.tests.server.audio.voices import tone
from stentor.tests.server.harness import until
from stentor.tests.support.whole_audio import encode_whole


def test_a_process_that_dies_is_replaced_and_its_job_done_again() -> None:
    async def use(decoder: AudioDecoder) -> None:
        file = encode_whole(tone(1), "wav", 16_000)
        await decoder.decode(file)
        (first,) = decoder.pids
        os.kill(first, signal.SIGKILL)
        assert (await decoder.decode(file)).seconds == 1
        assert decoder.pids != [first]
        assert not alive(first)

    run(use)


def test_a_file_that_kills_two_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    file = encode_whole(tone(1), "wav", 16_000)

    async def use(decoder: AudioDecoder) -> None:
        await decoder.decode(file)
        child, killed = child_of(decoder), []
        start = child.start

        def doomed() -> None:
            start()
            assert child.pid is not None
            os.kill(child.pid, signal.SIGSEGV)
            killed.append(child.pid)

        with monkeypatch.context() as patch:
            patch.setattr(child, "start", doomed)
            with pytest.raises(BadRequest, match="does not survive it"):
                await decoder.decode(file)
        assert len(set(killed)) == 2
        assert (await decoder.decode(file)).seconds == 1

    run(use, processes=1)


def test_a_process_that_gets_no_time_is_replaced_and_the_client_told_to_try_again() -> None:
    async def use(decoder: AudioDecoder) -> None:
        await decoder.decode(encode_whole(tone(1), "wav", 16_000))
        (pid,) = decoder.pids
        for worker in decoder._pool._workers:
            worker.process._timeout = 0.3
        os.kill(pid, signal.SIGSTOP)  # one that was tried again would be decoded
        with pytest.raises(Overloaded, match="too busy to decode audio"):
            await decoder.decode(encode_whole(tone(1), "wav", 16_000))
        assert not alive(pid)

    run(use)


@pytest.mark.parametrize("sound", ["short", "beyond the socket's buffer"])
def test_a_process_that_is_stopped_is_killed_and_another_decodes_its_sound(sound: str) -> None:
    file = encode_whole(tone(1), "wav", 16_000) if sound == "short" else LONG

    async def use(decoder: AudioDecoder) -> None:
        await decoder.decode(encode_whole(tone(1), "wav", 16_000))
        child = child_of(decoder)
        (stopped,) = decoder.pids
        child._idle_seconds = 0.05
        os.kill(stopped, signal.SIGSTOP)
        assert (await decoder.decode(file)).seconds == pytest.approx(1 if sound == "short" else 450, abs=1)
        assert stopped not in decoder.pids
        assert not alive(stopped)

    run(use, processes=1)


def test_a_file_that_is_all_headers_is_given_up_after_two_seconds_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of the processor, which the kernel counts: by the clock, an hour would be left."""
    monkeypatch.setattr(decode_process, "_SILENT_SECONDS", 3600.0)
    headers = b"\0\0\0\x10ftypM4A \0\0\0\0" + b"\0\0\0\x08free" * (4 << 20)

    async def use(decoder: AudioDecoder) -> None:
        await decoder.decode(encode_whole(tone(1), "wav", 16_000))
        (worker,) = decoder._pool._workers
        start, started = worker.process.start, []

        def counted() -> None:
            started.append(worker.process.pid)
            start()

        monkeypatch.setattr(worker.process, "start", counted)
        with pytest.raises(BadRequest, match="takes too long"):
            await decoder.decode(headers)
        assert len(started) == 1, "it is tried once"
        assert (await decoder.decode(encode_whole(tone(1), "wav", 16_000))).seconds == 1

    run(use, timeout=3600.0, processes=1)


def test_one_long_sound_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    file, may_go_on, decode = encode_whole(tone(1), "wav", 16_000), threading.Event(), DecodeProcess.decode

    def held_up(process: DecodeProcess, data: bytes) -> bytes:
        assert data is not LONG or may_go_on.wait(60)
        return decode(process, data)

    monkeypatch.setattr(DecodeProcess, "decode", held_up)

    async def use(decoder: AudioDecoder) -> None:
        long = [asyncio.ensure_future(decoder.decode(LONG)) for _ in range(2)]
        await asyncio.sleep(0)
        assert (await decoder.decode(file)).seconds == 1
        may_go_on.set()
        assert [sound.seconds for sound in await asyncio.gather(*long)] == pytest.approx([450, 450], abs=1)
        assert len(decoder.pids) == 2

    run(use, processes=2)


def test_who_goes_away_leaves_nothing_running() -> None:
    async def use(decoder: AudioDecoder) -> None:
        running = await standing(decoder)
        (first,) = decoder.pids
        waiting = asyncio.ensure_future(decoder.decode(LONG))
        await asyncio.sleep(0)
        for task in (waiting, running):
            task.cancel()
        assert (await decoder.decode(encode_whole(tone(1), "wav", 16_000))).seconds == 1
        assert decoder.pids != [first]  # another process has been started
        assert not alive(first)
        assert waiting.cancelled()
        assert running.cancelled()

    run(use, processes=1)


def test_a_decoder_that_was_warmed_up_has_a_process_before_the_first_sound() -> None:
    async def use(decoder: AudioDecoder) -> None:
        decoder.warm_up()
        while not decoder.pids:
            await asyncio.sleep(0.01)
        before = decoder.pids
        assert (await decoder.decode(encode_whole(tone(1), "wav", 16_000))).seconds == 1
        assert decoder.pids == before

    run(use)


def test_what_waits_and_what_is_held_is_bounded() -> None:
    file = encode_whole(tone(1), "wav", 16_000)

    async def use(decoder: AudioDecoder) -> None:
        first, second = (asyncio.ensure_future(decoder.decode(file)) for _ in range(2))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as error:
            await decoder.decode(file)
        assert (error.value.code, error.value.status) == ("audio_full", 429)
        sounds = [await first, await second]
        assert decoder.held == 2 * 32_000
        with pytest.raises(Overloaded, match="As much audio"):
            await decoder.decode(file)
        del first, second, sounds[0]
        gc.collect()
        assert decoder.held == 32_000
        assert (await decoder.decode(file)).seconds == 1
        with pytest.raises(BadRequest) as large:
            await decoder.decode(bytes(40_001), "file")
        assert (large.value.status, large.value.code) == (413, "audio_too_large")

    run(use, processes=1, max_waiting=1, max_held_seconds=2, max_bytes=40_000)


def test_sounds_of_one_owner_keep_out_none_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, decoded = threading.Event(), []

    def decode(_: object, data: bytes) -> bytes:
        may_end.wait(60)
        decoded.append(data)
        return data

    monkeypatch.setattr(DecodeProcess, "decode", decode)

    async def use(decoder: AudioDecoder) -> None:
        def ask(owner: str, *sounds: bytes) -> list[asyncio.Task[Decoded]]:
            current_owner.set(owner)
            return [asyncio.create_task(decoder.decode(sound)) for sound in sounds]

        many = ask("a", b"a0", b"a1", b"a2", b"a3", b"a4")
        await asyncio.sleep(0)
        other = ask("b", b"b0", b"b1")
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(*other)
        ended = await asyncio.gather(*many, return_exceptions=True)
        assert decoded == [b"a0", b"a1", b"b0", b"a2", b"b1"]
        assert [isinstance(error, Overloaded) for error in ended] == [False, False, False, True, True]

    run(use, processes=1, max_waiting=4)


def test_the_loop_goes_on_while_much_is_decoded() -> None:

    async def use(decoder: AudioDecoder) -> None:
        await decoder.decode(encode_whole(tone(1), "wav", 16_000))
        (pid,) = decoder.pids
        os.kill(pid, signal.SIGSTOP)
        task = asyncio.ensure_future(decoder.decode(LONG))
        for _ in range(20):
            await asyncio.sleep(0.002)
        assert not task.done()
        os.kill(pid, signal.SIGCONT)
        assert (await task).seconds == pytest.approx(450, abs=1)
        least = math.inf
        for _ in range(20):  # what the loop does itself it does each time, what the collector does, now and then
            least = min(least, await loop_busy(decoder.decode(LONG)))
            if least < 0.05:
                break
        assert least < 0.05

    run(use, processes=1)


def test_a_decoder_that_was_closed_has_no_processes_and_refuses() -> None:
    async def use(decoder: AudioDecoder) -> None:
        running = await standing(decoder)
        (pid,) = decoder.pids
        decoder.close()
        with pytest.raises(AudioUnavailable):
            await running
        with pytest.raises(AudioUnavailable):
            await decoder.decode(encode_whole(tone(1), "wav", 16_000))
        await until(lambda: not alive(pid))

    run(use, processes=1)


def test_where_no_process_can_be_started_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decode_process, "MODULE", "stentor.server.audio.limits")

    async def use(decoder: AudioDecoder) -> None:
        with pytest.raises(AudioUnavailable):
            await decoder.decode(b"anything")

    run(use)
    assert "no process can be started to decode audio: it ended at once" in caplog.text
