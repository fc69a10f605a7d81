"""The resampler without delay: the same samples for any cut, right frequencies, and next to nothing held back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.layers.audio.prompt_resample import PromptResampler
from stentor.tests.examples import examples
from stentor.tests.support.whole_audio import resample

RATES = [(24_000, 16_000), (8_000, 16_000), (16_000, 8_000), (16_000, 24_000)]
rates = pytest.mark.parametrize(("source", "target"), RATES)


def tone(hertz: float, rate: int, seconds: float = 0.5) -> bytes:
    return (10_000 * np.sin(np.arange(int(rate * seconds)) * hertz * 2 * np.pi / rate)).astype("<i2").tobytes()


def loudness(pcm: bytes) -> float:
    """In decibels below the tone's own; without the ends."""
    samples = np.frombuffer(pcm, "<i2").astype(np.float64)
    middle = samples[len(samples) // 4 : -len(samples) // 4]
    return float(20 * np.log10(max(1e-9, np.sqrt((middle**2).mean()) / (10_000 / np.sqrt(2)))))


@rates
def test_a_tone_in_the_band_stays_as_it_is(source: int, target: int) -> None:
    for hertz in (100, 1000, 2900):
        out = PromptResampler(source, target).finish(tone(hertz, source))
        same = np.frombuffer(tone(hertz, target), "<i2").astype(np.float64)
        error = np.frombuffer(out, "<i2") - same
        assert np.abs(error[100:-100]).max() < 40, hertz


@rates
def test_it_agrees_with_soxr_about_speech_like_sound(source: int, target: int) -> None:
    tones = [np.frombuffer(tone(hertz, source), "<i2") // 8 for hertz in (180, 420, 910, 1700, 2600)]
    pcm = np.sum(tones, axis=0).astype("<i2")
    ours = np.frombuffer(PromptResampler(source, target).finish(pcm.tobytes()), "<i2").astype(np.float64)
    theirs = np.frombuffer(resample(pcm.tobytes(), source, target), "<i2")
    assert abs(len(ours) - len(theirs)) <= 1
    assert np.abs(ours[200:-200] - theirs[200 : 200 + len(ours) - 400]).max() < 30


def test_what_is_above_the_band_does_not_fold_into_it() -> None:
    for hertz in (9_500, 10_000, 11_500):
        assert loudness(PromptResampler(24_000, 16_000).finish(tone(hertz, 24_000))) < -60
    out = np.frombuffer(PromptResampler(8_000, 16_000).finish(tone(1000, 8_000)), "<i2").astype(np.float64)
    spectrum = np.abs(np.fft.rfft(out[1000:7000] * np.hanning(6000)))
    image = spectrum[round(7000 / 16_000 * 6000)]
    assert 20 * np.log10(image / spectrum.max()) < -60


@rates
def test_next_to_nothing_is_held_back(source: int, target: int) -> None:
    resampler, made = PromptResampler(source, target), 0
    for number in range(1, 100):
        made += len(resampler.push(bytes(2 * source // 100))) // 2
        assert 0 <= number * 10 - made / target * 1000 < 3


@rates
def test_all_that_goes_in_comes_out(source: int, target: int) -> None:
    for samples in (0, 1, 7, 1000, 4001):
        out = PromptResampler(source, target).finish(bytes(2 * samples + 1))
        assert len(out) // 2 == -(-samples * target // source)


@settings(max_examples=examples(30, 600), deadline=None)
@given(st.sampled_from(RATES), st.integers(0, 3000), st.lists(st.integers(0, 700), max_size=30), st.integers(0, 2**31))
def test_any_cut_into_pieces_gives_the_same_samples(
    pair: tuple[int, int], count: int, cuts: list[int], seed: int
) -> None:
    pcm = np.random.default_rng(seed).integers(-32768, 32768, count).astype("<i2").tobytes()
    resampler, out, at = PromptResampler(*pair), b"", 0
    for cut in cuts:
        out += resampler.push(pcm[at : at + cut])
        at += cut
    assert out + resampler.finish(pcm[at:]) == PromptResampler(*pair).finish(pcm)
