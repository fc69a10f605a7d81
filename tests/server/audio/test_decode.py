"""Sounds of clients are decoded where they can harm nobody: the result, the limits, and hostile files."""

import asyncio
import gc
import io
import math
import os
import random
import resource
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import av
import numpy as np
import pytest

from stentor.loadtest.processes import alive
from stentor.protocols.common.errors import BadRequest
from stentor.server.audio import decode_process
from stentor.server.audio.decode import AudioDecoder, AudioUnavailable, Decoded
from stentor.server.audio.decode_process import DecodeProcess
from stentor.server.common.errors import Overloaded
from stentor.server.common.fair_queue import current_owner
from stentor.server.config.limits import AudioLimits
from stentor.server.sandbox.killable_child import KillableChild
from stentor.tests.server.audio.hostile import (
    opus_that_claims,
    refused,
    silent_opus,
    video_only,
    wav_with,
)
from stentor.tests.server.audio.voices import file_of, noise, tone
from stentor.tests.server.harness import until
from stentor.tests.support.whole_audio import encode_whole

FILES = {
    "wav": ("wav", "pcm_s16le", 16_000, "mono"),
    "wav of 24 bits": ("wav", "pcm_s24le", 48_000, "stereo"),
    "wav of floats": ("wav", "pcm_f32le", 44_100, "stereo"),
    "wav of telephones": ("wav", "pcm_mulaw", 8_000, "mono"),
    "mp3": ("mp3", "libmp3lame", 44_100, "stereo"),
    "m4a": ("ipod", "aac", 44_100, "stereo"),
    "mp4": ("mp4", "aac", 22_050, "mono"),
    "ogg opus": ("ogg", "libopus", 48_000, "stereo"),
    "flac": ("flac", "flac", 96_000, "stereo"),
    "webm": ("webm", "libopus", 48_000, "mono"),
    "matroska": ("matroska", "flac", 32_000, "mono"),
    "aac": ("adts", "aac", 24_000, "mono"),
    "aiff": ("aiff", "pcm_s16be", 44_100, "mono"),
    "eight channels of 192 kHz": ("flac", "flac", 192_000, "7.1"),
}

LONG = silent_opus(450) + bytes(3 << 20)
"""Takes half a second to decode, and is large."""

Use = Callable[[AudioDecoder], Awaitable[object]]


@asynccontextmanager
async def decoding(**limits: float) -> AsyncIterator[AudioDecoder]:
    decoder = AudioDecoder(AudioLimits(**limits))  # type: ignore[arg-type]
    try:
        yield decoder
    finally:
        decoder.close()


def run(use: Use, **limits: float) -> None:
    async def body() -> None:
        async with decoding(**limits) as decoder:
            await use(decoder)

    asyncio.run(body())


def child_of(decoder: AudioDecoder) -> KillableChild:
    """Of its one process."""
    (worker,) = decoder._pool._workers
    return worker.process._child


async def standing(decoder: AudioDecoder) -> asyncio.Future[Decoded]:
    """A sound whose decoding has begun and does not go on: its one process is stopped, until it is killed."""
    await decoder.decode(encode_whole(tone(1), "wav", 16_000))
    os.kill(decoder.pids[0], signal.SIGSTOP)
    running = asyncio.ensure_future(decoder.decode(LONG))
    await until(lambda: child_of(decoder)._busy)
    return running


@contextmanager
def in_time(decoder: AudioDecoder) -> Iterator[None]:
    """The process survives the block. The kernel ends it where a sound, or half a minute of one, takes it 1.7 seconds
    of the processor: see the test of a file that is all headers."""
    before = decoder.pids
    yield
    assert decoder.pids == before


def test_every_container_gives_its_sound(run_shared: Callable[[Use], None]) -> None:
    async def use(decoder: AudioDecoder) -> None:
        wanted = np.frombuffer(tone(1), "<i2").astype(float)
        for name, (container, codec, rate, layout) in FILES.items():
            sound = await decoder.decode(file_of(tone(1, rate), container, codec, rate, layout))
            assert sound.seconds == pytest.approx(1, abs=0.1), name
            found = np.frombuffer(sound.pcm, "<i2").astype(float)
            spectrum = np.abs(np.fft.rfft(found[1600:14_400]))
            assert abs(np.argmax(spectrum) * 16_000 / 12_800 - 440) < 2, name
            assert np.abs(found[3200:12_800]).max() == pytest.approx(np.abs(wanted).max(), rel=0.15), name

    run_shared(use)


def test_samples_at_the_rate_of_the_models_are_handed_on_as_they_are(run_shared: Callable[[Use], None]) -> None:
    async def use(decoder: AudioDecoder) -> None:
        for pcm in (tone(3), tone(1)[:2]):
            for format in ("wav", "flac"):
                assert (await decoder.decode(encode_whole(pcm, format, 16_000))).pcm == pcm
        unfinished = encode_whole(tone(1), "wav", 16_000)[:44].replace(b"\x00\x7d", b"\xff\xff") + tone(1)
        assert (await decoder.decode(unfinished)).seconds == 1
        long = await decoder.decode(encode_whole(bytes(2 * 16_000 * 200), "flac", 16_000))
        assert long.seconds == 200

    run_shared(use)


def test_channels_are_mixed_whatever_they_are(run_shared: Callable[[Use], None]) -> None:
    async def use(decoder: AudioDecoder) -> None:
        left = np.stack([np.frombuffer(tone(1), "<i2"), np.zeros(16_000, "<i2")], axis=1).tobytes()
        mixed = np.frombuffer((await decoder.decode(wav_with(channels=2, data=left))).pcm, "<i2")
        assert np.abs(mixed.astype(int)).max() == pytest.approx(0.2 * 32767, rel=0.02)
        for channels in (3, 5, 13, 40):
            every = np.repeat(np.frombuffer(tone(1), "<i2"), channels).tobytes()
            found = await decoder.decode(wav_with(channels=channels, data=every))
            assert found.seconds == 1, channels
            assert np.abs(np.frombuffer(found.pcm, "<i2").astype(int)).max() > 1000, channels

    run_shared(use)


@pytest.mark.parametrize("codec", ["pcm_f32le", "pcm_f64le"])
def test_samples_that_are_no_numbers_are_silent(run_shared: Callable[[Use], None], codec: str) -> None:
    async def use(decoder: AudioDecoder) -> None:
        floats = np.frombuffer(tone(1), "<i2") / 32768
        data = bytearray(file_of(tone(1), "wav", codec, 16_000, "mono"))
        kind = "<f4" if codec == "pcm_f32le" else "<f8"
        begin = data.index(b"data") + 8
        data[begin:] = np.where(np.arange(16_000) % 2, np.nan, floats).astype(kind).tobytes()
        found = np.frombuffer((await decoder.decode(bytes(data))).pcm, "<i2")
        assert not found[1::2].any()
        assert np.abs(found[::2] - floats[::2] * 32767).max() <= 1

    run_shared(use)


def test_what_is_no_sound_is_refused_with_the_field_and_soon() -> None:
    async def use(decoder: AudioDecoder) -> None:
        await decoder.decode(encode_whole(tone(1), "wav", 16_000))
        for name, data in refused().items():
            with in_time(decoder), pytest.raises(BadRequest) as error:
                await decoder.decode(data, "input")
            assert (error.value.param, error.value.status) == ("input", 400), name
            assert error.value.code == "invalid_audio", name
            assert error.value.message.startswith("`input`: "), name
            assert "/" not in error.value.message, name
        with pytest.raises(BadRequest, match=r"holds no sound"):
            await decoder.decode(video_only())
        with pytest.raises(BadRequest, match=r"is empty"):
            await decoder.decode(b"")

    run(use)


@pytest.mark.parametrize("claims", [None, 48_000])
def test_a_small_file_of_many_hours_is_refused_soon_whatever_it_says(claims: int | None) -> None:
    file = silent_opus(3 * 3600)
    file = file if claims is None else opus_that_claims(file, claims)
    bomb = (file * (1 + (25 << 20) // len(file)))[: 25 << 20]
    # a chain of such files, and one file alone that is longer than may be

    async def use(decoder: AudioDecoder) -> None:
        assert (await decoder.decode(silent_opus(60))).seconds == pytest.approx(60, abs=0.1)
        for data in (bomb, file):
            with in_time(decoder), pytest.raises(BadRequest, match="longer than the 7200 seconds") as error:
                await decoder.decode(data)
            assert error.value.code == "audio_too_long"

    run(use, max_seconds=7200)


def test_three_days_in_25_megabytes_are_refused_before_they_have_been_counted() -> None:
    link = silent_opus(600, ticks=960, packet_ms=20)
    bomb = (link * (1 + (25 << 20) // len(link)))[: 25 << 20]

    async def use(decoder: AudioDecoder) -> None:
        await decoder.decode(silent_opus(1, ticks=960, packet_ms=20))
        with in_time(decoder), pytest.raises(BadRequest, match="longer than the 14400 seconds"):
            await decoder.decode(bomb)

    run(use)


def test_what_packets_do_not_say_is_counted_when_it_is_decoded() -> None:
    modest = [silent_opus(100, container, ticks=48) for container in ("mp4", "matroska")]
    for data in modest:
        with av.open(io.BytesIO(data), "r") as file:
            unit = file.streams.audio[0].time_base or 1
            assert sum(packet.duration or 0 for packet in file.demux(audio=0) if packet.size) * unit < 2

    async def use(decoder: AudioDecoder) -> None:
        for data in (*modest, silent_opus(100, "matroska"), encode_whole(tone(21), "mp3", 16_000)):
            with pytest.raises(BadRequest, match="longer than the 20 seconds"):
                await decoder.decode(data)
        assert (await decoder.decode(encode_whole(tone(19.8), "mp3", 16_000))).seconds > 19

    run(use, max_seconds=20)


def test_broken_files_give_what_can_be_read_of_them_or_a_refusal_and_the_process_lives() -> None:
    draw = random.Random(7)
    whole = [
        file_of(tone(1, rate), container, codec, rate, layout) for container, codec, rate, layout in FILES.values()
    ]

    async def use(decoder: AudioDecoder) -> None:
        await decoder.decode(whole[0])
        (pid,) = decoder.pids
        heard, codes = 0, set()
        for number in range(150):
            data = bytearray(draw.choice(whole))
            for _ in range(draw.choice((1, 10, 100))):
                data[draw.randrange(len(data) if number % 2 else min(len(data), 200))] = draw.randrange(256)
            if draw.random() < 0.3:
                del data[draw.randrange(len(data)) :]
            try:
                heard += (await decoder.decode(bytes(data))).seconds > 0
            except BadRequest as error:
                codes.add(error.code)
        assert heard > 30
        assert codes <= {"invalid_audio", "audio_too_long"}
        assert decoder.pids == [pid]

    run(use)


def test_a_file_that_was_cut_short_gives_its_beginning(run_shared: Callable[[Use], None]) -> None:
    async def use(decoder: AudioDecoder) -> None:
        for format in ("mp3", "opus", "aac", "flac", "wav"):
            file = encode_whole(noise(2), format, 16_000)
            assert (await decoder.decode(file[: len(file) // 2])).seconds == pytest.approx(1, abs=0.3), format

    run_shared(use)


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


def test_a_file_that_is_all_headers_is_given_up_after_two_seconds_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of the processor, which the kernel counts: by the clock, an hour would be left."""
    monkeypatch.setattr(decode_process, "_SILENT_SECONDS", 3600.0)
    headers = b"\0\0\0\x10ftypM4A \0\0\0\0" + b"\0\0\0\x08free" * (4 << 20)

    async def use(decoder: AudioDecoder) -> None:
        await decoder.decode(encode_whole(tone(1), "wav", 16_000))
        (worker,) = decoder._pool._workers
        start, started = worker.process._child.start, []

        def counted() -> None:
            started.append(worker.process.pid)
            start()

        monkeypatch.setattr(worker.process._child, "start", counted)
        with pytest.raises(BadRequest, match="takes too long"):
            await decoder.decode(headers)
        assert len(started) == 1, "it is tried once"
        assert (await decoder.decode(encode_whole(tone(1), "wav", 16_000))).seconds == 1

    run(use, timeout=3600.0, processes=1)


def test_the_process_can_open_nothing_and_has_bounds(run_shared: Callable[[Use], None]) -> None:
    async def use(decoder: AudioDecoder) -> None:
        await decoder.decode(encode_whole(tone(1), "wav", 16_000))
        (pid,) = decoder.pids
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[1] == 1
        assert resource.prlimit(pid, resource.RLIMIT_AS)[1] == 1 << 30
        assert resource.prlimit(pid, resource.RLIMIT_CORE)[1] == 0

    run_shared(use)


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


async def loop_busy(work: Coroutine[Any, Any, object]) -> float:
    """CPU seconds that the loop did one thing, at most, until ``work`` was done."""
    task = asyncio.ensure_future(work)
    worst = 0.0
    while not task.done():
        began = time.thread_time()
        await asyncio.sleep(0.002)
        worst = max(worst, time.thread_time() - began)
    return worst


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
