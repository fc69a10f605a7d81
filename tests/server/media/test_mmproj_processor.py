"""The processor that a projector file describes makes of pictures what the model's own files would have it make."""

import json
from pathlib import Path
from typing import Any

import pytest

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.server.media.images.lfm2_vl import Lfm2VlImages
from stentor.server.media.mmproj_processor import given_files
from stentor.server.media.model_processor import ModelProcessor
from stentor.tests.parity.seeing import MAKERS
from stentor.tests.server.media.pictures import picture
from stentor.tests.server.media.published import WHOLE
from stentor.tests.support.mmproj_files import TEXTS, write_mmproj, write_pair
from stentor.tests.support.vision_models import CHATML, FAMILIES, PATCH, Maker, write_processor

SIZES = ((40, 30), (90, 20), (64, 64))


@pytest.mark.proof(each="family")
@pytest.mark.parametrize("family", [family for family in TEXTS if family in FAMILIES])
def test_pictures_are_processed_as_by_the_files_of_the_model(family: str, tmp_path: Path) -> None:
    model = FAMILIES[family](tmp_path)
    given = given_files(open_checkpoint(write_pair(tmp_path, model, family)))
    assert given is not None
    own, theirs = ModelProcessor(given), ModelProcessor(tmp_path)
    assert own.written["image"] == theirs.written["image"]
    for size in SIZES:
        for options in ({}, {"detail": "low"}):
            assert own.image(picture(*size), options, alone=True) == theirs.image(picture(*size), options, alone=True)


def _lfm2_vl(folder: Path) -> Any:
    images = Lfm2VlImages(encoder_patch_size=PATCH)
    write_processor(folder, "Lfm2VlProcessor", images, CHATML.replace("IMAGE", "<image>"))
    return MAKERS["lfm2_vl"](folder)


def _kimi_vl(folder: Path) -> Any:
    WHOLE["kimi_vl"](folder)
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "in_token_limit": 4096}))
    return MAKERS["kimi_vl"](folder)


@pytest.mark.parametrize(("family", "make"), [("lfm2_vl", _lfm2_vl), ("kimi_vl", _kimi_vl)])
def test_what_a_file_does_not_say_is_what_published_models_have(family: str, make: Maker, tmp_path: Path) -> None:
    given = given_files(open_checkpoint(write_pair(tmp_path, make(tmp_path), family)))
    assert given is not None
    own, theirs = ModelProcessor(given), ModelProcessor(tmp_path)
    assert own.written["image"] == theirs.written["image"]
    for size in (*SIZES, (400, 600)):
        assert own.image(picture(*size), {}, alone=True) == theirs.image(picture(*size), {}, alone=True)


@pytest.mark.parametrize(("family", "bounds"), [("qwen2_5_vl", (3136, 12_845_056)), ("qwen3_vl", (65_536, 16_777_216))])
def test_where_a_file_says_no_bounds_of_pixels_they_are_those_of_published_models(
    family: str, bounds: tuple[int, int], tmp_path: Path
) -> None:
    model = FAMILIES[family](tmp_path)
    file = write_pair(tmp_path, model, family)
    unsaid = {"clip.vision.image_min_pixels": None, "clip.vision.image_max_pixels": None}
    write_mmproj(file.parent / "mmproj-m.gguf", model, family, tmp_path, metadata=unsaid)
    given = given_files(open_checkpoint(file))
    assert given is not None
    size = given.files["preprocessor_config.json"]["size"]
    assert (size["shortest_edge"], size["longest_edge"]) == bounds


def test_a_model_that_sees_by_its_own_files_is_given_none(tmp_path: Path) -> None:
    FAMILIES["gemma3"](tmp_path)
    assert given_files(open_checkpoint(tmp_path)) is None


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"clip.vision.image_mean": [0.5]}, "image_mean and image_std are expected to be three numbers each"),
        ({"clip.vision.image_std": [0.5, 0.0, 0.5]}, "image_mean and image_std are expected to be three numbers each"),
        ({"clip.vision.preproc_image_size": 0}, "preproc_image_size is '0', expected a whole number"),
    ],
)
def test_colours_and_sizes_that_cannot_be_are_refused_in_one_line(
    said: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = FAMILIES["idefics3"](tmp_path)
    file = write_pair(tmp_path, model, "idefics3")
    write_mmproj(file.parent / "mmproj-m.gguf", model, "idefics3", tmp_path, metadata=said)
    with pytest.raises(CheckpointError, match=message):
        given_files(open_checkpoint(file))
