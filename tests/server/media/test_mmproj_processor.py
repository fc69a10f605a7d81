"""The processor that a projector file describes makes of pictures what the model's own files would have it make."""

from pathlib import Path
from typing import Any

import pytest

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.server.media.mmproj_processor import given_files
from stentor.server.media.model_processor import ModelProcessor
from stentor.tests.server.media.pictures import picture
from stentor.tests.support.mmproj_files import TEXTS, write_mmproj, write_pair
from stentor.tests.support.vision_models import FAMILIES

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
