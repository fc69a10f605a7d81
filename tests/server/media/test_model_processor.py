"""What is made of pictures for a model, against transformers: tensors, and how many tokens stand for them."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load

from stentor.engine.model_config.towers.media_spec import MediaAxes
from stentor.engine.models.transformers.tower import _METHODS
from stentor.engine.worker.media.canvas_positions import canvas_positions
from stentor.engine.worker.media.positions import MediaPositions
from stentor.protocols.ipc.steps import RowSpan
from stentor.server.media.decoding.decode_video import DecodedVideo, VideoFacts
from stentor.server.media.processors.model_files import ModelFiles
from stentor.server.media.processors.model_processor import ModelInputs, ModelProcessor
from stentor.server.media.processors.model_videos import VideoSettings, lined_grid
from stentor.server.media.processors.pictures import spelled
from stentor.server.media.processors.processor_classes import ProcessorError
from stentor.server.media.refusal import Refusal
from stentor.tests.server.media.families import LAID_OUT, PROCESSED
from stentor.tests.server.media.pictures import picture

SIZES = ((30, 40), (90, 17), (64, 64))
Made = tuple[ModelProcessor, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """A family's processor and transformers' model of it, made once."""
    kept: dict[str, Made] = {}

    def make(family: str) -> Made:
        if family not in kept:
            folder = tmp_path_factory.mktemp(family)
            model = {**PROCESSED, **LAID_OUT}[family](folder)
            kept[family] = ModelProcessor(folder), model
        return kept[family]

    return make


def embeddings(model: Any, inputs: ModelInputs) -> torch.Tensor:
    """The embeddings that transformers' tower makes of the payload."""
    own = _METHODS.get((type(model).__name__, "image"))
    with torch.no_grad():
        if own is not None:
            return own(model, **load(inputs.payload))
        found = getattr(model, "model", model).get_image_features(**load(inputs.payload))
    if type(model).__name__ == "Granite4VisionForConditionalGeneration":
        ((_, found), *_) = found.deepstack_features
    elif (pooled := getattr(found, "pooler_output", None)) is not None:
        found = pooled
    elif not isinstance(found, torch.Tensor | list | tuple):
        found = found.last_hidden_state  # Llama 4 projects it later
    rows = torch.cat(list(found)) if isinstance(found, list | tuple) else found
    return rows.reshape(-1, rows.shape[-1])


@pytest.mark.parametrize("family", [*PROCESSED, *LAID_OUT])
def test_there_are_as_many_placeholders_as_the_models_own_encoder_makes_embeddings(
    family: str, made: Callable[[str], Made]
) -> None:
    processor, model = made(family)
    config = model.config
    id = getattr(config, "image_token_id", None) or getattr(config, "image_token_index", None)
    id = config.vision_config.image_token_id if id is None else id
    tokenizer = getattr(processor._processor, "tokenizer", None)  # a processor of ours may have none
    text_of = processor._processor.image_token if tokenizer is None else tokenizer.convert_ids_to_tokens(id)
    for width, height in SIZES:
        for alone in (True, False):
            inputs = processor.image(picture(width, height), {}, alone=alone)
            count = inputs.replacement.count(text_of)
            # tokens attend to all that is made of a picture of Llama 3.2 Vision, which is one token itself
            own = 1 if family == "mllama" else len(embeddings(model, inputs))
            assert count == own, (width, height, alone)
            if inputs.grid is not None:
                if family == "minicpmv4_7":
                    continue  # runs of it are placed below
                axes: MediaAxes = "numbered" if family == "hunyuan_vl" else "grid"
                MediaPositions.of(count, [(RowSpan(0, 0, count, inputs.grid), [(0, count)])], axes)


@pytest.mark.parametrize(("family", "size"), [("pixtral", (3000, 1)), ("idefics2", (1, 1))])
def test_a_picture_of_which_nothing_would_be_left_is_refused_by_its_size(
    family: str, size: tuple[int, int], made: Callable[[str], Made]
) -> None:
    processor, _ = made(family)
    with pytest.raises(Refusal, match=f"of its {size[0]} x {size[1]} pixels a side becomes shorter than one"):
        processor.image(picture(*size), {}, alone=True)


@pytest.mark.parametrize("size", [(20, 20), (90, 33), (33, 90)])
def test_placeholders_of_a_picture_and_its_slices_fit_their_canvas(
    size: tuple[int, int], made: Callable[[str], Made]
) -> None:
    processor, model = made("minicpmv4_7")
    inputs = processor.image(picture(*size), {}, alone=True)
    tokens = np.array(processor._processor.tokenizer(inputs.replacement, add_special_tokens=False)["input_ids"])
    at = np.flatnonzero(tokens == model.config.image_token_id)
    runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)]
    found = canvas_positions(tokens, [(RowSpan(0, runs[0][0], len(tokens), inputs.grid), runs)], [])
    assert (len(runs) > 1) == (size != (20, 20))
    assert found.axes[at].min(axis=0).tolist() == [runs[0][0] - 1] * 3, "the origin is behind the picture's number"


OWN = (
    *("cohere2_vision", "gemma4_unified", "kimi_k25", "lfm2_vl", "llama4", "molmo2", "perception_lm"),
    *("phi4_multimodal", "step"),
)
"""Of which transformers has no image processor without torchvision."""


@pytest.mark.parametrize("family", [family for family in PROCESSED if family not in OWN])
def test_tensors_are_what_transformers_own_processor_makes(family: str, made: Callable[[str], Made]) -> None:
    processor, _ = made(family)
    seen = picture(50, 21)
    ours = load(processor.image(seen, {}, alone=True).payload)
    own = processor._processor.image_processor(**_own_arguments(family), images=[[seen]], return_tensors="pt")
    for name, values in ours.items():
        assert torch.equal(values, own[name]), name
        assert values.dtype in (torch.float32, torch.int64, torch.bool), name


def _own_arguments(family: str) -> dict[str, object]:
    """What transformers' processor of pictures and text hands to the one of pictures."""
    match family:
        case "internvl":
            return {"crop_to_patches": True}
        case "pixtral" | "mistral3":
            return {"patch_size": 8 if family == "mistral3" else 4}
        case _:
            return {}


def test_the_payload_says_its_modality(made: Callable[[str], Made], tmp_path: Path) -> None:
    processor, _ = made("qwen2_5_vl")
    file = tmp_path / "payload"
    file.write_bytes(processor.image(picture(30, 40), {}, alone=True).payload)
    with safe_open(file, "pt") as opened:
        assert opened.metadata() == {"modality": "image"}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen2_5_vl", {"max_pixels": 1024}),
        ("qwen3_vl", {"size": {"shortest_edge": 256, "longest_edge": 1024}}),
        ("idefics3", {"do_image_splitting": False}),
        ("idefics3", {"detail": "low"}),
        ("internvl", {"crop_to_patches": False}),
        ("internvl", {"detail": "low"}),
        ("mistral3", {"size": {"longest_edge": 16}}),
    ],
)
def test_a_request_may_ask_for_a_coarser_look(
    family: str, options: dict[str, object], made: Callable[[str], Made]
) -> None:
    processor, model = made(family)
    whole = processor.image(picture(64, 64), {}, alone=True)
    coarse = processor.image(picture(64, 64), options, alone=True)
    assert 0 < len(embeddings(model, coarse)) < len(embeddings(model, whole))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "mistral3"])
def test_nobody_gets_a_finer_look_than_the_model_has(family: str, made: Callable[[str], Made]) -> None:
    processor, _ = made(family)
    whole = processor.image(picture(200, 200), {}, alone=True)
    size = {"shortest_edge": 1 << 20, "longest_edge": 1 << 20} if family == "qwen2_5_vl" else {"longest_edge": 4096}
    assert processor.image(picture(200, 200), {"size": size}, alone=True).replacement == whole.replacement


@pytest.mark.parametrize(("family", "name"), [("internvl", "max_patches"), ("gemma4_large", "max_soft_tokens")])
def test_nobody_gets_more_tiles_or_tokens_than_the_model_has(
    family: str, name: str, made: Callable[[str], Made]
) -> None:
    processor, _ = made(family)
    whole, more = (processor.image(picture(90, 17), each, alone=True).replacement for each in ({}, {name: 1120}))
    assert more == whole


@pytest.mark.parametrize(
    ("family", "options", "why"),
    [
        ("gemma3", {"size": {"longest_edge": 8}}, "no bounds of pixels: it sees all pictures in one size"),
        ("qwen2_5_vl", {"do_pan_and_scan": True}, "has no do_pan_and_scan"),
    ],
)
def test_an_option_that_the_model_has_not_is_refused(
    family: str, options: dict[str, object], why: str, made: Callable[[str], Made]
) -> None:
    processor, _ = made(family)
    with pytest.raises(Refusal, match=why):
        processor.image(picture(30, 40), options, alone=True)


def test_a_default_holds_unless_a_request_or_a_low_detail_says_otherwise(tmp_path: Path) -> None:
    PROCESSED["qwen2_5_vl"](tmp_path)
    whole, usual, small = (ModelProcessor(tmp_path, each) for each in ({}, {"max_pixels": 768}, {"max_pixels": 256}))

    def seen(processor: ModelProcessor, **options: object) -> str:
        return processor.image(picture(64, 64), options, alone=True).replacement

    assert seen(usual) == seen(whole, max_pixels=768)
    assert seen(usual, size={"longest_edge": 256}) == seen(small) == seen(small, detail="low")
    assert len(seen(usual, max_pixels=1 << 20)) > len(seen(usual)) > len(seen(small))


def test_a_default_that_the_model_has_not_is_an_error_of_the_operator(tmp_path: Path) -> None:
    PROCESSED["qwen2_5_vl"](tmp_path)
    with pytest.raises(ProcessorError, match="--mm-processor-kwargs: the model's processor has no do_pan_and_scan"):
        ModelProcessor(tmp_path, {"do_pan_and_scan": True})


def test_a_model_of_a_family_that_hears_may_be_deaf(made: Callable[[str], Made]) -> None:
    processor, _ = made("gemma4_large")
    assert processor.written.keys() == {"image", "video"}
    assert processor.missing == {"audio": "the model has no encoder of sounds"}


def film(count: int, fps: float = 2.0, *, still: bool = False) -> DecodedVideo:
    """Frames of noise."""
    frames = np.stack([np.asarray(picture(40, 30, 0 if still else number)) for number in range(count)])
    return DecodedVideo(frames, list(range(count)), VideoFacts(count, fps, 40, 30))


def video_embeddings(model: Any, payload: bytes) -> torch.Tensor:
    tensors = load(payload)
    method = model.model.get_image_features if "pixel_values" in tensors else model.model.get_video_features
    with torch.no_grad():
        found = method(**tensors)
    found = getattr(found, "pooler_output", found)
    rows = torch.cat(list(found)) if isinstance(found, list | tuple) else found
    return rows.reshape(-1, rows.shape[-1])


@pytest.mark.parametrize("frames", [1, 5, 6])
@pytest.mark.parametrize(
    "family",
    [
        *("qwen2_5_vl", "qwen3_vl", "internvl", "llava_onevision", "glm4v", "glm46v", "gemma4_large", "smolvlm"),
        *("cosmos3_edge", "hy_v4_vl", "llava_next_video", "video_llava"),
    ],
)
def test_a_video_has_as_many_placeholders_as_embeddings(family: str, frames: int, made: Callable[[str], Made]) -> None:
    processor, model = made(family)
    inputs = processor.video(film(frames))
    tokenizer = processor._processor.tokenizer
    config = model.config
    ids = {getattr(config, "video_token_id", None), getattr(config, "video_token_index", None), config.image_token_id}
    text = tokenizer(inputs.replacement, add_special_tokens=False)["input_ids"]
    count = sum(token in ids for token in text)
    assert count == len(video_embeddings(model, inputs.payload)) > 0
    if family.startswith(("qwen", "glm", "cosmos", "hy_v4")):
        assert inputs.grid is not None
        assert inputs.grid[0] == (frames if family in ("cosmos3_edge", "hy_v4_vl") else (frames + 1) // 2)
        assert count == inputs.grid[0] * inputs.grid[1] * inputs.grid[2]
    else:
        assert inputs.grid is None


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "glm46v", "hy_v4_vl"])
def test_a_request_may_ask_for_a_coarser_look_at_a_video(family: str, made: Callable[[str], Made]) -> None:
    processor, _ = made(family)
    whole = processor.video(film(4)).payload
    assert len(processor.video(film(4), {"max_pixels": 1024}).payload) < len(whole)
    assert len(processor.video(film(4), {"max_pixels": 1 << 30}).payload) == len(whole)


@pytest.mark.parametrize(
    ("frame", "count", "most", "of_frame", "expected"),
    [
        ((720, 1280), 1, 1 << 25, 1 << 20, (704, 1280)),
        ((720, 1280), 50, 1 << 25, 1 << 20, (608, 1056)),
        ((1080, 1920), 300, 24 << 20, 1 << 20, (192, 384)),
        ((37, 399), 3, 300_000, 90_000, (32, 384)),
        ((16, 3), 1, 10_000, 5_000, (32, 32)),
        ((411, 41), 50, 300_000, 90_000, (64, 32)),
    ],
)
def test_frames_of_hy4_have_the_size_that_transformers_gives_them(
    frame: tuple[int, int], count: int, most: int, of_frame: int, expected: tuple[int, int]
) -> None:
    """By its video processor, whose module cannot be imported without torchvision."""
    rows, columns = lined_grid(*frame, count, 32, most, of_frame)
    assert (32 * rows, 32 * columns) == expected


def test_frames_of_hy4_have_the_most_rows_and_then_columns_within_their_bounds() -> None:
    for height, width, count in itertools.product((3, 37, 100, 411), (16, 41, 399), (1, 50)):
        for most, of_frame in ((160, 80), (4_000, 1_400), (500_000, 16_000)):  # in squares
            within = [
                (rows, columns)
                for rows in range(1, max(1, height // 8) + 1)
                for columns in range(1, max(1, width // 8) + 1)
                if count * rows * (columns + 1) <= most
                and rows * columns <= of_frame
                and (rows == 1 or columns >= width * rows // height)
                and (columns == 1 or columns * height < width * (rows + 1))
            ]
            found = lined_grid(height, width, count, 8, most * 64, of_frame * 64)
            assert found == max(within, default=(1, 1)), (height, width, count, most)


def test_a_frame_of_hy4_with_one_side_far_longer_than_the_other_is_refused(made: Callable[[str], Made]) -> None:
    processor, _ = made("hy_v4_vl")
    frames = np.zeros((1, 2, 402, 3), np.uint8)
    with pytest.raises(Refusal, match="frames of 402 x 2 pixels have a side more than 200 times as long"):
        processor.video(DecodedVideo(frames, [0], VideoFacts(1, 2.0, 402, 2)))


def test_a_frame_of_hy4_whose_size_fits_is_the_picture_that_it_shows(made: Callable[[str], Made]) -> None:
    processor, _ = made("hy_v4_vl")
    frames = np.stack([np.asarray(picture(40, 32, number)) for number in range(2)])
    inputs = processor.video(DecodedVideo(frames, [0, 1], VideoFacts(2, 2.0, 40, 32)))
    shown = [load(processor.image(picture(40, 32, number), {}, alone=True).payload) for number in range(2)]
    found = load(inputs.payload)
    assert torch.equal(found["pixel_values_videos"], torch.cat([each["pixel_values"] for each in shown]))
    assert found["video_grid_thw"].tolist() == [[2, 8, 10]]
    assert inputs.grid == (2, 4, 6)


def test_two_equal_frames_are_a_picture(made: Callable[[str], Made]) -> None:
    """Of which the model sees two as well."""
    processor, _ = made("qwen2_5_vl")
    seen = load(processor.image(picture(40, 30), {}, alone=True).payload)
    film_of_it = load(processor.video(film(2, still=True)).payload)
    assert torch.equal(film_of_it["pixel_values_videos"], seen["pixel_values"])
    assert torch.equal(film_of_it["video_grid_thw"], seen["image_grid_thw"])


def test_frames_lie_on_each_other_as_transformers_lays_them(made: Callable[[str], Made]) -> None:
    """The formula of its video processor, which cannot be run without torchvision."""
    processor, _ = made("qwen2_5_vl")
    rows = load(processor.video(film(4)).payload)["pixel_values_videos"]
    images = processor._processor.image_processor
    grid_t, grid_h, grid_w = 2, 8, 10
    each = [images([picture(40, 30, number)], return_tensors="pt")["pixel_values"] for number in range(4)]
    for pair in range(grid_t):
        shown = rows[pair * grid_h * grid_w : (pair + 1) * grid_h * grid_w].view(-1, 3, 2, 16)
        for lies in range(2):
            assert torch.equal(shown[:, :, lies], each[2 * pair + lies].view(-1, 3, 2, 16)[:, :, 0])


def test_a_video_of_smolvlm_is_pictures_behind_a_text_that_counts_them(
    made: Callable[[str], Made], tmp_path: Path
) -> None:
    processor, _ = made("smolvlm")
    found = processor.video(film(3, fps=0.5))
    picture = "<fake_token_around_image><global-img>" + "<image>" * 4 + "<fake_token_around_image>"
    assert found.replacement == (
        "You are provided the following series of three frames from a 0:00:06 [H:MM:SS] video.\n"
        f"\nFrame from 00:00:{picture}\nFrame from 00:02:{picture}\nFrame from 00:04:{picture}\n\n"
    )
    seen = load(found.payload)["pixel_values"]
    assert seen.shape == (1, 3, 3, 16, 16)
    sampling = {"max_frames": 5, "fps": 2, "video_size": {"longest_edge": 96}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"video_sampling": sampling}))
    settings = VideoSettings.of(ModelFiles(tmp_path), VideoSettings(fps=1.0, min_frames=1))
    assert (settings.max_frames, settings.fps, settings.longest_edge) == (5, 2, 96)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, "one"),
        (13, "thirteen"),
        (40, "forty"),
        (64, "sixty-four"),
        (100, "one hundred"),
        (768, "seven hundred and sixty-eight"),
    ],
)
def test_frames_are_counted_in_words(number: int, words: str) -> None:
    assert spelled(number) == words


def test_frames_of_a_video_have_their_times(made: Callable[[str], Made]) -> None:
    processor, _ = made("qwen3_vl")
    assert processor.video(film(4, fps=2.0)).replacement.startswith("<0.2 seconds><|vision_start|><|video_pad|>")
    glm, _ = made("glm46v")
    assert "<|end_of_image|>1.0 seconds<|begin_of_image|>" in glm.video(film(6, fps=2.0)).replacement
    gemma, _ = made("gemma4_large")
    assert " 00:01 <start_of_image><|video|>" in gemma.video(film(4, fps=2.0)).replacement
    timed, _ = made("qwen2_5_vl")
    assert timed.video(film(4, fps=2.0)).interval == pytest.approx(4 * 2 / 2), "positions a second, times two frames"


@pytest.mark.parametrize(
    ("options", "count"), [({}, 8), ({"num_frames": 4}, 4), ({"fps": 0.5}, 4), ({"num_frames": 100}, 8)]
)
def test_a_request_says_which_frames_are_seen(
    options: dict[str, object], count: int, made: Callable[[str], Made]
) -> None:
    processor, _ = made("qwen3_vl")
    chosen = processor.choose_frames(options)(VideoFacts(80, 10.0, 40, 30))
    assert len(chosen) == count
    assert chosen[0] == 0
    assert chosen[-1] == 79


def test_of_a_video_of_video_llama_what_did_not_change_is_left_out(made: Callable[[str], Made]) -> None:
    processor, model = made("video_llama_3")
    first = np.zeros((16, 16, 3), np.uint8)
    changed = first.copy()
    changed[:8, 8:] = 200
    video = DecodedVideo(np.stack([first, changed, changed]), [0, 2, 4], VideoFacts(6, 2.0, 16, 16))
    inputs = processor.video(video)
    given = load(inputs.payload)
    kept = given["video_compression_mask"].view(3, -1)
    assert kept[0].all()
    assert 0 < kept[1].sum() < len(kept[1])
    assert kept[2].tolist() == [True] + [False] * (len(kept[2]) - 1)
    counts = kept.sum(1).tolist()
    times = zip(("0.0", "1.0", "2.0"), counts, strict=True)
    assert inputs.replacement == ",".join(f"Time {time}s:{'<|video_pad|>' * count}" for time, count in times)
    encode = _METHODS["VideoLlama3ForConditionalGeneration", "video"]
    with torch.no_grad():
        assert len(encode(model, **given)) == sum(counts)


def test_tokens_of_pictures_that_a_tokenizer_does_not_name_have_the_ids_of_the_models_config(tmp_path: Path) -> None:
    PROCESSED["hunyuan_vl"](tmp_path)
    named = ModelProcessor(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "extra_special_tokens": {}}))
    unnamed = ModelProcessor(tmp_path)
    assert unnamed.written == named.written == {"image": "<|image_pad|>"}
    seen = picture(30, 40)
    assert unnamed.image(seen, {}, alone=True) == named.image(seen, {}, alone=True)
