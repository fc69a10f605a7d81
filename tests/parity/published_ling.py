"""A tiny random model of Ling 3.0 with pictures, whose class transformers does not have."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from stentor.tests.parity import hub, hub_latent
from stentor.tests.parity.composed import Composed, Published
from stentor.tests.parity.pictures import Kind, cat, qwen_picture
from stentor.tests.parity.published_grids import InGrids, Sections
from stentor.tests.support.vision_models import PATCH, TEXT, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

_LING: Final = "ling3"
_VISION: Final[Mapping[str, Any]] = {
    **{"depth": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "patch_size": PATCH},
    **{"out_hidden_size": 48, "num_position_embeddings": 36, "spatial_merge_size": 2, "temporal_patch_size": 2},
}


class _Joined(torch.nn.Module):
    """A norm of patches, of which four stand beside each other."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(hidden, 1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(x).view(-1, 4 * x.shape[-1])
        return found


class _Seen(torch.nn.Module):
    """The tower of transformers' Qwen3-VL without taps, and two products."""

    def __init__(self) -> None:
        super().__init__()
        told = {**_VISION, "deepstack_visual_indexes": []}
        self.visual = Qwen3VLVisionModel._from_config(transformers.Qwen3VLConfig(vision_config=told).vision_config)
        hidden = _VISION["hidden_size"]
        self.visual.merger = _Joined(hidden)
        products = torch.nn.Linear(4 * hidden, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)
        self.linear_proj = torch.nn.Sequential(*products)

    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear_proj(self.visual(pixel_values, grid_thw=image_grid_thw).pooler_output)
        return found


def ling3_vl(folder: Path) -> Composed:
    text = hub_latent.configs({**TEXT, "max_position_embeddings": 1024})[_LING]()
    sections = [2, 1, 1]
    axes = torch.tensor([1, 2, 0, 0])  # rows and columns alternate, the frame is last

    def make() -> Composed:
        decoder = transformers.BailingHybridForCausalLM(text)
        decoder.model.rotary_emb = turning = Sections(text.qk_rope_head_dim, sections, text.rope_theta)
        turning.axes = axes
        return InGrids(decoder, _Seen(), token("<|image_pad|>"))

    model: Composed = randomised("ling3_vl", make)
    hub.PUBLISHED[_LING].prepared(model.text)
    config = {
        **{"architectures": ["BailingMoeV3VLForConditionalGeneration"], "model_type": "bailing_moe_v3_vl"},
        **{"text_config": {**hub.described(_LING, text), "num_nextn_predict_layers": 0}, "mrope_section": sections},
        "vision_config": {**_VISION, "model_type": "qwen3_moe_vit", "deepstack_visual_indexes": [0, 1]},
        **{"image_token_id": token("<|image_pad|>"), "video_token_id": token("<|video_pad|>")},
        "tie_word_embeddings": False,
    }
    model.text.save_pretrained(folder)  # under the published names, which differ from its own
    file = folder / "model.safetensors"
    tensors = {f"model.{name}": tensor.contiguous() for name, tensor in model.tower.state_dict().items()}
    save_file({**load_file(file), **tensors}, file)
    (folder / "config.json").write_text(json.dumps(config))
    return model


LINGS: Final[Mapping[str, Published]] = {
    "ling3_vl": Published("bailing_moe_v3_vl", ling3_vl, Kind(qwen_picture, token("<|image_pad|>"), cat()))
}
