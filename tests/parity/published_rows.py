"""Tiny random models that see a picture whole and in tiles, all in rows that a learned embedding ends: Phi-3-vision and
DeepSeek-VL2."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file

from stentor.tests.parity.composed import Composed, Published
from stentor.tests.parity.pictures import Kind, Picture, cat
from stentor.tests.support.vision_models import PATCH, SIDE, SIZES, TEXT, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


class _Separated(torch.nn.Module):
    """CLIP over a whole and its tiles, two products of each square of four patches, and stored squares that end each
    row and part the tiles from the whole behind them (Phi-3-vision)."""

    def __init__(self, vision: Mapping[str, Any]) -> None:
        super().__init__()
        self.img_processor = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**vision))
        joined = 4 * vision["hidden_size"]
        self.glb_GN = torch.nn.Parameter(torch.zeros(1, 1, joined))
        self.sub_GN = torch.nn.Parameter(torch.zeros(1, 1, 1, joined))
        products = torch.nn.Linear(joined, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)
        self.img_projection = torch.nn.Sequential(*products)

    def forward(self, pixel_values: torch.Tensor, image_sizes: torch.Tensor) -> torch.Tensor:
        made, at = [], 0
        for height, width in (image_sizes // SIDE).tolist():
            seen = self.img_processor(pixel_values[at : at + 1 + height * width], output_hidden_states=True)
            at += 1 + height * width
            patches = seen.hidden_states[-2][:, 1:]
            tiles = self._in_rows(patches[1:], height, width)
            made.append(torch.cat((tiles, self.glb_GN[0], self._in_rows(patches[:1], 1, 1))))
        found: torch.Tensor = self.img_projection(torch.cat(made))
        return found

    def _in_rows(self, patches: torch.Tensor, down: int, across: int) -> torch.Tensor:
        """[tiles, patches, size] → the squares of the rows of all tiles, each with an end"""
        side = int(patches.shape[1] ** 0.5)
        whole = patches.view(down, across, side, side, -1).transpose(1, 2).reshape(down * side, across * side, -1)
        rows, columns = down * side // 2, across * side // 2
        squares = whole.view(rows, 2, columns, 2, -1).transpose(1, 2).reshape(rows, columns, -1)
        return torch.cat((squares, self.sub_GN[0].expand(rows, 1, -1)), 1).flatten(0, 1)


def phi3_v(folder: Path) -> Composed:
    text = transformers.Phi3Config(**TEXT, tie_word_embeddings=False)
    vision = {**SIZES, "num_hidden_layers": 3, "patch_size": PATCH, "image_size": SIDE}
    config = {
        **{**text.to_dict(), "architectures": ["Phi3VForCausalLM"], "model_type": "phi3_v"},
        **{"vision_config": vision, "image_token_id": token("<image>")},
        "img_processor": {"image_dim_out": 64, "name": "clip_vision_model", "num_img_tokens": 4, "layer_idx": -2},
        "embd_layer": {
            **{"embedding_cls": "image", "hd_transform_order": "sub_glb", "projection_cls": "mlp"},
            **{"use_hd_transform": True, "with_learnable_separator": True},
        },
    }

    def make() -> Composed:
        return Composed(transformers.Phi3ForCausalLM(text), _Separated(vision), token("<image>"))

    def named(name: str) -> str:
        inside = name.replace("img_processor.", "img_processor.vision_model.")
        return f"model.vision_embed_tokens.{inside.replace('vision_model.vision_model.', 'vision_model.')}"

    model: Composed = randomised("phi3_v", make)
    model.save(folder, config, "", named)
    return model


class _FilledUp(torch.nn.Module):
    """SigLIP over a whole and its tiles, whose five patches a side are filled up to six, and two products of each
    square (DeepSeek-VL2)."""

    def __init__(self, vision: Mapping[str, Any]) -> None:
        super().__init__()
        self.vision = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**vision, vision_use_head=False))
        joined = 4 * vision["hidden_size"]
        products = torch.nn.Linear(joined, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)
        self.layers = torch.nn.Sequential(*products)
        self.image_newline, self.view_seperator = (torch.nn.Parameter(torch.zeros(64)) for _ in range(2))

    def forward(self, pixel_values: torch.Tensor, image_sizes: torch.Tensor) -> torch.Tensor:
        made, at = [], 0
        for height, width in (image_sizes // _WIDE).tolist():
            tiles = self._projected(self.vision(pixel_values[at : at + 1 + height * width]).last_hidden_state)
            at += 1 + height * width
            whole, parts = self._in_rows(tiles[:1], 1, 1), self._in_rows(tiles[1:], height, width)
            made.append(torch.cat((whole, self.view_seperator[None], parts)))
        return torch.cat(made)

    def _projected(self, patches: torch.Tensor) -> torch.Tensor:
        """[tiles, patches, size] → [tiles, rows, columns, 64]"""
        side = int(patches.shape[1] ** 0.5)
        square = patches.transpose(1, 2).unflatten(2, (side, side))
        square = torch.nn.functional.pad(square, (0, side % 2, 0, side % 2))
        squares = torch.nn.functional.unfold(square, 2, stride=2).transpose(1, 2)
        made = self.layers(squares)
        found: torch.Tensor = made.unflatten(1, (square.shape[2] // 2, square.shape[3] // 2))
        return found

    def _in_rows(self, tiles: torch.Tensor, down: int, across: int) -> torch.Tensor:
        """[tiles, rows, columns, 64] → the rows of all tiles, each with an end"""
        lattice = tiles.unflatten(0, (down, across)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
        return torch.cat((lattice, self.image_newline.expand(len(lattice), 1, -1)), 1).flatten(0, 1)


_WIDE: Final = 5 * PATCH
_TIMM: Final = {
    **{"vision.embeddings.patch_embedding": "patch_embed.proj", "vision.encoder.layers": "blocks"},
    **{"vision.embeddings.position_embedding.weight": "pos_embed", "vision.post_layernorm": "norm"},
    **{"self_attn.out_proj": "attn.proj", "layer_norm1": "norm1", "layer_norm2": "norm2"},
}
_EXPERTS: Final = {
    **{"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    **{"first_k_dense_replace": 1, "q_lora_rank": None, "kv_lora_rank": 32, "v_head_dim": 16},
    **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "n_group": 1, "topk_group": 1},
}


def deepseek_vl2(folder: Path, *, newer: bool) -> Composed:
    """``newer``: with the router of DeepSeek V3, as the largest has it."""
    sizes = {**TEXT, **_EXPERTS, "num_key_value_heads": TEXT["num_attention_heads"], "tie_word_embeddings": False}
    kind, told = "DeepseekV2", {"topk_method": "greedy"}
    if newer:
        kind, told = "DeepseekV3", {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    text = getattr(transformers, f"{kind}Config")(**sizes, **({} if newer else told))
    vision = {**SIZES, "patch_size": PATCH, "image_size": _WIDE}
    ratio = SIZES["intermediate_size"] / SIZES["hidden_size"]
    config = {
        **{"model_type": "deepseek_vl_v2", "tile_tag": "2D", "global_view_pos": "head"},
        "language_config": {**text.to_dict(), **told, "model_type": "deepseek_v2"},
        "projector_config": {"model_type": "mlp_projector", "n_embed": 64},
        "vision_config": {
            **{"model_type": "vision", "width": 64, "layers": 2, "heads": 4, "mlp_ratio": ratio},
            **{"patch_size": PATCH, "image_size": _WIDE},
        },
        **{"image_token_id": token("<image>"), "candidate_resolutions": _CANVASES},
    }

    def make() -> Composed:
        made = getattr(transformers, f"{kind}ForCausalLM")(text)
        return Composed(made, _FilledUp(vision), token("<image>"))

    def named(name: str) -> str:
        inside = name.replace("vision.vision_model.", "vision.")
        for own, published in _TIMM.items():
            inside = inside.replace(own, f"vision.{published}" if own.startswith("vision.") else published)
        return f"projector.{inside}" if inside.startswith("layers.") else inside

    model: Composed = randomised("deepseek_vl2", make)
    model.save(folder, config, "language.", named)
    file = folder / "model.safetensors"
    found = load_file(file)
    parts = ("q_proj", "k_proj", "v_proj")
    for name in [name for name in found if name.startswith("vision.") and ".self_attn.q_proj." in name]:
        joint = torch.cat([found.pop(name.replace("q_proj", part)) for part in parts])
        found[name.replace("self_attn.q_proj", "attn.qkv")] = joint
    found["vision.pos_embed"] = found["vision.pos_embed"][None]
    save_file(found, file)
    return model


_CANVASES: Final = [[across * _WIDE, down * _WIDE] for across in (1, 2, 3) for down in (1, 2, 3) if across * down < 5]


def _whole_first(random: torch.Generator, size: int) -> Picture:
    down, across = ((1, 1), (1, 2), (3, 1))[size]
    pixels = torch.randn(1 + down * across, 3, _WIDE, _WIDE, generator=random)
    count = 3 * 4 + 1 + 3 * down * (3 * across + 1)
    sizes = torch.tensor([[down * _WIDE, across * _WIDE]])
    return Picture({"pixel_values": pixels, "image_sizes": sizes}, [token("<image>")] * count)


def _whole_last(random: torch.Generator, size: int) -> Picture:
    """One tile, or a wide or a high picture of two or three, and the whole."""
    down, across = ((1, 1), (1, 2), (3, 1))[size]
    pixels = torch.randn(1 + down * across, 3, SIDE, SIDE, generator=random)
    side = SIDE // PATCH // 2
    count = side * (side + 1) + 1 + down * side * (across * side + 1)
    sizes = torch.tensor([[down * SIDE, across * SIDE]])
    return Picture({"pixel_values": pixels, "image_sizes": sizes}, [token("<image>")] * count)


IN_ROWS: Final[Mapping[str, Published]] = {
    **{
        name: Published(
            "deepseek_vl_v2",
            partial(deepseek_vl2, newer=newer),
            Kind(_whole_first, token("<image>"), cat()),
            "DeepseekVLV2ForCausalLM",
        )
        for name, newer in (("deepseek_vl2", False), ("deepseek_vl2_newer", True))
    },
    "phi3_v": Published("phi3_v", phi3_v, Kind(_whole_last, token("<image>"), cat())),
}
"""By name."""
