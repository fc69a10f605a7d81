"""The processor that a projector file describes makes of pictures what the model's own files would have it make."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as untyped_transformers

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.server.media.processors.images.kimi import KimiImages
from stentor.server.media.processors.images.lfm2_vl import Lfm2VlImages
from stentor.server.media.processors.images.llama4 import Llama4Images
from stentor.server.media.processors.mmproj import given_files
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.tests.parity.seeing import MAKERS
from stentor.tests.server.media.pictures import picture
from stentor.tests.server.media.published import WHOLE
from stentor.tests.support.audio_models import granite_speech, qwen3_omni, write_extractor
from stentor.tests.support.mmproj_files import SPELLED, TEXTS, write_mmproj, write_pair
from stentor.tests.support.vision_models import (
    CHATML,
    FAMILIES,
    PATCH,
    SIDE,
    SPECIAL,
    Maker,
    token,
    write_processor,
    write_tokenizer,
)

transformers: Any = untyped_transformers

SIZES = ((40, 30), (90, 20), (64, 64))
SOUND = np.sin(np.arange(9000), dtype=np.float32)


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


@pytest.mark.parametrize(("own_name", "name"), [("pixtral_own", "pixtral"), ("mistral_3_own", "mistral3")])
def test_pictures_of_mistrals_own_files_are_processed_as_in_transformers_form(
    own_name: str, name: str, tmp_path: Path
) -> None:
    folders = tmp_path / "own", tmp_path / "theirs"
    for folder, maker in zip(folders, (MAKERS[own_name], FAMILIES[name]), strict=True):
        folder.mkdir()
        maker(folder)
    given = given_files(open_checkpoint(folders[0]))
    assert given is not None
    own, theirs = ModelProcessor(given), ModelProcessor(folders[1])
    assert own.written == theirs.written == {"image": "[IMG]"}
    for size in SIZES:
        assert own.image(picture(*size), {}, alone=True) == theirs.image(picture(*size), {}, alone=True)


def _lfm2_vl(folder: Path) -> Any:
    images = Lfm2VlImages(encoder_patch_size=PATCH)
    write_processor(folder, "Lfm2VlProcessor", images, CHATML.replace("IMAGE", "<image>"))
    return MAKERS["lfm2_vl"](folder)


def _kimi_vl(folder: Path) -> Any:
    WHOLE["kimi_vl"](folder)
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "in_token_limit": 4096}))
    return MAKERS["kimi_vl"](folder)


def _spelled(family: str) -> list[str]:
    """Its special tokens in the order of their ids."""
    return [SPELLED[family].get(256 + place, text) for place, text in enumerate(SPECIAL)]


def _glm4v(folder: Path) -> Any:
    names = {"image_token": "<|image|>", "video_token": "<|video|>"}
    images = transformers.Glm4vImageProcessorPil(patch_size=PATCH)
    write_processor(folder, "Glm4vProcessor", images, CHATML, names=names, special=_spelled("glm4v"))
    return MAKERS["glm4v"](folder)


def _gemma4(folder: Path) -> Any:
    names = {"boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>"}
    names |= {"audio_token": "<img>", "boa_token": "</img>", "eoa_token": "<global-img>"}  # its class asks for them
    images = transformers.Gemma4ImageProcessorPil(patch_size=PATCH, pooling_kernel_size=2)
    write_processor(folder, "Gemma4Processor", images, CHATML, names=names, special=_spelled("gemma4_large"))
    return MAKERS["gemma4_large"](folder)


def _kimi_k25(folder: Path) -> Any:
    names = {"image_token": "<|media_pad|>", "video_token": "<|video_pad|>"}
    images = KimiImages(patch_size=PATCH)
    write_processor(folder, "Kimi_K25Processor", images, CHATML, names=names, special=_spelled("kimi_k25"))
    return MAKERS["kimi_k25"](folder)


def _lighton_ocr(folder: Path) -> Any:
    images = transformers.PixtralImageProcessorPil(size={"longest_edge": 32}, patch_size={"height": 8, "width": 8})
    names = {"image_token": "<|image_pad|>", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
    settings: dict[str, Any] = {"patch_size": PATCH, "spatial_merge_size": 2}
    special = _spelled("lighton_ocr")
    write_processor(folder, "LightOnOcrProcessor", images, CHATML, names=names, special=special, **settings)
    return MAKERS["lighton_ocr"](folder)


def _llama4(folder: Path) -> Any:
    images = Llama4Images(size={"height": SIDE, "width": SIDE})
    write_processor(folder, "Llama4Processor", images, CHATML, special=_spelled("llama4"), patch_size=PATCH)
    return MAKERS["llama4"](folder)


@pytest.mark.parametrize(
    ("family", "make"),
    [
        *(("lfm2_vl", _lfm2_vl), ("kimi_vl", _kimi_vl), ("glm4v", _glm4v), ("gemma4_large", _gemma4)),
        *(("lighton_ocr", _lighton_ocr), ("llama4", _llama4), ("kimi_k25", _kimi_k25)),
    ],
)
def test_what_a_file_does_not_say_is_what_published_models_have(family: str, make: Maker, tmp_path: Path) -> None:
    given = given_files(open_checkpoint(write_pair(tmp_path, make(tmp_path), family)))
    assert given is not None
    own, theirs = ModelProcessor(given), ModelProcessor(tmp_path)
    assert own.written["image"] == theirs.written["image"]
    for size in (*SIZES, (400, 600)):
        assert own.image(picture(*size), {}, alone=True) == theirs.image(picture(*size), {}, alone=True)


def _with_extractor(family: str, processor: str, folder: Path) -> Any:
    """Its checkpoint with a processor's files, which are Whisper's; its second holds 100 frames as that of any does."""
    model = MAKERS[family](folder)
    sound = SPELLED[family][token("<video>")]
    names = {"audio_token": sound} | dict.fromkeys(("audio_bos_token", "audio_eos_token"), "<img>")
    write_tokenizer(folder, "", names=names, special=_spelled(family))
    write_extractor(folder, processor, transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1))
    return model


@pytest.mark.parametrize(
    ("family", "processor", "settings"),
    [
        ("ultravox", "UltravoxProcessor", {"audio_context_size": 80}),
        ("voxtral", "VoxtralProcessor", {}),
        ("qwen2_audio", "Qwen2AudioProcessor", {}),
        ("qwen3_asr", "Qwen3ASRProcessor", {}),
    ],
)
def test_sounds_are_processed_as_by_the_files_of_the_model(
    family: str, processor: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    model = _with_extractor(family, processor, tmp_path)
    file = tmp_path / "processor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    given = given_files(open_checkpoint(write_pair(tmp_path, model, family)))
    assert given is not None
    own, theirs = ModelProcessor(given), ModelProcessor(tmp_path)
    around = {"voxtral": ("[BEGIN_AUDIO]", ""), "qwen3_asr": ("<|audio_start|>", "<|audio_end|>")}.get(family, ("", ""))
    assert own.written == {"audio": theirs.written["audio"].join(around)}
    heard, expected = (each.audio(SOUND) for each in (own, theirs))
    assert heard == expected._replace(replacement=expected.replacement.join(around))


def _granite_speech(folder: Path) -> Any:
    granite_speech(folder)
    return MAKERS["granite_speech"](folder)


def _qwen3_omni(folder: Path) -> Any:
    qwen3_omni(folder)
    return MAKERS["qwen3_omni"](folder)


def _qwen2_5_omni(folder: Path) -> Any:
    """The same with other tokens."""
    qwen3_omni(folder)
    for file in folder.glob("*.json*"):
        text = file.read_text().replace("Qwen3OmniMoe", "Qwen2_5Omni")
        for old, new in (("image_pad", "IMAGE"), ("video_pad", "VIDEO"), ("audio_pad", "AUDIO")):
            text = text.replace(old, new)
        for what in ("vision", "audio"):
            text = text.replace(f"<|{what}_start|>", f"<|{what}_bos|>").replace(f"<|{what}_end|>", f"<|{what}_eos|>")
        file.write_text(text)
    return MAKERS["qwen2_5_omni"](folder)


def _gemma4_hears(folder: Path) -> Any:
    names = {"boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>"}
    names |= {"audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"}
    images = transformers.Gemma4ImageProcessorPil(patch_size=PATCH, pooling_kernel_size=2)
    special = [*_spelled("gemma4_hears"), "<|audio>", "<audio|>"]
    write_processor(folder, "Gemma4Processor", images, CHATML, names=names, special=special)
    seen = json.loads((folder / "preprocessor_config.json").read_text())
    transformers.Gemma4AudioFeatureExtractor().save_pretrained(folder)
    heard = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**heard, **seen}))
    return MAKERS["gemma4_hears"](folder)


@pytest.mark.parametrize(
    ("family", "make"),
    [
        *(("granite_speech", _granite_speech), ("qwen3_omni", _qwen3_omni), ("qwen2_5_omni", _qwen2_5_omni)),
        ("gemma4_hears", _gemma4_hears),
    ],
)
def test_sounds_and_pictures_are_processed_as_by_the_files_of_the_model(
    family: str, make: Maker, tmp_path: Path
) -> None:
    given = given_files(open_checkpoint(write_pair(tmp_path, make(tmp_path), family)))
    assert given is not None
    own, theirs = ModelProcessor(given), ModelProcessor(tmp_path)
    assert own.written == theirs.written
    assert own.audio(SOUND) == theirs.audio(SOUND)
    if "image" in theirs.written:
        assert own.image(picture(40, 30), {}, alone=True) == theirs.image(picture(40, 30), {}, alone=True)


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
