"""The input audio buffer: every sample at its place, whatever it is cut into."""

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.realtime.session import AudioPcm, AudioPcma, AudioPcmu
from stentor.server.api.realtime.common.formats import MODEL_AUDIO, TICKS, Wire, to_ms, to_ticks
from stentor.server.api.realtime.listening.input_buffer import InputBuffer
from stentor.tests.examples import examples

PCM = Wire.of(AudioPcm())
PCMU = Wire.of(AudioPcmu())
PCMA = Wire.of(AudioPcma())


def tone(samples: int, rate: int = 24_000) -> bytes:
    return struct.pack(f"<{samples}h", *(int(8000 * math.sin(at * 440 * math.tau / rate)) for at in range(samples)))


def test_a_sample_of_each_rate_is_a_whole_number_of_ticks() -> None:
    assert [(wire.rate * wire.ticks, wire.bytes_a_second) for wire in (PCM, PCMU, PCMA, MODEL_AUDIO)] == [
        (TICKS, 48_000),
        (TICKS, 8_000),
        (TICKS, 8_000),
        (TICKS, 32_000),
    ]


@pytest.mark.parametrize("wire", [PCM, PCMU, PCMA], ids=["pcm", "pcmu", "pcma"])
def test_all_that_came_is_heard_once_it_is_flushed(wire: Wire) -> None:
    buffer = InputBuffer(wire)
    for _ in range(10):
        buffer.append(bytes(wire.bytes_a_second // 10))
    assert to_ms(buffer.received) == 1000
    assert buffer.resampled_end <= buffer.received
    buffer.flush()
    assert buffer.resampled_end == buffer.received
    clip = buffer.take(buffer.begin, buffer.received)
    assert (clip.start_ms, clip.end_ms, len(clip.audio)) == (0, 1000, wire.bytes_a_second)
    assert len(clip.pcm) == 32_000


def test_a_clip_is_what_was_sent_between_two_moments() -> None:
    buffer = InputBuffer(PCM)
    audio = tone(24_000)
    buffer.append(audio)
    clip = buffer.take(to_ticks(250), to_ticks(500))
    assert clip.audio == audio[12_000:24_000]
    assert len(clip.pcm) == 250 * 32
    assert to_ms(buffer.begin) == 500
    assert buffer.take(0, to_ticks(600)).audio == audio[24_000:28_800]


def test_positions_go_on_after_a_clear_and_a_commit() -> None:
    buffer = InputBuffer(PCM)
    buffer.append(tone(12_000))
    buffer.clear()
    assert (to_ms(buffer.begin), to_ms(buffer.received)) == (500, 500)
    buffer.append(tone(12_000))
    buffer.flush()
    assert buffer.take(buffer.begin, buffer.received).end_ms == 1000


@pytest.mark.parametrize("samples", [0, 1, 2399])
def test_an_empty_commit_is_refused_as_openai_does(samples: int) -> None:
    buffer = InputBuffer(PCM)
    buffer.append(bytes(2 * samples))
    with pytest.raises(BadRequest, match=f"buffer only has {samples / 24:.2f}ms of audio") as caught:
        buffer.check_commit()
    assert caught.value.code == "input_audio_buffer_commit_empty"
    buffer.append(bytes(2 * (2400 - samples)))
    buffer.check_commit()


def test_more_than_the_buffer_holds_is_refused_whole() -> None:
    buffer = InputBuffer(PCM, max_seconds=2)
    buffer.append(bytes(48_000))
    with pytest.raises(BadRequest, match="holds 1 s and would exceed 2 s") as caught:
        buffer.append(bytes(48_002))
    assert caught.value.code == "input_audio_buffer_full"
    assert to_ms(buffer.received) == 1000
    buffer.append(bytes(48_000))


def test_a_format_that_changes_keeps_what_came_before() -> None:
    buffer = InputBuffer(PCM)
    buffer.append(tone(24_000))
    buffer.change(PCMU)
    assert (to_ms(buffer.received), buffer.resampled_end) == (1000, buffer.received)
    buffer.append(bytes(8_000))
    buffer.flush()
    clip = buffer.take(0, buffer.received)
    assert (clip.start_ms, clip.end_ms, len(clip.audio), len(clip.pcm)) == (0, 2000, 16_000, 64_000)


def test_the_same_format_again_changes_nothing() -> None:
    buffer = InputBuffer(PCM)
    buffer.append(tone(1000) + b"\x01")
    assert buffer.change(Wire.of(AudioPcm())) == b""
    buffer.append(b"\x02")
    assert buffer.take(0, buffer.received).audio == tone(1000) + b"\x01\x02"


@settings(max_examples=examples(30, 10 * 60), deadline=None)
@given(st.sampled_from([PCM, PCMU, PCMA]), st.lists(st.integers(0, 3000), max_size=12))
def test_any_cut_into_pieces_is_the_same_audio(wire: Wire, cuts: list[int]) -> None:
    audio = tone(sum(cuts) // 2 + 1)[: sum(cuts)]
    whole, cut = InputBuffer(wire), InputBuffer(wire)
    heard_whole = whole.append(audio)
    heard_cut, place = b"", 0
    for count in cuts:
        heard_cut += cut.append(audio[place : place + count])
        place += count
    assert (whole.received, whole.begin) == (cut.received, cut.begin)
    assert heard_whole + whole.flush() == heard_cut + cut.flush()
    assert whole.take(0, whole.received) == cut.take(0, cut.received)


@settings(max_examples=examples(30, 10 * 60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4000), st.booleans()), max_size=20))
def test_nothing_drifts_however_often_the_buffer_is_flushed(appends: list[tuple[int, bool]]) -> None:
    buffer = InputBuffer(PCM)
    samples = 0
    for count, flushed in appends:
        buffer.append(bytes(2 * count))
        samples += count
        if flushed:
            buffer.flush()
            assert abs(buffer.resampled_end - buffer.received) < MODEL_AUDIO.ticks
        assert buffer.received == samples * PCM.ticks
