"""Tiny random models whose files are those of others, but for names."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from stentor.tests.parity.composed import Published
from stentor.tests.parity.pictures import PICTURES, Kind, cat, qwen_picture
from stentor.tests.parity.reading import READING
from stentor.tests.parity.sounding import second
from stentor.tests.support.vision_models import FAMILIES, Maker, token


def named(folder: Path, *, architecture: str, make: Maker) -> Any:
    """A model whose config.json names another architecture."""
    model, file = make(folder), folder / "config.json"
    named = {"architectures": [architecture], "model_type": "as_published"}
    file.write_text(json.dumps({**json.loads(file.read_text()), **named}))
    return model


def _interns2(folder: Path) -> Any:
    from stentor.tests.parity.seeing import MAKERS  # late: it imports this module

    model, file = MAKERS["qwen3_5_moe"](folder), folder / "model.safetensors"
    save_file({**load_file(file), "model.time_series.conv1.weight": torch.zeros(4, 4)}, file)
    return model


def _hyperclovax(folder: Path) -> Any:
    from stentor.tests.parity.seeing import MAKERS  # late: it imports this module

    model = named(folder, architecture="HCXVisionV2ForCausalLM", make=MAKERS["hyperclovax_vision"])
    file, found = folder / "model.safetensors", {}
    for name, tensor in model.state_dict().items():
        part = name.replace("model.language_model.", "model.language_model.model.")
        part = part.replace("model.projector.", "model.mm_projector.").replace("model.visual.", "model.vision_model.")
        found[part.replace("lm_head.", "model.language_model.lm_head.")] = tensor.clone()
    save_file(found, file)
    return model


def _cosmos3(folder: Path) -> Any:
    from stentor.tests.parity.seeing import MAKERS  # late: it imports this module

    return named(folder, architecture="Cosmos3ForConditionalGeneration", make=MAKERS["cosmos3"])


def as_qwen3_asr(folder: Path, classes: int = 0) -> None:
    """Rewrites a Qwen3-ASR as its makers publish it, or with ``classes`` its aligner."""
    described, file = json.loads((folder / "config.json").read_text()), folder / "model.safetensors"
    audio, text = described["audio_config"], described["text_config"]
    rope = {**text.pop("rope_parameters"), "mrope_section": [4, 2, 2], "mrope_interleaved": True, "interleaved": True}
    text |= {"model_type": "qwen3_asr_text", "rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    text["tie_word_embeddings"] = described["tie_word_embeddings"]
    audio = {**audio, "model_type": "qwen3_asr_audio_encoder", "max_source_positions": 1500}
    del audio["max_position_embeddings"]
    inner = {"model_type": "qwen3_asr_thinker", "audio_config": audio, "text_config": text}
    inner["audio_token_id"] = described["audio_token_id"]
    whole: dict[str, Any] = {"architectures": ["Qwen3ASRForConditionalGeneration"], "model_type": "qwen3_asr"}
    whole["thinker_config"] = inner
    if classes:
        inner |= {"model_type": "qwen3_forced_aligner", "classify_num": classes}
        whole |= {"timestamp_token_id": described["timestamp_token_id"], "timestamp_segment_time": 80}
    (folder / "config.json").write_text(json.dumps(whole))
    parts = {
        **{f"model.multi_modal_projector.linear_{part}.": f"thinker.audio_tower.proj{part}." for part in (1, 2)},
        "model.audio_tower.": "thinker.audio_tower.",
        "model.language_model.": "thinker.model.",
        "lm_head.": "thinker.lm_head.",
        "score.": "thinker.lm_head.",
    }
    found = {}
    for name, tensor in load_file(file).items():
        old = next(part for part in parts if name.startswith(part))
        found[parts[old] + name.removeprefix(old)] = tensor
    save_file(found, file)


def _qwen3_asr(folder: Path) -> Any:
    from stentor.tests.parity.seeing import MAKERS  # late: it imports this module

    model = MAKERS["qwen3_asr"](folder)
    as_qwen3_asr(folder)
    return model


RENAMED: Final[Mapping[str, Published]] = {
    "cosmos3_published": Published(
        "cosmos3_omni",
        _cosmos3,
        Kind(qwen_picture, token("<|image_pad|>"), cat()),
        "Cosmos3ForConditionalGeneration",
    ),
    "interns1": Published(
        "internvl",
        partial(named, architecture="InternS1ForConditionalGeneration", make=FAMILIES["internvl"]),
        PICTURES["internvl"],
        "InternS1ForConditionalGeneration",
    ),
    "interns2": Published(
        "qwen3_5_moe",
        partial(named, architecture="InternS2PreviewForConditionalGeneration", make=_interns2),
        Kind(qwen_picture, token("<|image_pad|>"), cat()),
        "InternS2PreviewForConditionalGeneration",
    ),
    "hyperclovax_published": Published(
        "hyperclovax_vision_v2", _hyperclovax, READING["hyperclovax_vision"][1], "HCXVisionV2ForCausalLM"
    ),
    "qwen3_asr_published": Published("qwen3_asr", _qwen3_asr, Kind(second, token("<video>"), cat())),
}
