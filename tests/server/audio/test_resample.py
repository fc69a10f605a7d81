"""The resampler: pieces give what the whole gives, and what comes out is the same sound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.server.audio.resample import MAX_RATE, Resampler
from stentor.tests.examples import examples
from stentor.tests.server.audio.voices import noise, tone
from stentor.tests.support.whole_audio import resample

RATES = st.sampled_from((8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000))


@settings(max_examples=examples(30, 300), deadline=None)
@given(source=RATES, target=RATES, data=st.data())
def test_any_cut_into_pieces_gives_what_the_whole_gives(source: int, target: int, data: st.DataObject) -> None:
    pcm = noise(0.3, source, 0.2)[: data.draw(st.integers(0, 8000))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(pcm)), max_size=8)))
    resampler = Resampler(source, target)
    pieces = [resampler.push(pcm[start:end]) for start, end in zip([0, *cuts], [*cuts, len(pcm)], strict=True)]
    assert b"".join(pieces) + resampler.finish() == resample(pcm, source, target)


@settings(max_examples=examples(40), deadline=None)
@given(source=RATES, target=RATES, samples=st.integers(0, 30_000))
def test_the_length_is_that_of_the_sound(source: int, target: int, samples: int) -> None:
    found = len(resample(bytes(2 * samples), source, target)) / 2
    assert abs(found - samples * target / source) <= 1


@pytest.mark.parametrize(("source", "target"), [(24_000, 16_000), (8_000, 16_000), (44_100, 16_000), (16_000, 24_000)])
def test_a_tone_stays_the_tone_that_it_is(source: int, target: int) -> None:
    found = np.frombuffer(resample(tone(1, source), source, target), "<i2").astype(float)
    wanted = np.frombuffer(tone(1, target), "<i2").astype(float)
    middle = slice(target // 10, -target // 10)
    assert np.abs(found - wanted)[middle].max() < 20


def test_a_tone_that_the_target_cannot_hold_is_gone() -> None:
    found = np.frombuffer(resample(tone(1, 48_000, 12_000), 48_000, 16_000), "<i2").astype(float)
    assert np.abs(found)[1600:-1600].max() < 5


@pytest.mark.parametrize(("source", "target", "most"), [(24_000, 16_000, 0.04), (8_000, 16_000, 0.1)])
def test_what_is_held_back_is_bounded(source: int, target: int, most: float) -> None:
    resampler = Resampler(source, target)
    given = came = 0
    for _ in range(100):
        came += len(resampler.push(bytes(2 * source // 50))) // 2
        given += source // 50
        assert given / source - came / target <= most + 0.02


def test_what_is_loud_is_clipped_and_does_not_wrap() -> None:
    square = np.where(np.arange(4800) // 24 % 2, 32767, -32768).astype("<i2")
    found = np.frombuffer(resample(square.tobytes(), 48_000, 16_000), "<i2")
    assert found.max() == 32767
    assert found.min() == -32768
    assert np.abs(np.diff(np.sign(found.astype(int))) > 0).sum() < 110


@pytest.mark.parametrize("rate", [0, -8000, 999, MAX_RATE + 1])
def test_a_rate_out_of_bounds_is_refused(rate: int) -> None:
    with pytest.raises(ValueError, match="is not between"):
        Resampler(rate, 16_000)


def test_nothing_is_taken_after_the_end() -> None:
    resampler = Resampler(24_000, 16_000)
    resampler.finish()
    with pytest.raises(ValueError, match="has finished"):
        resampler.push(b"")
