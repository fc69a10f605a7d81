"""Sixty and more hostile files: each is refused before it has cost much, with words that may be shown."""

import resource
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from stentor.loadtest.hostile_files import IMAGES, png
from stentor.server.media.decoding.decode_audio import decode_audio
from stentor.server.media.decoding.decode_image import decode_image
from stentor.server.media.decoding.decode_video import decode_video, uniform
from stentor.server.media.decoding.decoded import DecodedLimits
from stentor.server.media.refusal import Refusal
from stentor.tests.server.media.hostile import LYING_VIDEOS, SOUNDS, VIDEOS

LIMITS = DecodedLimits()
SECONDS = 2.0
"""Of this process's own time."""
MEGABYTES = 700


def test_there_are_enough_of_them() -> None:
    assert len(IMAGES) + len(VIDEOS) + len(SOUNDS) >= 60


def refused(decode: Callable[[bytes], Any], data: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    with pytest.raises(Refusal) as caught:
        decode(data)
    assert time.process_time() - began < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES << 10
    said = str(caught.value)
    assert caught.value.code in ("media_refused", "media_too_large")
    assert "\n" not in said
    assert len(said) < 200
    assert "Error" not in said


@pytest.mark.parametrize("name", IMAGES)
def test_a_hostile_image_is_refused(name: str) -> None:
    refused(lambda data: decode_image(data, LIMITS), IMAGES[name])


@pytest.mark.parametrize("name", VIDEOS)
def test_a_hostile_video_is_refused(name: str) -> None:
    refused(lambda data: decode_video(data, LIMITS, uniform(num_frames=8)), VIDEOS[name])


@pytest.mark.parametrize("name", SOUNDS)
def test_a_hostile_sound_is_refused(name: str) -> None:
    refused(lambda data: decode_audio(data, LIMITS), SOUNDS[name])


def test_a_profile_that_unfolds_does_no_harm() -> None:
    bomb = zlib.compress(b"\0" * (50 << 20), 9)
    for more in ((b"iCCP", b"p\0\0" + bomb), (b"eXIf", bomb), (b"tEXt", b"k\0" + b"a" * 100_000)):
        data = png(1, 1, b"\0\xff\0\0", more)
        began = time.process_time()
        try:
            assert decode_image(data, LIMITS).size == (1, 1)
        except Refusal:
            assert more[0] == b"iCCP"
        assert time.process_time() - began < SECONDS


def test_pixels_that_unfold_to_more_than_the_picture_has_are_left_alone() -> None:
    data = png(1, 1, b"\0\xff\0\0" + b"\0" * (50 << 20))
    began = time.process_time()
    found = decode_image(data, LIMITS)
    assert found.getpixel((0, 0)) == (255, 0, 0)
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize("name", LYING_VIDEOS)
def test_what_a_video_says_of_itself_is_not_believed(name: str) -> None:
    began = time.process_time()
    found = decode_video(LYING_VIDEOS[name], LIMITS, uniform(num_frames=2))
    assert found.frames.shape[1:] == (16, 32, 3)
    assert found.facts.frames <= 6
    assert time.process_time() - began < SECONDS
