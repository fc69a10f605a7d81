"""Tiny random models whose classes transformers does not have: their code comes with their checkpoints. Whole, with the
names that published files have."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file

from stentor.tests.parity.pictures import Kind, Picture, cat, qwen_picture
from stentor.tests.support.vision_models import PATCH, SIZES, TEXT, Maker, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


class Published(NamedTuple):
    model_type: str
    make: Maker
    kind: Kind


def _kimi_config() -> Any:
    text = {**TEXT, "num_hidden_layers": 3, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1}
    text |= {"topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "first_k_dense_replace": 1}
    text |= {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    vision = {**SIZES, "patch_size": PATCH, "pos_emb_height": 8, "pos_emb_width": 8, "pos_emb_time": 2}
    return transformers.Kimi_K25Config(
        text_config={"model_type": "deepseek_v3", **text, "n_shared_experts": 1},
        vision_config=vision,
        projection_hidden_size=64,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        tie_word_embeddings=False,
    )


def _kimi_picture(random: torch.Generator, size: int) -> Picture:
    whole = qwen_picture(random, size)
    _, rows, columns = whole.tensors["image_grid_thw"][0].tolist()
    pixels = torch.randn(rows * columns, 3, PATCH, PATCH, generator=random)
    return Picture({**whole.tensors, "pixel_values": pixels}, whole.tokens)


_MOONVIT: Final = {
    "vision_tower.encoder.patch_embed": "vision_tower.patch_embed",
    "model.mm_projector": "mm_projector",
    "language_model.model.blocks": "language_model.model.layers",
}
"""Where transformers tells the published names of Kimi K2.5 otherwise than they are."""


def _kimi_k25(folder: Path) -> Any:
    model = randomised("kimi_k25", lambda: transformers.Kimi_K25ForConditionalGeneration(_kimi_config()))
    model.save_pretrained(folder)
    vision = {f"vt_{name}": value for name, value in SIZES.items()}
    _rewrite(folder, _kimi_described(model, "KimiK25", "kimi_k25", vision), _MOONVIT)
    return model


def _kimi_vl(folder: Path) -> Any:
    """Beside pictures that do not move the tower of Kimi K2.5 is that of Kimi-VL, and transformers has that."""
    model = randomised("kimi_vl", lambda: transformers.Kimi_K25ForConditionalGeneration(_kimi_config()))
    model.save_pretrained(folder)
    names = {
        "mm_projector.proj.0": "multi_modal_projector.linear_1",
        "mm_projector.proj.2": "multi_modal_projector.linear_2",
        "model.mm_projector.": "multi_modal_projector.",
    }
    _rewrite(folder, _kimi_described(model, "KimiVL", "kimi_vl", SIZES), {**names, **_MOONVIT})
    return model


def _kimi_described(model: Any, name: str, kind: str, vision: Mapping[str, Any]) -> dict[str, object]:
    sides = {f"init_pos_emb_{side}": model.config.vision_config.pos_emb_height for side in ("height", "width")}
    return {
        **{"architectures": [f"{name}ForConditionalGeneration"], "model_type": kind, "tie_word_embeddings": False},
        "media_placeholder_token_id": token("<|image_pad|>"),
        "text_config": model.config.text_config.to_dict(),
        "vision_config": {**vision, **sides, "patch_size": PATCH, "merge_kernel_size": [2, 2]},
    }


def _rewrite(folder: Path, config: Mapping[str, object], names: Mapping[str, str]) -> None:
    """Tells a saved model otherwise; ``names`` are beginnings of tensors' names, and what stands for them."""
    (folder / "config.json").write_text(json.dumps(config))
    file = folder / "model.safetensors"

    def renamed(name: str) -> str:
        begin = next((each for each in names if name.startswith(each)), "")
        return names[begin] + name.removeprefix(begin) if begin else name

    save_file({renamed(name): tensor for name, tensor in load_file(file).items()}, file)


_KIMI: Final = Kind(_kimi_picture, token("<|image_pad|>"), cat())
PUBLISHED: Final[Mapping[str, Published]] = {
    "kimi_k25": Published("kimi_k25", _kimi_k25, _KIMI),
    "kimi_vl": Published("kimi_vl", _kimi_vl, _KIMI),
}
