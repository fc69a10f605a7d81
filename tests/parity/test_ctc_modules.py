"""Transcription models that run transformers' modules up to a CTC head, against transformers: tiny random ones."""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.model_config.config_fields import ConfigError
from stentor.tests.parity.ctc_modules import KINDS, blank_of, extractor, features, tiny, write_languages
from stentor.tests.parity.test_framewise import opened
from stentor.tests.parity.test_whisper import sound

WINDOWS = [sound(seconds, seed) for seed, seconds in enumerate((3.0, 1.402, 0.01))]
"""One is shorter than a position."""
Written = tuple[Path, Any]


@pytest.fixture(scope="module", params=KINDS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    model = tiny(request.param)
    folder = tmp_path_factory.mktemp("ctc")
    model.save_pretrained(folder)
    extractor(model).save_pretrained(folder)
    return folder, model


def expected_of(model: Any, pcm: bytes) -> list[tuple[int, int, int, float]]:
    """(token, first position, position behind the last, log-probability) of transformers' likeliest tokens."""
    with torch.inference_mode():
        likely = model(**features(model, pcm)).logits[0].log_softmax(1)
    found, at = [], 0
    for token, run in groupby(likely.argmax(1).tolist()):
        length = len(list(run))
        if token != blank_of(model):
            found.append((token, at, at + length, float(likely[at : at + length, token].max())))
        at += length
    return found


def test_tokens_positions_and_probabilities_are_transformers(written: Written) -> None:
    folder, model = written
    with torch.inference_mode():
        found = opened(folder, packed=False).transcribe(WINDOWS, [0] * len(WINDOWS))
    for pcm, rows in zip(WINDOWS, found, strict=True):
        expected = torch.tensor(expected_of(model, pcm)).view(-1, 4)
        torch.testing.assert_close(rows, expected, atol=1e-4, rtol=1e-4)
    assert len({int(token) for token in found[0][:, 0]}) > 3, "the model says one thing only"


def test_each_window_is_transcribed_by_the_adapter_of_its_language(tmp_path: Path) -> None:
    write_languages(tmp_path)
    model = tiny("wav2vec2, of several languages")
    model.config._name_or_path = str(tmp_path)
    with torch.inference_mode():
        found = opened(tmp_path, packed=False).transcribe([WINDOWS[1]] * 4, [1, 0, 2, 1])
    expected = [expected_of(model, WINDOWS[1])]
    for language in ("deu", "uzb-script_latin"):
        model.load_adapter(language)
        expected.append(expected_of(model, WINDOWS[1]))
    for number, rows in zip([1, 0, 2, 1], found, strict=True):
        torch.testing.assert_close(rows, torch.tensor(expected[number]).view(-1, 4), atol=1e-4, rtol=1e-4)
    assert expected[0] != expected[1] != expected[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lm_head.bias": None}, "adapter.deu.safetensors lacks the tensor 'lm_head.bias'"),
        ({"other": torch.zeros(1)}, "adapter.deu.safetensors has the tensor 'other'"),
        ({"lm_head.weight": torch.zeros(3, 5)}, r"lm_head.weight has shape \(3, 5\), expected"),
    ],
)
def test_an_adapter_of_another_shape_is_refused_at_the_start(
    tmp_path: Path, change: dict[str, torch.Tensor | None], message: str
) -> None:
    file = write_languages(tmp_path) / "adapter.deu.safetensors"
    tensors = {**load_file(file), **change}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path, packed=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hop_length": 200}, "hop_length is 200"),
        ({"num_mel_bins": 40}, "num_mel_bins 40, expected 160 and the 20 of"),
        ({"sampling_rate": 8000}, "sampling_rate is 8000"),
        ({"win_length": 1024}, "win_length is more than n_fft"),
        ({"delta_win_length": 4}, "delta_win_length no odd number"),
        ({"n_fft": "wide"}, "whole numbers"),
    ],
)
def test_granite_speech_s_frames_of_another_shape_are_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    tiny("granite speech 5").save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(change))
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path, packed=False)


def test_granite_speech_s_halving_of_a_layer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    tiny("granite speech 5").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["encoder_config"]["subsample_layers"] = [0, 9]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="subsample_layers is"):
        open_checkpoint(tmp_path)


def test_a_window_has_as_many_positions_as_its_description_says(written: Written) -> None:
    folder, model = written
    spec = open_checkpoint(folder).framewise
    with torch.inference_mode():
        made = model(**features(model, WINDOWS[0])).logits.shape[1]
    most = spec.encoder.positions(len(WINDOWS[0]) // 2)
    assert most - 3 <= made <= most
