"""Pictures and sounds as Inkling is given them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as untyped_transformers
from PIL import Image
from safetensors.numpy import load

from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.server.media.refusal import Refusal
from stentor.tests.server.audio.voices import tone

transformers: Any = untyped_transformers
SIDE = 8
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def write(folder: Path, **images: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "inkling_mm_model"}))
    settings = {"image_processor_type": "InklingImageProcessor", "size": {"height": SIDE, "width": SIDE}, **images}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    sounds = {"feature_size": 12, "sampling_rate": 16_000, "audio_token_duration_s": 0.05}
    told = {"processor_class": "InklingProcessor", "feature_extractor": sounds, "num_dmel_bins": 16}
    (folder / "processor_config.json").write_text(json.dumps(told))
    return folder


def noise(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def shown(picture: Image.Image) -> torch.Tensor:
    """Squares of a picture by the definition of transformers' class, which needs torchvision: [squares, 2, side, side,
    3]."""
    pixels = torch.from_numpy(np.asarray(picture).astype(np.float32)).permute(2, 0, 1)
    _, height, width = pixels.shape
    found = []
    for top in range(0, height, SIDE):
        for column in range(width // SIDE + 1):
            patch = torch.full((3, SIDE, SIDE), -1.0)
            part = pixels[:, top : top + SIDE, column * SIDE : (column + 1) * SIDE]
            patch[:, : part.shape[1], : part.shape[2]] = part
            values = (patch / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
            found.append(values.permute(1, 2, 0).expand(2, -1, -1, -1))
    return torch.stack(found)


@pytest.mark.parametrize("size", [(20, 13), (16, 8), (3, 30)])
def test_a_picture_is_squares_with_one_more_behind_each_row(tmp_path: Path, size: tuple[int, int]) -> None:
    seen = ModelProcessor(write(tmp_path)).image(noise(*size), {}, alone=True)
    expected = shown(noise(*size))
    assert load(seen.payload)["pixel_values"] == pytest.approx(expected.numpy(), abs=1e-5)
    assert seen.replacement == "<|unused_200054|>" * len(expected)


def test_a_picture_may_be_enlarged_but_not_beyond_the_longest_side(tmp_path: Path) -> None:
    settings = {"rescale_image_frac": 3.0, "rescale_image_max_upscaled_long_edge": 40}
    seen = ModelProcessor(write(tmp_path, **settings)).image(noise(20, 10), {}, alone=True)
    larger = noise(20, 10).resize((40, 20), Image.Resampling.LANCZOS)
    assert load(seen.payload)["pixel_values"] == pytest.approx(shown(larger).numpy(), abs=1e-5)


@pytest.mark.parametrize("seconds", [0.02, 1.0, 1.234])
def test_a_sound_is_bins_of_frames_as_of_transformers(tmp_path: Path, seconds: float) -> None:
    samples = np.frombuffer(tone(seconds), "<i2").astype(np.float32) / 32768
    heard = ModelProcessor(write(tmp_path)).audio(samples)
    own = transformers.InklingFeatureExtractor(feature_size=12)
    features = own([samples], sampling_rate=16_000, return_tensors="pt")["input_features"]
    centers = torch.linspace(-7.0, 2.0, 16, dtype=torch.float64).float()
    expected = (features.clamp(-7.0, 2.0)[..., None] - centers).abs().argmin(-1).numpy()
    bins = load(heard.payload)["audio_input_ids"]
    assert bins.shape == expected.shape
    assert np.abs(bins - expected).max() <= 1, "numpy's and torch's sums may round to two sides of a border"
    assert (bins != expected).mean() < 0.02
    assert heard.replacement == "<|unused_200053|>" * bins.shape[1]


def test_a_sound_without_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="refuses the sound: it is too short"):
        ModelProcessor(write(tmp_path)).audio(np.zeros(0, np.float32))
