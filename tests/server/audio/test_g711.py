"""G.711, against the decoders of FFmpeg and the standard's own properties."""

import io
from typing import get_args

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.server.audio.encode import wav_header
from stentor.server.audio.g711 import Law, decode, encode

LAWS: tuple[Law, ...] = get_args(Law)
CODES = bytes(range(256))
SAMPLES = np.arange(-32768, 32768).astype("<i2")


def levels(law: Law) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    return np.frombuffer(decode(law, CODES), "<i2").astype(np.int64)


@pytest.mark.parametrize("law", LAWS)
def test_every_code_is_decoded_as_ffmpeg_does(law: Law) -> None:
    tag = {"pcma": 6, "pcmu": 7}[law]
    head = bytearray(wav_header(8000, len(CODES)))
    head[20:22], head[28:32], head[32:36] = bytes((tag, 0)), (8000).to_bytes(4, "little"), bytes((1, 0, 8, 0))
    with av.open(io.BytesIO(bytes(head) + CODES), "r", format="wav") as file:
        theirs = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    assert np.array_equal(levels(law), theirs)


@pytest.mark.parametrize("law", LAWS)
def test_every_level_is_encoded_as_itself(law: Law) -> None:
    again = levels(law)[np.frombuffer(encode(law, decode(law, CODES)), np.uint8)]
    assert np.array_equal(again, levels(law))


@pytest.mark.parametrize("law", LAWS)
def test_no_sample_is_further_from_its_level_than_half_a_step_of_its_segment(law: Law) -> None:
    found = np.frombuffer(decode(law, encode(law, SAMPLES.tobytes())), "<i2").astype(np.int64)
    magnitude = np.abs(SAMPLES.astype(np.int64))
    reach = np.sort(np.abs(levels(law)))[-1]
    if law == "pcmu":
        step = 8 << np.maximum(np.floor(np.log2(np.minimum(magnitude, 32635) + 132)).astype(np.int64) - 7, 0)
    else:
        step = 16 << np.maximum(np.floor(np.log2(np.maximum(magnitude, 1))).astype(np.int64) - 8, 0)
    inside = magnitude <= reach
    assert np.all(np.abs(found - SAMPLES)[inside] <= step[inside] // 2 + 1)
    assert np.all(np.abs(found)[~inside] == reach)


@pytest.mark.parametrize("law", LAWS)
def test_louder_samples_have_louder_levels_and_the_sign_is_kept(law: Law) -> None:
    found = np.frombuffer(decode(law, encode(law, SAMPLES.tobytes())), "<i2").astype(np.int64)
    assert np.all(np.diff(found) >= 0)
    assert np.array_equal(found[:32768][::-1], -found[32768:])  # -1 mirrors 0


def test_silence_has_the_codes_that_the_standard_names() -> None:
    assert encode("pcmu", bytes(4)) == b"\xff\xff"
    assert encode("pcma", bytes(4)) == b"\xd5\xd5"


@given(law=st.sampled_from(LAWS), codes=st.binary(max_size=400))
def test_codes_survive_being_decoded_and_encoded(law: Law, codes: bytes) -> None:
    # of the two zeros of µ-law, the negative one becomes the other
    assert encode(law, decode(law, codes)) == (codes.replace(b"\x7f", b"\xff") if law == "pcmu" else codes)


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        encode("pcmu", b"123")
