"""Decoding of clients' audio in a child process: the result, the limits, and hostile files."""

import io
import random
import resource
from collections.abc import Callable

import av
import numpy as np
import pytest

from stentor.protocols.common.errors import BadRequest
from stentor.server.audio.decode import AudioDecoder
from stentor.tests.server.audio.decoders import Use, in_time, run
from stentor.tests.server.audio.hostile import (
    opus_that_claims,
    refused,
    silent_opus,
    video_only,
    wav_with,
)
from stentor.tests.server.audio.voices import file_of, noise, tone
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


def test_the_process_can_open_nothing_and_has_bounds(run_shared: Callable[[Use], None]) -> None:
    async def use(decoder: AudioDecoder) -> None:
        await decoder.decode(encode_whole(tone(1), "wav", 16_000))
        (pid,) = decoder.pids
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[1] == 1
        assert resource.prlimit(pid, resource.RLIMIT_AS)[1] == 1 << 30
        assert resource.prlimit(pid, resource.RLIMIT_CORE)[1] == 0

    run_shared(use)
