"""Pictures and sounds as Inkling and Inkling 2 are given them."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as untyped_transformers
from PIL import Image
from safetensors.numpy import load

from stentor.server.media.decoding.decode_image import decode_image, on_white
from stentor.server.media.decoding.decoded import DecodedLimits
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.server.media.refusal import Refusal
from stentor.tests.server.audio.voices import tone
from stentor.tests.support.vision_models import SPECIAL, write_tokenizer

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


def write_second(folder: Path, **images: Any) -> Path:
    """The files of Inkling 2."""
    (folder / "config.json").write_text(json.dumps({"model_type": "inkling2"}))
    settings = {"image_processor_type": "Inkling2ImageProcessor", "size": {"height": SIDE, "width": SIDE}, **images}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    write_tokenizer(folder, "", special=(*SPECIAL, "<|unused_200054|>"), processor_class="Inkling2Processor")
    return folder


@pytest.mark.parametrize(("size", "grid"), [((20, 13), (1, 2, 3)), ((16, 8), (1, 1, 2)), ((3, 30), (1, 4, 1))])
def test_a_picture_of_the_second_is_squares_without_one_behind_rows(
    tmp_path: Path, size: tuple[int, int], grid: tuple[int, int, int]
) -> None:
    seen = ModelProcessor(write_second(tmp_path)).image(noise(*size), {}, alone=True)
    _, rows, columns = grid
    canvas = torch.full((rows * SIDE, columns * SIDE, 3), -1.0)
    canvas[: size[1], : size[0]] = torch.from_numpy(np.asarray(noise(*size)).astype(np.float32))
    squares = canvas.view(rows, SIDE, columns, SIDE, 3).transpose(1, 2).flatten(0, 1)
    made = load(seen.payload)
    assert made["pixel_values"] == pytest.approx(((squares / 255 - 0.5) / 0.5).numpy(), abs=1e-5)
    assert made["image_grid_thw"].tolist() == [list(grid)]
    assert (seen.replacement, seen.grid) == ("<|unused_200054|>" * rows * columns, grid)


def test_a_square_of_two_sides_is_refused(tmp_path: Path) -> None:
    folder = write_second(tmp_path, size={"height": SIDE, "width": 2 * SIDE})
    with pytest.raises(Refusal, match="its squares have 8 times 16 pixels, expected as many"):
        ModelProcessor(folder).image(noise(20, 13), {}, alone=True)


def test_what_is_transparent_lies_on_a_checkerboard_for_the_second_alone(tmp_path: Path) -> None:
    values = np.random.default_rng(4).integers(0, 256, (20, 18, 4), dtype=np.uint8)
    values[0, 0, 3], values[0, 8, 3] = 0, 0
    out = io.BytesIO()
    Image.fromarray(values).save(out, "PNG")
    shown = np.asarray(decode_image(out.getvalue(), DecodedLimits(), ModelProcessor(write_second(tmp_path)).opaque))
    rows, columns = torch.arange(20)[:, None] // 8, torch.arange(18) // 8
    behind = torch.where((rows + columns) % 2 == 0, 204, 153)[:, :, None]
    given = torch.from_numpy(values).int()
    expected = (given[..., :3] * given[..., 3:] + behind * (255 - given[..., 3:]) + 127) // 255
    assert shown.tolist() == expected.tolist()
    assert [shown[0, column].tolist() for column in (0, 8)] == [[204] * 3, [153] * 3]
    assert ModelProcessor(write(tmp_path)).opaque is on_white
