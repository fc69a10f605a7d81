"""Models whose code comes with their checkpoints: what the server makes of media for them, beside their towers."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.companions import described_model
from stentor.engine.loading.weights import tower_weights
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.deepseek_ocr import with_known_tower
from stentor.engine.model_config.towers.media_spec import media_spec
from stentor.engine.model_config.towers.vision_hf import vision_spec_from_hf
from stentor.engine.models.towers.payload import read_payload
from stentor.engine.models.towers.vision_tower import native_tower
from stentor.server.app.media import spec_in
from stentor.server.media.chat_media import ConversationMedia
from stentor.server.media.processed_cache import ProcessedMedia
from stentor.server.media.processors.images.ovis import covering
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.server.media.processors.processor_classes import ProcessorError
from stentor.server.text.errors import TemplateError
from stentor.server.text.templates.placeholders import INDEX
from stentor.tests.server.media.families import PROCESSED
from stentor.tests.server.media.pictures import picture
from stentor.tests.server.media.published import WHOLE, Whole
from stentor.tests.server.media.test_model_processor import film
from stentor.tests.server.media.test_own_images import waves
from stentor.tests.server.media.test_prompts import family_in
from stentor.tests.support.vision_models import SIDE, SPECIAL, write_tokenizer


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp(request.param), request.param)


PROMPTS = {
    "eagle2_5": "<image 1><img>{}</img>",
    "bee": "{}\n",
    "chatglm_4v": "<|begin_of_image|>{}<|end_of_image|>",
    "deepseek_ocr": "{}\n",
    "deepseek_v41": "{}",
    "deepseek_vl2": "{}\n",
    "dots_ocr": "<|img|>{}<|endofimg|>",
    "internvl_chat": "<img>{}</img>\n",
    "qianfan_ocr": "<img>{}</img>\n",
    "isaac": "{}",
    "kanana_v": "{}",
    "keye": "<|vision_start|>{}<|vision_end|>",
    "ling3_vl": "<|vision_start|>{}<|vision_end|>\n",
    "llava_onevision2": "<|vision_start|>{}<|vision_end|>",
    "opencua": "<|media_begin|>image<|media_content|>{}<|media_end|>",
    "openpangu_vl": "[unused18]{}[unused20]",
    "skywork_r1v": "<img>{}</img>\n",
    "ovis2_6": "{}\n",
    "unlimited_ocr_published": "{}\n",
    "phi3_v": "{}",
    "kimi_k3": "<|media_begin|>image 40x30<|media_content|>{}<|media_end|>",
    "kimi_vl": "<|media_start|>image<|media_content|>{}<|media_end|>",
    "llama_nemotron_vl": "<img>{}</img>\n",
    "ovis": "{}\n",
    "ovis2_5": "{}\n",
}
"""What stands in a prompt for a picture, but for its placeholders."""


@pytest.mark.parametrize(
    "whole", [*PROMPTS, "h2ovl", "nvlm_d", "minicpmv_2_6", "molmo", "phi4mm", "phi4_siglip", "step_vl"], indirect=True
)
@pytest.mark.parametrize("size", [(30, 40), (90, 17), (64, 64), (9, 9)])
def test_there_are_as_many_placeholders_as_the_tower_makes_embeddings(whole: Whole, size: tuple[int, int]) -> None:
    one = whole.family
    seen = picture(*size)
    _, placed = one.prompt([{"role": "user", "content": [{"type": "image"}]}], [seen])
    (span,) = placed.spans
    assert len(whole.tower.encode(read_payload(bytes(span.data))).embeddings) == placed.tokens["image"]


@pytest.mark.parametrize(("whole", "written"), PROMPTS.items(), indirect=["whole"])
def test_the_prompt_is_the_published_one(whole: Whole, written: str) -> None:
    one = whole.family
    content = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    tokens, placed = one.prompt([{"role": "user", "content": content}], [picture(40, 30)])
    text = asyncio.run(one.pool.decode(tokens, skip_special_tokens=False))
    placeholder = one.pool.tokenizer.name_of(one.media._ids["image"])
    expected = written.format(placeholder * placed.tokens["image"])
    assert text == f"<|im_start|>user\na{expected}b<|im_end|>\n<|im_start|>assistant\n"


def test_pictures_of_eagle_are_numbered(tmp_path: Path) -> None:
    WHOLE["eagle2_5"](tmp_path)
    one = family_in(tmp_path)
    content = [{"type": "image"}, {"type": "text", "text": "a"}, {"type": "image"}]
    told, placed = one.prompt([{"role": "user", "content": content}], [picture(16, 16), picture(40, 16)])
    text = asyncio.run(one.pool.decode(told, skip_special_tokens=False))
    small, wide = "<IMG_CONTEXT>" * 4, "<IMG_CONTEXT>" * (4 * placed.spans[1].length // 4)
    expected = f"<image 1><img>{small}</img>a<image 2><img>{wide}</img>"
    assert text == f"<|im_start|>user\n{expected}<|im_end|>\n<|im_start|>assistant\n"
    assert placed.spans[1].length > 4


def test_large_pictures_of_llama_nemotron_have_more_tiles_rather_than_the_closest_shape(tmp_path: Path) -> None:
    WHOLE["llama_nemotron_vl"](tmp_path)
    one = family_in(tmp_path)
    asked = [{"role": "user", "content": [{"type": "image"}]}]
    small, large = (one.prompt(asked, [picture(*size)])[1].tokens["image"] for size in ((16, 16), (100, 120)))
    assert large == 7 * small, "three by two and the whole, where InternVL's rule takes two by two"


def test_the_texts_behind_pictures_of_phi_3_begin_as_those_of_its_tokenizer(tmp_path: Path) -> None:
    WHOLE["phi3_v"](tmp_path)
    written = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    special = ["<|image|>" if each == "<image>" else each for each in SPECIAL]
    write_tokenizer(tmp_path, written, bos=True, special=special)
    one = family_in(tmp_path)
    content = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "image"}]
    told, placed = one.prompt([{"role": "user", "content": content}], [picture(16, 16), picture(40, 16)])
    text = asyncio.run(one.pool.decode(told, skip_special_tokens=False))
    first, second = ("<|image|>" * span.length for span in placed.spans)
    assert text == f"<s>{first}<s>\n{second}<s>\na"


def test_a_published_file_of_phi_3_has_the_clip_that_it_names() -> None:
    spec = vision_spec_from_hf({"model_type": "phi3_v", "img_processor": {"name": "clip_vision_model"}}, 3072)
    assert (spec.hidden_size, len(spec.layers), spec.side, spec.mark_size) == (1024, 23, 24, 4096)


def test_canvases_of_deepseek_vl2_that_are_no_whole_tiles_are_refused(tmp_path: Path) -> None:
    WHOLE["deepseek_vl2"](tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "candidate_resolutions": [[21, 20]]}))
    with pytest.raises(ProcessorError, match="candidate_resolutions is no list of widths and heights that are mult"):
        ModelProcessor(tmp_path)


@pytest.mark.parametrize("text", ["<image-1>", "<image-2>", "<image-07>"])
def test_a_text_that_holds_a_numbered_place_is_refused_beside_pictures(tmp_path: Path, text: str) -> None:
    WHOLE["eagle2_5"](tmp_path)
    content = [{"type": "text", "text": text}, {"type": "image"}]
    with pytest.raises(TemplateError, match="The conversation holds `<image-1>` 2 times, which stands for image input"):
        family_in(tmp_path).prompt([{"role": "user", "content": content}], [picture(16, 16)])


def test_registers_are_filled_up_to_a_multiple_as_the_published_sizes_say() -> None:
    teachers = [{"name": name} for name in ("clip", "siglip2", "dino_v2", "sam")]
    args = {"model": "vit_huge_patch16_224", "register_multiple": 8, "teachers": teachers}
    spec = vision_spec_from_hf({"model_type": "NemotronH_Nano_VL_V2", "vision_config": {"args": args}}, 64)
    assert (spec.registers, spec.hidden_size, len(spec.layers), spec.side) == (8, 1280, 32, 32)


@pytest.mark.parametrize("name", ["kimi_k3", "kimi_vl"])
def test_kimis_pictures_are_filled_up_and_have_no_more_patches_than_its_files_say(name: str, tmp_path: Path) -> None:
    WHOLE[name](tmp_path)
    processor = ModelProcessor(tmp_path)
    for size, rows, columns in (((18, 21), 6, 6), ((400, 100), 4, 16)):
        found = load(processor.image(waves(*size), {}, alone=True).payload)
        assert found["image_grid_thw"].tolist() == [[1, rows, columns]]
        assert found["pixel_values"].shape == (rows * columns, 3, 4, 4)
    whole = load(processor.image(waves(18, 21), {}, alone=True).payload)["pixel_values"]
    drawn = np.asarray(waves(18, 21))[:4, :4].transpose(2, 0, 1)
    assert whole[0] == pytest.approx(drawn / 127.5 - 1, abs=1e-6)
    assert (whole[-1] == -1).all(), "what fills it up is black"


@pytest.mark.parametrize("whole", ["step_vl"], indirect=True)
def test_squares_of_step_stand_before_the_whole(whole: Whole) -> None:
    seen = whole.family.processor.image(waves(64, 32), {}, alone=True).replacement
    square = f"<patch_start>{'<im_patch>' * 4}<patch_end>"
    assert seen == f"{square * 2}<im_start><im_patch><im_end>"


@pytest.mark.parametrize(
    ("like", "architecture", "processor"),
    [
        ("internvl", "InternS1ForConditionalGeneration", "InternS1Processor"),
        ("lighton_ocr", "LightOnOCRForConditionalGeneration", "LightOnOCRProcessor"),
        ("hyperclovax_vision", "HCXVisionV2ForCausalLM", "HCXVisionV2Processor"),
    ],
)
def test_pictures_of_another_name_are_processed_as_those_of_its_files(
    like: str, architecture: str, processor: str, tmp_path: Path
) -> None:
    PROCESSED[like](tmp_path)
    expected = ModelProcessor(tmp_path).image(waves(40, 30), {}, alone=True)
    renamed: dict[str, dict[str, object]] = {
        "config.json": {"architectures": [architecture], "model_type": "x"},
        "processor_config.json": {"processor_class": processor},
    }
    for file, values in renamed.items():
        (tmp_path / file).write_text(json.dumps({**json.loads((tmp_path / file).read_text()), **values}))
    found = ModelProcessor(tmp_path).image(waves(40, 30), {}, alone=True)
    assert (found.payload, found.replacement) == (expected.payload, expected.replacement)
    assert spec_in(tmp_path) is not None


def test_bounds_of_pictures_that_only_code_names_are_refused(tmp_path: Path) -> None:
    WHOLE["keye"](tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(file.read_text().replace('"max_pixels": 1024, ', ""))
    with pytest.raises(ProcessorError, match="max_pixels is missing in preprocessor_config"):
        ModelProcessor(tmp_path)


@pytest.mark.parametrize("whole", ["dots_ocr", "llava_onevision2", "minicpmv_2_6"], indirect=True)
def test_a_picture_is_about_the_same_in_bfloat16_with_weights_packed_for_a_cpu(whole: Whole) -> None:
    checkpoint = open_checkpoint(whole.folder)
    assert checkpoint.described is not None
    context = LayerContext(torch.device("cpu"), torch.bfloat16, invariant=False, packed=True)
    tower = native_tower(checkpoint.described, checkpoint.decoder.hidden_size, context)
    assert tower is not None
    tower.load(tower_weights(checkpoint))
    payload = read_payload(whole.family.processor.image(waves(64, 40), {}, alone=True).payload)
    exact, found = (each.encode(payload).embeddings.float() for each in (whole.tower, tower))
    assert (found - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("whole", ["minicpmv_2_6"], indirect=True)
def test_pictures_of_minicpm_are_numbered_and_stand_before_the_text(whole: Whole) -> None:
    content = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "image"}]
    told, _ = whole.family.prompt([{"role": "user", "content": content}], [picture(40, 30), picture(16, 16)])
    text = asyncio.run(whole.family.pool.decode(told, skip_special_tokens=False))
    seen = [f"<image_id>{number}</image_id><image>{'<unk>' * 6}</image>\n" for number in range(2)]
    assert text == f"<|im_start|>user\n{''.join(seen)}a<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("whole", ["minicpmv_2_6"], indirect=True)
def test_slices_of_minicpm_stand_in_rows_behind_the_whole(whole: Whole) -> None:
    seen = whole.family.processor.image(waves(80, 40), {}, alone=True)
    inside = "<unk>" * 6
    piece = f"<slice>{inside}</slice>"
    assert seen.replacement == f"<image_id>{INDEX}</image_id><image>{inside}</image>{piece * 2}"
    assert load(seen.payload)["image_grid_thw"].tolist() == [[1, 7, 14], [1, 10, 10], [1, 10, 10]]
    tall = whole.family.processor.image(waves(40, 80), {}, alone=True)
    assert tall.replacement.endswith(f"</image>{piece}\n{piece}")
    low = whole.family.processor.image(waves(80, 40), {"detail": "low"}, alone=True)
    assert low.replacement == f"<image_id>{INDEX}</image_id><image>{inside}</image>"


def test_a_slice_of_minicpm_is_the_picture_resized_to_whole_patches(tmp_path: Path) -> None:
    WHOLE["minicpmv_2_6"](tmp_path)
    picture = waves(44, 30)
    found = load(ModelProcessor(tmp_path).image(picture, {}, alone=True).payload)
    (_, rows, columns) = found["image_grid_thw"][0].tolist()
    drawn = np.asarray(picture.resize((4 * columns, 4 * rows), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    made = found["pixel_values"][: rows * columns].reshape(rows, columns, 3, 4, 4).transpose(2, 0, 3, 1, 4)
    assert made.reshape(3, 4 * rows, 4 * columns) == pytest.approx(drawn / 127.5 - 1, abs=1e-6)
    assert (rows, columns) == (8, 12), "of an area of 40 x 40 pixels, in the shape of 30 x 44"


def test_a_placeholder_without_a_number_has_that_of_the_tokenizer(tmp_path: Path) -> None:
    config = {"model_type": "minicpmv", "version": 2.6}
    assert described_model(tmp_path, config) == config
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 128_244, "content": "<unk>"}]}))
    assert described_model(tmp_path, config)["image_token_id"] == 128_244
    named = {"added_tokens_decoder": {"7": {"content": "<unk>"}, "x": {"content": "<unk>"}, "8": None}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    assert described_model(tmp_path, config)["image_token_id"] == 7
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<unk>": 6, "<image>": "5"}))
    assert described_model(tmp_path, config)["image_token_id"] == 6
    assert described_model(tmp_path, {**config, "image_token_id": 5})["image_token_id"] == 5


@pytest.mark.parametrize(
    ("size", "grid"),
    # of the makers' code, for squares of 448 pixels
    [((300, 200), (1, 1)), ((1000, 700), (2, 3)), ((2000, 300), (1, 5)), ((33, 700), (2, 1)), ((5000, 4000), (3, 3))],
)
def test_pictures_of_ovis_2_have_the_fewest_tiles_that_keep_most_pixels(
    size: tuple[int, int], grid: tuple[int, int]
) -> None:
    assert covering(size[1], size[0], 448, 9) == grid


def test_tiles_of_ovis_2_keep_their_shape_between_zeros(tmp_path: Path) -> None:
    WHOLE["ovis"](tmp_path)
    shown = waves(2 * SIDE, SIDE)
    found = load(ModelProcessor(tmp_path).image(shown, {}, alone=True).payload)
    assert found["grids"].tolist() == [[1, 2]]
    whole, *tiles = found["pixel_values"]
    quarter = SIDE // 4
    assert not whole[:, :quarter].any()
    assert not whole[:, -quarter:].any()
    mean, std = (np.array(each)[:, None, None] for each in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))
    drawn = (np.asarray(shown).transpose(2, 0, 1) / 255 - mean) / std
    for number, tile in enumerate(tiles):
        assert tile == pytest.approx(drawn[:, :, number * SIDE : (number + 1) * SIDE], abs=1e-5)
    coarse = load(ModelProcessor(tmp_path).image(shown, {"detail": "low"}, alone=True).payload)
    assert coarse["grids"].tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("size", "grid"),
    [((24, 16), (4, 6)), ((40, 30), (6, 8)), ((8, 90), (22, 2)), ((5, 5), (4, 4)), ((4, 999), (32, 2))],
)
def test_pictures_of_ovis_keep_their_shape_in_squares_of_patches(
    tmp_path: Path, size: tuple[int, int], grid: tuple[int, int]
) -> None:
    WHOLE["ovis2_5"](tmp_path)
    found = load(ModelProcessor(tmp_path).image(waves(*size), {}, alone=True).payload)
    assert found["image_grid_thw"].tolist() == [[1, *grid]]
    assert found["pixel_values"].shape == (grid[0] * grid[1], 3 * 4 * 4)
    if size == (24, 16):  # as large as it may be: each patch is a piece of it, and four stand beside each other
        drawn = np.asarray(waves(*size)).transpose(2, 0, 1) / 127.5 - 1
        for number, (row, column) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1), (0, 2)]):
            piece = drawn[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            assert found["pixel_values"][number] == pytest.approx(piece.flatten(), abs=1e-6)


@pytest.mark.parametrize("whole", ["ovis2_5"], indirect=True)
def test_a_video_of_ovis_is_its_frames_between_two_marks(whole: Whole) -> None:
    one = whole.family
    seen = one.processor.video(film(3))
    tensors = load(seen.payload)
    frames, rows, columns = tensors["video_grid_thw"][0].tolist()
    count = frames * rows * columns // 4 + 2
    assert (frames, seen.replacement) == (3, "<|image_pad|>" * count)
    assert len(whole.tower.encode(read_payload(seen.payload)).embeddings) == count
    made = ProcessedMedia("video", bytes(16), seen.payload, one.processor.written["video"], seen.replacement, seen.grid)
    told, placed = one.written(
        [{"role": "user", "content": [{"type": "video"}]}], ConversationMedia([made], ["messages"])
    )
    text = asyncio.run(one.pool.decode(told, skip_special_tokens=False))
    assert text == f"<|im_start|>user\n{seen.replacement}\n<|im_end|>\n<|im_start|>assistant\n"
    assert placed.tokens == {"video": count}


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("ovis2_5", "qwen3", 151_655),
        ("ovis", "qwen2", 151_655),
        ("internvl_chat", "qwen2", 151_667),
        ("internvl_chat", "qwen3", 151_671),
    ],
)
def test_a_placeholder_that_published_files_leave_out_is_known(kind: str, text: str, expected: int) -> None:
    spec = media_spec({"model_type": kind, "llm_config": {"model_type": text}})
    assert spec is not None
    assert spec.placeholders == {"image": expected}


def test_pictures_of_internvl_whose_decoder_has_an_unknown_placeholder_are_not_taken() -> None:
    assert media_spec({"model_type": "internvl_chat", "llm_config": {"model_type": "gpt_oss"}}) is None


def test_the_second_deepseek_ocr_has_the_tower_of_transformers_class() -> None:
    published = {"architectures": ["DeepseekOCR2ForCausalLM"], "model_type": "deepseek_vl_v2", "vocab_size": 129_280}
    known = with_known_tower({**published, "hidden_size": 1280, "num_attention_heads": 10, "vision_config": {}})
    assert (known["model_type"], known["image_token_id"]) == ("deepseek_ocr2", 128_815)
    spec = media_spec(published)
    assert spec is not None
    assert spec.placeholders == {"image": 128_815}


@pytest.mark.parametrize(("change", "count"), [({"image_size": 1106}, 6401), ({"num_positions": 6400}, 6400)])
def test_a_tower_of_glm_4v_has_a_position_for_each_patch_of_whole_squares(change: dict[str, int], count: int) -> None:
    config = {"model_type": "chatglm_4v", "boi_token_id": 1, "eoi_token_id": 2, "vision_config": {**change}}
    with pytest.raises(ConfigError, match=f"num_positions is {count} for pictures of"):
        vision_spec_from_hf(config, 64)


def test_kimis_learned_positions_are_a_square() -> None:
    vision = {"init_pos_emb_height": 64, "init_pos_emb_width": 32}
    with pytest.raises(ConfigError, match="are 64 and 32, expected a square"):
        vision_spec_from_hf({"model_type": "kimi_vl", "vision_config": vision}, 64)


def test_pictures_that_are_to_be_cropped_are_refused(tmp_path: Path) -> None:
    WHOLE["kimi_vl"](tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(file.read_text().replace('"pad_input": true', '"pad_input": false'))
    with pytest.raises(ProcessorError, match="pad_input is false, expected true"):
        ModelProcessor(tmp_path)
