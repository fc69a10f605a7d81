"""What is made of pictures for a model, against transformers: tensors, and how many tokens stand for them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load

from stentor.server.media.model_processor import ModelInputs, ModelProcessor
from stentor.server.media.refusal import Refusal
from stentor.tests.server.media.pictures import picture
from stentor.tests.support.vision_models import FAMILIES

SIZES = ((30, 40), (90, 17), (64, 64))
Made = tuple[ModelProcessor, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """A family's processor and transformers' model of it, made once."""
    kept: dict[str, Made] = {}

    def make(family: str) -> Made:
        if family not in kept:
            folder = tmp_path_factory.mktemp(family)
            model = FAMILIES[family](folder)
            kept[family] = ModelProcessor(folder), model
        return kept[family]

    return make


def embeddings(model: Any, inputs: ModelInputs) -> torch.Tensor:
    """As transformers makes them of the payload."""
    with torch.no_grad():
        found = model.model.get_image_features(**load(inputs.payload))
    found = getattr(found, "pooler_output", found)
    rows = torch.cat(list(found)) if isinstance(found, list | tuple) else found
    return rows.reshape(-1, rows.shape[-1])


@pytest.mark.parametrize("family", FAMILIES)
def test_there_are_as_many_placeholders_as_the_models_own_encoder_makes_embeddings(
    family: str, made: Callable[[str], Made]
) -> None:
    processor, model = made(family)
    config = model.config
    id = getattr(config, "image_token_id", None) or config.image_token_index
    text_of = processor._processor.tokenizer.convert_ids_to_tokens(id)
    for width, height in SIZES:
        for alone in (True, False):
            inputs = processor.image(picture(width, height), {}, alone=alone)
            count = inputs.replacement.count(text_of)
            assert count == len(embeddings(model, inputs)), (width, height, alone)
            if inputs.grid is not None:
                assert count == inputs.grid[0] * inputs.grid[1] * inputs.grid[2]


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_are_what_transformers_own_processor_makes(family: str, made: Callable[[str], Made]) -> None:
    processor, _ = made(family)
    seen = picture(50, 21)
    ours = load(processor.image(seen, {}, alone=True).payload)
    own = processor._processor.image_processor(**_own_arguments(family), images=[[seen]], return_tensors="pt")
    for name, values in ours.items():
        assert torch.equal(values, own[name]), name
        assert values.dtype in (torch.float32, torch.int64), name


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


@pytest.mark.parametrize(
    ("family", "options", "why"),
    [
        ("gemma3", {"size": {"longest_edge": 8}}, "one size"),
        ("qwen2_5_vl", {"do_pan_and_scan": True}, "has no do_pan_and_scan"),
    ],
)
def test_an_option_that_the_model_has_not_is_refused(
    family: str, options: dict[str, object], why: str, made: Callable[[str], Made]
) -> None:
    processor, _ = made(family)
    with pytest.raises(Refusal, match=why):
        processor.image(picture(30, 40), options, alone=True)
