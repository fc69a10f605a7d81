"""Encoders: what they write is a file of its format that holds the sound, however it came."""

from collections.abc import AsyncIterator
from typing import get_args

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.protocols.openai.speech import SpeechFormat
from stentor.server.audio.encode import MEDIA_TYPES, PCM_RATE, AudioEncoder, encoded, wav_header
from stentor.tests.examples import examples
from stentor.tests.server.audio.voices import samples_of, tone
from stentor.tests.support.whole_audio import encode_whole

pytestmark = pytest.mark.sampled

MAGIC = {"mp3": b"\xff", "opus": b"OggS", "aac": b"\xff\xf1", "flac": b"fLaC", "wav": b"RIFF"}
SLACK = {"mp3": 3 * 1152 / 22_050, "opus": 0.001, "aac": 3 * 1024 / 22_050, "flac": 0.0, "wav": 0.0}
"""Seconds by which a file is longer: frames are filled up, and a decoder starts before the first."""
CONTAINERS = {"mp3": "mp3", "opus": "ogg", "aac": "aac", "flac": "flac", "wav": "wav"}


def length(file: bytes, format: SpeechFormat) -> float:
    if format == "pcm":
        return len(file) / 2 / PCM_RATE
    count, rate = samples_of(file, CONTAINERS[format])
    return count / rate


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 24_000, 44_100])
@pytest.mark.parametrize("format", get_args(SpeechFormat))
def test_a_file_decodes_to_the_length_of_its_sound(format: SpeechFormat, rate: int) -> None:
    file = encode_whole(tone(2.5, rate), format, rate)
    assert file.startswith(MAGIC.get(format, b""))
    slack = SLACK.get(format, 0.001) * max(1, 22_050 / rate)
    assert 2.5 - 0.001 <= length(file, format) <= 2.5 + slack + 0.001


@settings(max_examples=examples(15), deadline=None)
@given(format=st.sampled_from(get_args(SpeechFormat)), cuts=st.lists(st.integers(0, 22_050), max_size=6).map(sorted))
def test_pieces_give_what_the_whole_gives(format: SpeechFormat, cuts: list[int]) -> None:
    pcm = tone(0.5, 22_050)
    encoder = AudioEncoder(format, 22_050)
    pieces = [encoder.push(pcm[start:end]) for start, end in zip([0, *cuts], [*cuts, len(pcm)], strict=True)]
    file = b"".join(pieces) + encoder.finish()
    whole = encode_whole(pcm, format, 22_050)
    if format == "wav":
        assert file == wav_header(22_050) + pcm
    elif format == "opus":  # its serial number is drawn
        assert samples_of(file) == samples_of(whole)
    else:
        assert file == whole


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac"])
def test_what_can_be_heard_leaves_before_the_sound_ends(format: SpeechFormat) -> None:
    encoder = AudioEncoder(format, 24_000)
    early = b"".join(encoder.push(tone(0.1, 24_000)) for _ in range(4))
    count, rate = samples_of(early, CONTAINERS[format])
    assert count / rate >= 0.2


@pytest.mark.parametrize("format", get_args(SpeechFormat))
def test_one_sample_and_none_make_files_too(format: SpeechFormat) -> None:
    assert len(encode_whole(bytes(2), format, 24_000)) >= 2
    nothing = encode_whole(b"", format, 24_000)
    assert len(nothing) < 9000


def test_a_tone_sounds_the_same_after_opus() -> None:
    import io

    import av

    with av.open(io.BytesIO(encode_whole(tone(1, 24_000), "opus", 24_000)), "r") as file:
        samples = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)]).astype(float)
    spectrum = np.abs(np.fft.rfft(samples[4800:43_200]))
    assert abs(np.argmax(spectrum) * 48_000 / 38_400 - 440) < 2


def test_a_wav_that_is_sent_while_it_is_made_says_no_length() -> None:
    header = wav_header(22_050)
    assert header[4:8] == header[40:44] == b"\xff\xff\xff\xff"
    assert samples_of(header + tone(1, 22_050), "wav") == (22_050, 22_050)


@pytest.mark.parametrize("format", get_args(SpeechFormat))
def test_an_encoder_that_has_finished_takes_nothing_more(format: SpeechFormat) -> None:
    encoder = AudioEncoder(format, 24_000)
    encoder.finish()
    with pytest.raises(ValueError, match="has finished"):
        encoder.push(bytes(2))


@pytest.mark.parametrize("format", get_args(SpeechFormat))
def test_a_stream_of_pieces_is_a_whole_file(format: SpeechFormat) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield tone(0.2, 22_050)

    async def collect() -> list[bytes]:
        return [piece async for piece in encoded(pieces(), format, 22_050)]

    found = anyio.run(collect)
    assert all(found)
    assert 1 - 0.001 <= length(b"".join(found), format) <= 1.2


def test_every_format_has_a_media_type() -> None:
    assert set(MEDIA_TYPES) == set(get_args(SpeechFormat))
    assert AudioEncoder("mp3", 24_000).media_type == "audio/mpeg"
