"""Pictures as Muse Glimmer and Muse Spark are given them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load

from stentor.server.media.processors.images.muse import grid_of
from stentor.server.media.processors.model_processor import ModelProcessor

PATCH = 4


@pytest.mark.parametrize("family", ["MuseGlimmer", "MuseSpark"])
def test_a_picture_is_patches_of_two_frames_between_marks(tmp_path: Path, family: str) -> None:
    """By the definition of transformers' class, which needs torchvision."""
    kind = "muse_glimmer" if family == "MuseGlimmer" else "muse_spark"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    settings = {"processor_class": f"{family}Processor", "patch_size": PATCH, "max_image_tokens": 6}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"image_end_token": "<|end|>"}))
    pixels = np.random.default_rng(3).integers(0, 256, (19, 30, 3), dtype=np.uint8)
    seen = ModelProcessor(tmp_path).image(Image.fromarray(pixels), {}, alone=True)
    rows, columns = 4, 6
    resized = Image.fromarray(pixels).resize((columns * PATCH, rows * PATCH), Image.Resampling.LANCZOS)
    values = torch.from_numpy(np.asarray(resized).copy()).permute(2, 0, 1).float() / 127.5 - 1
    patches = values.view(3, rows, PATCH, columns, PATCH).permute(1, 3, 0, 2, 4).flatten(0, 1)
    expected = patches[:, None].expand(-1, 2, -1, -1, -1).flatten(1)
    tensors = load(seen.payload)
    assert tensors["pixel_values"] == pytest.approx(expected.numpy(), abs=1e-5)
    assert tensors["image_grid_thw"].tolist() == [[1, rows, columns]]
    assert seen.replacement == "<|image_start|>" + "<|patch|>" * 6 + "<|end|>"


@pytest.mark.parametrize(
    ("height", "width", "most", "grid"),
    [(280, 560, 4096, (10, 20)), (100, 100, 4096, (4, 4)), (5, 5, 4096, (1, 1)), (28, 9000, 16, (1, 72))],
)
def test_a_grid_keeps_the_shape_of_a_picture(height: int, width: int, most: int, grid: tuple[int, int]) -> None:
    assert grid_of(height, width, 28, most) == grid
