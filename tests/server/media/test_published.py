"""Models whose code comes with their checkpoints: what the server makes of media for them, beside their towers."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from stentor.engine.layers.layer_context import LayerContext
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.weights import tower_weights
from stentor.engine.models.payload import read_payload
from stentor.engine.models.vision_tower import VisionTower, native_tower
from stentor.server.media.model_processor import ModelProcessor, ProcessorError
from stentor.tests.server.media.pictures import picture
from stentor.tests.server.media.published import WHOLE
from stentor.tests.server.media.test_own_images import waves
from stentor.tests.server.media.test_prompts import Family, family_in


class Whole:
    def __init__(self, folder: Path, name: str) -> None:
        WHOLE[name](folder)
        self.family: Family = family_in(folder)
        checkpoint = open_checkpoint(folder)
        assert checkpoint.described is not None
        context = LayerContext(torch.device("cpu"), torch.float32, invariant=False)
        tower = native_tower(checkpoint.described, checkpoint.decoder.hidden_size, context)
        assert isinstance(tower, VisionTower)
        tower.load(tower_weights(checkpoint))
        self.tower = tower


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp(request.param), request.param)


PROMPTS = {
    "kimi_vl": "<|media_start|>image<|media_content|>{}<|media_end|>",
}
"""What stands in a prompt for a picture, but for its placeholders."""


@pytest.mark.parametrize("whole", WHOLE, indirect=True)
@pytest.mark.parametrize("size", [(30, 40), (90, 17), (64, 64), (9, 9)])
def test_there_are_as_many_placeholders_as_the_tower_makes_embeddings(whole: Whole, size: tuple[int, int]) -> None:
    one = whole.family
    seen = picture(*size)
    tokens, placed = one.prompt([{"role": "user", "content": [{"type": "image"}]}], [seen])
    (span,) = placed.spans
    assert len(whole.tower.encode(read_payload(span.data)).embeddings) == placed.tokens["image"]


@pytest.mark.parametrize(("whole", "written"), PROMPTS.items(), indirect=["whole"])
def test_the_prompt_is_the_published_one(whole: Whole, written: str) -> None:
    one = whole.family
    content = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    tokens, placed = one.prompt([{"role": "user", "content": content}], [picture(40, 30)])
    text = asyncio.run(one.pool.decode(tokens, skip_special_tokens=False))
    placeholder = one.pool.tokenizer.name_of(one.media._ids["image"])
    expected = written.format(placeholder * placed.tokens["image"])
    assert text == f"<|im_start|>user\na{expected}b<|im_end|>\n<|im_start|>assistant\n"


def test_kimis_pictures_are_filled_up_and_have_no_more_patches_than_its_files_say(tmp_path: Path) -> None:
    WHOLE["kimi_vl"](tmp_path)
    processor = ModelProcessor(tmp_path)
    for size, rows, columns in (((18, 21), 6, 6), ((400, 100), 4, 16)):
        found = load(processor.image(waves(*size), {}, alone=True).payload)
        assert found["image_grid_thw"].tolist() == [[1, rows, columns]]
        assert found["pixel_values"].shape == (rows * columns, 3, 4, 4)
    whole = load(processor.image(waves(18, 21), {}, alone=True).payload)["pixel_values"]
    drawn = np.asarray(waves(18, 21))[:4, :4].transpose(2, 0, 1)
    assert whole[0] == pytest.approx(drawn / 127.5 - 1, abs=1e-6)
    assert (whole[-1] == -1).all(), "what fills it up is black"


def test_pictures_that_are_to_be_cropped_are_refused(tmp_path: Path) -> None:
    WHOLE["kimi_vl"](tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(file.read_text().replace('"pad_input": true', '"pad_input": false'))
    with pytest.raises(ProcessorError, match="pad_input is false, expected true"):
        ModelProcessor(tmp_path)
