"""Models that decode frame by frame against transformers: tiny random ones of every kind of shape."""

from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.weights import iterate_weights
from stentor.engine.models.speech.framewise import FramewiseTranscriber
from stentor.tests.parity.framewise import (
    BLANK,
    features,
    tiny_ctc,
    tiny_nemotron,
    tiny_nemotron_3_5,
    tiny_rnnt,
    tiny_tdt,
)
from stentor.tests.parity.test_whisper import sound

UNBIASED = {"scale_input": True, "attention_bias": False, "convolution_bias": False}
KINDS: dict[str, Callable[[], Any]] = {
    "ctc": tiny_ctc,
    "ctc, scaled and without biases": partial(tiny_ctc, UNBIASED),
    "rnnt": tiny_rnnt,
    "rnnt, of one layer and two tokens a position": partial(tiny_rnnt, num_decoder_layers=1, max_symbols_per_step=2),
    "nemotron": tiny_nemotron,
    "nemotron, with one chunk and a wide convolution": partial(
        tiny_nemotron, {**UNBIASED, "conv_kernel_size": 9, "sliding_window": 71, "default_num_lookahead_tokens": 13}
    ),
    "nemotron, seeing nothing later": partial(
        tiny_nemotron, {"sliding_window": 5, "default_num_lookahead_tokens": 0}, max_symbols_per_step=2
    ),
    "nemotron 3.5": tiny_nemotron_3_5,
    "tdt": tiny_tdt,
    "tdt, of other sizes": partial(
        tiny_tdt, none=-41.5, durations=[0, 1, 2], hidden_act="silu", decoder_hidden_size=24
    ),
}
WINDOWS = [sound(seconds, seed) for seed, seconds in enumerate((3.0, 1.402, 0.01))]
"""One is shorter than a position."""
DETECTED = [7] * len(WINDOWS)
"""The number of no language, for models that are told it."""
Transcripts = list[list[tuple[int, int, int]]]


@pytest.fixture(scope="module", params=KINDS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Transcripts]:
    """A model's folder, and what transformers makes of :data:`WINDOWS` with it."""
    model = KINDS[request.param]()
    folder = tmp_path_factory.mktemp("framewise")
    model.save_pretrained(folder)
    return folder, [expected_of(model, pcm) for pcm in WINDOWS]


def opened(folder: Path, *, packed: bool = True) -> FramewiseTranscriber:
    checkpoint = open_checkpoint(folder)
    context = LayerContext(torch.device("cpu"), torch.float32, False, packed=packed)
    model = FramewiseTranscriber(checkpoint.framewise, context, folder)
    with torch.inference_mode():
        model.load(iterate_weights(checkpoint, torch.float32))
    return model


def expected_of(model: Any, pcm: bytes, **given: Any) -> list[tuple[int, int, int]]:
    """(token, first position, position behind the last), by transformers' own decoding."""
    inputs = features(model, pcm)
    if model.config.model_type == "parakeet_ctc":
        with torch.inference_mode():
            tokens, found, at = model.generate(**inputs)[0].tolist(), [], 0
        for token, run in groupby(tokens):
            length = len(list(run))
            if token != BLANK:
                found.append((token, at, at + length))
            at += length
        return found
    positions = int(model._get_subsampling_output_length(inputs["attention_mask"].sum()))
    most = model.config.max_symbols_per_step * positions
    made = model.generate(**inputs, decoder_start_token_id=BLANK, max_new_tokens=most, **given)
    tokens, durations = made.sequences[0].tolist(), made.durations[0]
    starts = (durations.cumsum(0) - durations).tolist()
    spans = durations.tolist() if model.config.model_type == "parakeet_tdt" else [1] * len(tokens)
    steps = zip(tokens, starts, spans, strict=True)
    return [(token, start, start + span) for token, start, span in steps if token != BLANK]


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_tokens_and_their_positions_are_transformers(written: tuple[Path, Transcripts], packed: bool) -> None:
    folder, expected = written
    with torch.inference_mode():
        found = opened(folder, packed=packed).transcribe(WINDOWS, DETECTED)
    assert [[(int(a), int(b), int(c)) for a, b, c, _ in each.tolist()] for each in found] == expected
    assert len({token for token, _, _ in expected[0]}) > 3, "the model says one thing only"


def test_each_window_is_told_its_own_language(tmp_path: Path) -> None:
    model = tiny_nemotron_3_5()
    model.save_pretrained(tmp_path)
    pcm, languages = sound(2.0, 3), [0, 5, 7]
    expected = [expected_of(model, pcm, prompt_ids=torch.tensor([language])) for language in languages]
    with torch.inference_mode():
        found = opened(tmp_path, packed=False).transcribe([pcm] * len(languages), languages)
    assert [[(int(a), int(b), int(c)) for a, b, c, _ in each.tolist()] for each in found] == expected
    assert expected[0] != expected[1] != expected[2]


def test_the_probability_of_a_token_is_that_of_its_position(tmp_path: Path) -> None:
    model = tiny_ctc()
    model.save_pretrained(tmp_path)
    pcm = sound(2.0, 3)
    with torch.inference_mode():
        (found,) = opened(tmp_path).transcribe([pcm], [0])
        likely = model(**features(model, pcm)).logits[0].log_softmax(1)
    assert len(found) > 3
    for token, first, end, logprob in found.tolist():
        assert logprob == pytest.approx(float(likely[int(first) : int(end), int(token)].max()), abs=1e-3)


def test_windows_together_have_the_transcripts_that_each_has_alone(written: tuple[Path, Transcripts]) -> None:
    ours = opened(written[0], packed=False)
    with torch.inference_mode():
        together = ours.transcribe(WINDOWS, DETECTED)
        alone = [ours.transcribe([window], DETECTED[:1])[0] for window in WINDOWS]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_half_a_minute_of_silence_stands_for_an_empty_window(tmp_path: Path) -> None:
    tiny_tdt({"num_hidden_layers": 1}).save_pretrained(tmp_path)
    ours = opened(tmp_path)
    with torch.inference_mode():
        encoded = ours.encoder([b""])
    assert encoded.lengths == [ours.config.source_positions] == [375]


@pytest.mark.parametrize("seconds", [0.1, 0.87, 1.28, 1.29, 30.0])
def test_a_causal_encoder_has_as_many_positions_as_its_description_says(tmp_path: Path, seconds: float) -> None:
    tiny_nemotron({"num_hidden_layers": 1}).save_pretrained(tmp_path)
    ours, samples = opened(tmp_path), round(16_000 * seconds)
    with torch.inference_mode():
        encoded = ours.encoder([bytes(2 * samples)])
    assert encoded.lengths == [ours.config.encoder.positions(samples)]
