"""Frames of videos as a model gets them, within bounds that the file's own words do not move."""

import struct
from typing import Any

import numpy as np
import pytest

from stentor.server.audio.encode import wav_header
from stentor.server.media.decoding.decode_audio import decode_audio
from stentor.server.media.decoding.decode_video import VideoFacts, decode_video, rehearse, uniform
from stentor.server.media.decoding.decoded import DecodedLimits
from stentor.server.media.refusal import Refusal
from stentor.tests.server.media.videos import video

LIMITS = DecodedLimits()


def shown(found: np.ndarray[Any, Any]) -> list[int]:
    """Numbers of frames."""
    return [round(float(frame.mean()) / 10) for frame in found]


@pytest.mark.parametrize(
    ("form", "codec"),
    [
        ("mp4", "mpeg4"),
        ("matroska", "mpeg4"),
        ("webm", "libvpx"),
        ("webm", "libvpx-vp9"),
        ("mp4", "libx264"),
        ("avi", "mpeg4"),
    ],
)
def test_each_container_is_read(form: str, codec: str) -> None:
    found = decode_video(video(form=form, codec=codec), LIMITS, uniform())
    assert found.frames.shape == (6, 16, 32, 3)
    assert (shown(found.frames), found.indices) == ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5])
    assert (found.facts.frames, found.facts.width, found.facts.height) == (6, 32, 16)
    assert found.facts.fps == pytest.approx(2, rel=0.01)
    assert found.facts.seconds == pytest.approx(3, rel=0.01)


def test_a_gif_is_a_video_too() -> None:
    found = decode_video(video(form="gif", codec="gif", pix_fmt="rgb8"), LIMITS, uniform())
    assert found.frames.shape == (6, 16, 32, 3)


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        ({"num_frames": 3}, [0, 2, 4]),
        ({"num_frames": 4}, [0, 1, 3, 4]),
        ({"num_frames": 100}, [0, 1, 2, 3, 4, 5]),
        ({"fps": 1.0}, [0, 2, 4]),
        ({"fps": 0.1}, [0]),
        ({"num_frames": 1, "fps": 2.0}, [0]),
    ],
)
def test_frames_are_picked_as_a_model_asks_for_them(wanted: dict[str, Any], indices: list[int]) -> None:
    found = decode_video(video(), LIMITS, uniform(**wanted))
    assert (found.indices, shown(found.frames)) == (indices, indices)


def test_a_choice_of_its_own_is_asked_once_all_is_counted_and_kept_within_the_video() -> None:
    asked: list[VideoFacts] = []

    def choose(facts: VideoFacts) -> list[int]:
        asked.append(facts)
        return [5, 1, 1, -1, 99]

    assert decode_video(video(), LIMITS, choose).indices == [1, 5]
    (facts,) = asked
    assert facts.frames == 6


MOVING = [np.full((16, 32, 3), 10 * (number % 25), np.uint8) for number in range(60)]


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
@pytest.mark.parametrize("wanted", [[0], [59], [7, 8, 9], [3, 30, 31, 58], [5, 10, 15, 20], list(range(60))])
def test_a_frame_is_the_same_whichever_others_are_picked(codec: str, wanted: list[int]) -> None:
    data = video(frames=MOVING, codec=codec, group=10)
    whole = decode_video(data, LIMITS, uniform())
    found = decode_video(data, LIMITS, lambda _: wanted)
    assert (found.indices, len(whole.frames)) == (wanted, 60)
    assert np.array_equal(found.frames, whole.frames[wanted])


def test_groups_that_nobody_sees_are_not_decoded() -> None:
    data = bytearray(video(frames=MOVING, group=10))
    whole = decode_video(bytes(data), LIMITS, uniform())
    start, end = data.index(b"mdat") + 4, data.index(b"moov") - 4
    third = (end - start) // 3
    data[start + third : end - third] = bytes(end - start - 2 * third)  # of the packets: the index behind them is whole
    found = decode_video(bytes(data), LIMITS, lambda _: [2, 55])
    assert found.indices == [2, 55]
    assert np.array_equal(found.frames, whole.frames[[2, 55]])


def test_larger_frames_are_made_smaller_all_alike() -> None:
    found = decode_video(video(), DecodedLimits(video_pixels=6 * 8 * 16), uniform())
    assert found.frames.shape == (6, 8, 16, 3)
    assert (found.facts.width, found.facts.height) == (32, 16)
    with pytest.raises(Refusal, match="at most"):
        decode_video(video(), DecodedLimits(video_pixels=6), uniform())


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (DecodedLimits(frames=5), "6 frames"),
        (DecodedLimits(pixels=500), "32 x 16 pixels"),
        (DecodedLimits(video_seconds=2), "3 seconds"),
        (DecodedLimits(cpu_seconds=0), "too long to decode"),
    ],
)
def test_a_video_beyond_a_limit_is_refused(limits: DecodedLimits, why: str) -> None:
    with pytest.raises(Refusal, match=why):
        decode_video(video(), limits, uniform(num_frames=1))


def test_a_phone_held_upright_is_seen_so() -> None:
    rows = np.zeros((16, 32, 3), np.uint8)
    rows[:, :16] = 255  # the left half
    data = bytearray(video(frames=[rows] * 2))
    at = data.index(b"tkhd") + 4 + 40
    for turn, bright in (
        ((0, 1, 0, -1, 0, 0, 0, 0, 0x4000), "top"),  # a quarter clockwise
        ((-1, 0, 0, 0, -1, 0, 0, 0, 0x4000), "right"),
        ((0, -1, 0, 1, 0, 0, 0, 0, 0x4000), "bottom"),
    ):
        data[at : at + 36] = struct.pack(">9i", *(value << 16 for value in turn))
        frame = decode_video(bytes(data), LIMITS, uniform(num_frames=1)).frames[0]
        halves = {"top": frame[: len(frame) // 2], "bottom": frame[len(frame) // 2 :], "right": frame[:, 16:]}
        assert frame.shape == ((16, 32, 3) if bright == "right" else (32, 16, 3))
        assert halves[bright].mean() > 200


def test_of_a_video_that_is_cut_short_what_there_is_of_it_is_taken() -> None:
    whole = video(20, form="matroska")
    found = decode_video(whole[: len(whole) * 2 // 3], LIMITS, uniform())
    assert 1 <= len(found.frames) < 20


def test_what_is_no_video_is_refused() -> None:
    sound = wav_header(16_000, 8) + bytes(8)
    for data in (b"", b"nonsense" * 100, sound, video()[:40], b"RIFF\0\0\0\0AVI " + bytes(100), b"GIF89a" + bytes(9)):
        with pytest.raises(Refusal):
            decode_video(data, LIMITS, uniform())


def test_a_playlist_is_not_followed() -> None:
    for data in (b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n", b"ffconcat version 1.0\nfile /etc/passwd\n"):
        with pytest.raises(Refusal):
            decode_video(data, LIMITS, uniform())


def test_a_rehearsal_leaves_nothing_to_be_opened() -> None:
    rehearse()


def test_the_sound_of_a_file_is_samples_between_one_and_minus_one() -> None:
    pcm = np.array([0, 16384, -32768, 32767] * 400, "<i2")
    found = decode_audio(wav_header(16_000, pcm.nbytes) + pcm.tobytes(), LIMITS)
    assert found.dtype == np.float32
    assert found[:4].tolist() == [0, 0.5, -1, 32767 / 32768]
    assert len(decode_audio(video(sound=True), LIMITS)) >= 16_000


def test_no_sound_or_too_much_of_it_is_refused() -> None:
    long = wav_header(16_000, 64_000) + bytes(64_000)
    with pytest.raises(Refusal, match="longer than the 1 seconds") as refused:
        decode_audio(long, DecodedLimits(audio_seconds=1))
    assert refused.value.code == "media_too_large"
    for data in (b"", b"nonsense", video()):
        with pytest.raises(Refusal):
            decode_audio(data, LIMITS)
