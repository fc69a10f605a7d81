"""Models whose code comes with their checkpoints: pictures that stand before texts, their sizes, and files that are
refused."""

import asyncio
import json
import math
from pathlib import Path

import pytest
from safetensors.numpy import load

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.phi4mm import with_tower_of_phi4
from stentor.engine.model_config.hf.text_names import is_of_tower, text_name
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.server.media.processors.processor_classes import ProcessorError
from stentor.server.media.refusal import Refusal
from stentor.tests.server.media.pictures import picture
from stentor.tests.server.media.published import WHOLE
from stentor.tests.server.media.test_own_images import waves
from stentor.tests.server.media.test_prompts import family_in


def test_pictures_of_published_files_of_phi_4_stand_before_the_text(tmp_path: Path) -> None:
    WHOLE["phi4mm"](tmp_path)
    one = family_in(tmp_path)
    content = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "image"}]
    told, placed = one.prompt([{"role": "user", "content": content}], [picture(16, 16), picture(40, 16)])
    text = asyncio.run(one.pool.decode(told, skip_special_tokens=False))
    first, second = ("<|endoftext10|>" * span.length for span in placed.spans)
    assert text == f"<|im_start|>user\n{first}\n{second}\na<|im_end|>\n<|im_start|>assistant\n"


def test_the_one_picture_of_h2ovl_has_two_grids(tmp_path: Path) -> None:
    WHOLE["h2ovl"](tmp_path)
    one = family_in(tmp_path)
    content = [{"type": "text", "text": "a"}, {"type": "image"}]
    told, placed = one.prompt([{"role": "user", "content": content}], [picture(16, 32)])
    text = asyncio.run(one.pool.decode(told, skip_special_tokens=False))
    assert text == f"<|im_start|>user\n<img>{'<IMG_CONTEXT>' * 4 * 9}</img>\na<|im_end|>\n<|im_start|>assistant\n"
    pair = [{"type": "image"}, {"type": "image"}]
    _, placed = one.prompt([{"role": "user", "content": pair}], [picture(16, 32), picture(16, 32)])
    assert placed.tokens["image"] == 2 * 4 * 3


def test_tiles_of_nvlm_are_named_and_the_whole_is_last(tmp_path: Path) -> None:
    WHOLE["nvlm_d"](tmp_path)
    one = family_in(tmp_path)
    content = [{"type": "image"}, {"type": "text", "text": "a"}]
    inside = "<|vision_pad|>" * 4
    whole = f"<tile_global_thumbnail>{inside}"
    for size, expected in (((16, 16), whole), ((32, 16), f"<tile_1>{inside}<tile_2>{inside}{whole}")):
        told, _ = one.prompt([{"role": "user", "content": content}], [picture(*size)])
        text = asyncio.run(one.pool.decode(told, skip_special_tokens=False))
        assert text == f"<|im_start|>user\n<Image>{expected}</Image>\na<|im_end|>\n<|im_start|>assistant\n"


def test_a_picture_of_molmo_is_written_row_by_row_whole_and_as_a_canvas(tmp_path: Path) -> None:
    WHOLE["molmo"](tmp_path)
    one = family_in(tmp_path)
    told, placed = one.prompt([{"role": "user", "content": [{"type": "image"}]}], [picture(40, 60)])
    text = asyncio.run(one.pool.decode(told, skip_special_tokens=False))
    whole, canvas = ("<im_patch>" * columns + "<im_col>" for columns in (4, 6))
    expected = f"<im_start>{whole * 4}<im_end><im_start>{canvas * 8}<im_end>"
    assert text == f"<|im_start|>user\n{expected}<|im_end|>\n<|im_start|>assistant\n"
    assert placed.tokens["image"] == 4 * 4 + 6 * 8


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("overlap_margins", [4, 2], "overlap_margins .4, 2., expected those of the tower"),
        ("image_padding_mask", False, "image_padding_mask is false, expected true"),
    ],
)
def test_pictures_of_molmo_that_its_tower_does_not_see_so_are_refused(
    field: str, value: object, why: str, tmp_path: Path
) -> None:
    WHOLE["molmo"](tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(ProcessorError, match=why):
        ModelProcessor(tmp_path)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"img_processor": {"type_feature": "cls_patch"}}, "type_feature is 'cls_patch', expected 'patch'"),
        (
            {"embd_layer": {"image_embd_layer": {"hd_transform_order": "glb_sub"}}},
            "hd_transform_order is 'glb_sub', expected 'sub_glb'",
        ),
    ],
)
def test_a_tower_of_phi_4_of_another_form_is_refused(config: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        with_tower_of_phi4({"model_type": "phi4mm", "hidden_size": 64, **config})


def test_the_adapters_within_files_of_phi_4_belong_to_no_part() -> None:
    layer = "model.layers.3.mlp.down_proj"
    assert text_name(f"{layer}.base_layer.weight") == f"{layer}.weight"
    assert text_name(f"{layer}.lora_A.vision.weight") is None
    assert not is_of_tower(f"{layer}.lora_A.vision.weight")


def test_no_request_gets_more_patches_of_isaac_than_the_model_has(tmp_path: Path) -> None:
    WHOLE["isaac"](tmp_path)
    processor, grids = ModelProcessor(tmp_path), []
    for options in ({}, {"min_patches": 1 << 30}, {"min_patches": 1 << 30, "max_patches": 4}, {"max_patches": 4}):
        seen = processor.image(waves(8, 8), options, alone=True)
        grids.append(load(seen.payload)["image_grid_thw"][0].tolist())
    most = processor._processor.image_processor.max_patches
    assert math.prod(grids[0]) < math.prod(grids[1]) < 2 * most, "enlarged to whole squares of the model's most patches"
    assert grids[2] == grids[3] == [1, 2, 2]
    with pytest.raises(Refusal, match="has no bounds of pixels; it takes max_patches"):
        processor.image(waves(8, 8), {"max_pixels": 9}, alone=True)


@pytest.mark.parametrize(
    ("change", "tiles"),
    [({}, 3), ({"dynamic_image_size": False}, 1), ({"min_dynamic_patch": 3, "max_dynamic_patch": 3}, 4)],
)
def test_tiles_of_internvl_are_as_many_as_its_files_say(tmp_path: Path, change: dict[str, object], tiles: int) -> None:
    WHOLE["internvl_chat"](tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    found = load(ModelProcessor(tmp_path).image(waves(40, 20), {}, alone=True).payload)
    assert len(found["pixel_values"]) == tiles


def test_pictures_of_internvl_without_other_norms_have_those_of_imagenet(tmp_path: Path) -> None:
    WHOLE["nvlm_d"](tmp_path)
    said = ModelProcessor(tmp_path).image(waves(40, 20), {}, alone=True).payload
    (tmp_path / "preprocessor_config.json").unlink()
    assert ModelProcessor(tmp_path).image(waves(40, 20), {}, alone=True).payload == said
