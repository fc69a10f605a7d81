"""Tiny random models that see and have tokens of pictures apart, besides those of :mod:`.seeing`: by their positions,
their experts or their layers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.tests.parity.hybrids import glm5
from stentor.tests.parity.pictures import PICTURES, Kind, Picture, cat, qwen_picture
from stentor.tests.support.vision_models import PATCH, SIDE, SIZES, TEXT, VOCAB, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

_IMAGE: Final = token("<image>")
_PAD: Final = token("<|image_pad|>")


def _hunyuan_vl(**rope: object) -> Callable[[], Any]:
    """``rope``: beside the sections by index, column, row and number of a picture."""

    def make() -> Any:
        rotary = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 2, 1, 2], **rope}
        return transformers.HunYuanVLConfig(
            text_config={**TEXT, "head_dim": 16, "rope_parameters": rotary},
            vision_config={**SIZES, "patch_size": PATCH, "max_image_size": 5 * PATCH},
            image_token_id=_PAD,
            im_start_id=token("<|vision_start|>"),
            im_end_id=token("<|vision_end|>"),
        )

    return make


def turn_by_pairs(model: Any) -> None:
    """Have a HunYuanVL turn both halves of a pair by one axis, as its authors' code does."""

    def by_pairs(self: Any, angles: torch.Tensor) -> torch.Tensor:
        parts = angles.split(self.mrope_section, dim=-1)
        half = torch.cat([part[axis] for axis, part in enumerate(parts)], dim=-1)
        return torch.cat((half, half), dim=-1)

    rotary = model.model.language_model.rotary_emb
    rotary.recomposition_frequencies = by_pairs.__get__(rotary)


def _cosmos3() -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    text = {**TEXT, "num_hidden_layers": 3, "head_dim": 16, "rope_parameters": rope, "model_type": "qwen3_vl_text"}
    vision: dict[str, Any] = {
        "depth": 3,
        "hidden_size": 64,
        "out_hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 4,
    }
    vision |= {"patch_size": PATCH, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1]}
    return transformers.Cosmos3OmniConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=_PAD,
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=_MARKS[0],
        vision_end_token_id=_MARKS[1],
    )


def _with_ends(random: torch.Generator, size: int) -> Picture:
    """Patches row by row, with embeddings at the ends of rows and of the picture."""
    whole = qwen_picture(random, size)
    assert whole.grid is not None
    _, rows, columns = whole.grid
    pixels = torch.randn(4 * rows * columns, 3 * PATCH * PATCH, generator=random)
    inside = [_PAD] * (rows * (columns + 1) + 2)
    tokens = [token("<|vision_start|>"), *inside, token("<|vision_end|>")]
    return Picture({**whole.tensors, "pixel_values": pixels}, tokens, whole.grid)


def _ernie_vl() -> Any:
    sizes = {"moe_intermediate_size": [48, 32], "moe_k": 2, "moe_num_experts": 4, "moe_num_shared_experts": 1}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]}
    text = {**TEXT, "num_hidden_layers": 3, "head_dim": 16, "rope_parameters": rope, **sizes}
    vision = {"depth": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "patch_size": PATCH}
    return transformers.Ernie4_5_VLMoeConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=_PAD,
        video_token_id=token("<|video_pad|>"),
        image_start_token_id=_MARKS[0],
        image_end_token_id=_MARKS[1],
        video_start_token_id=token("<start_of_image>"),
        video_end_token_id=token("<end_of_image>"),
    )


def _of_one_frame(random: torch.Generator, size: int) -> Picture:
    whole = qwen_picture(random, size)
    pixels = torch.randn(int(whole.tensors["image_grid_thw"].prod()), 3 * PATCH * PATCH, generator=random)
    return Picture({**whole.tensors, "pixel_values": pixels}, whole.tokens, whole.grid)


def _granite_docling() -> Any:
    """With features behind its first layers, and the wider path that files may choose."""
    text = {**TEXT, "num_hidden_layers": 3, "embedding_multiplier": 6.0, "residual_multiplier": 0.3}
    text |= {"logits_scaling": 0.5, "attention_multiplier": 0.2}
    vision = {**SIZES, "image_size": SIDE, "patch_size": PATCH, "out_hidden_size": 64, "scale_factor": 2}
    return transformers.GraniteDoclingConfig(
        text_config=text,
        vision_config={**vision, "num_hidden_layers": 3, "deepstack_visual_indexes": [0, 1]},
        image_token_id=_IMAGE,
        density_router_hidden_size=8,
    )


def _page(random: torch.Generator, size: int, fine: bool = False) -> Picture:
    """A page in one tile, or in four of two rows, each with a mark before it; ``fine``: with more embeddings."""
    tiles, inside = 1 + 3 * size, [_IMAGE] * (16 if fine else 4)
    tokens = [each for tile in range(tiles) for each in (token("<fake_token_around_image>"), 60 + tile, *inside)]
    tensors = {
        "pixel_values": torch.randn(1, tiles, 3, SIDE, SIDE, generator=random),
        "pixel_attention_mask": torch.ones(1, tiles, dtype=torch.bool),
    }
    return Picture({**tensors, "tile_fine_mask": torch.ones(1, 1, dtype=torch.bool)} if fine else tensors, tokens)


_BEHIND: Final = VOCAB
"""The token of Llama 3.2 Vision's pictures: the first behind the vocabulary, which has an embedding and no logit."""
_TILES: Final = 4


def _mllama() -> Any:
    """Two layers of the text attend to pictures, and two to the text."""
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    text = {**TEXT, "num_hidden_layers": 4, "cross_attention_layers": [1, 3], "rope_parameters": rope}
    vision: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    vision |= {"num_global_layers": 1}
    vision |= {"attention_heads": 4, "image_size": SIDE, "patch_size": PATCH, "intermediate_layers_indices": [0]}
    return transformers.MllamaConfig(
        text_config=text, vision_config={**vision, "vision_output_dim": 64}, image_token_index=_BEHIND
    )


def _canvas(random: torch.Generator, size: int) -> Picture:
    """One tile, or three side by side."""
    tiles = 1 + 2 * size
    pixels = torch.zeros(1, 1, _TILES, 3, SIDE, SIDE)
    pixels[:, :, :tiles] = torch.randn(tiles, 3, SIDE, SIDE, generator=random)
    mask = (torch.arange(_TILES) < tiles).long()[None, None]
    shape = torch.tensor([[1 if size == 0 else 3]])
    tensors = {"pixel_values": pixels, "aspect_ratio_ids": shape, "aspect_ratio_mask": mask}
    return Picture(tensors, [_BEHIND])


def see_nothing_before_pictures(model: Any) -> None:
    """Have tokens of Llama 3.2 Vision before the first picture pass layers of cross-attention as they are, as in its
    authors' code; transformers adds the mean of all values to them."""

    def keep(layer: Any, _args: Any, given: dict[str, Any]) -> None:
        layer.cross_attn.seeing = given["full_text_row_masked_out_mask"]

    def masked(attention: Any, _args: Any, found: Any) -> Any:
        return (found[0] * attention.seeing[:, 0], *found[1:])

    for layer in model.model.language_model.layers:
        if hasattr(layer, "cross_attn"):
            layer.register_forward_pre_hook(keep, with_kwargs=True)
            layer.cross_attn.register_forward_hook(masked)


_MARKS: Final = (token("<|vision_start|>"), token("<|vision_end|>"))
_ENDED: Final = Kind(_with_ends, _PAD, cat())


def _mistral_large4() -> Any:
    latents = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    index = {
        "index_topk": 16,
        "index_n_heads": 8,
        "index_head_dim": 16,
        "no_rope_layers": [1, 0],
        "num_key_value_heads": 4,
    }
    return transformers.MistralLarge4Config(
        text_config={
            "model_type": "mistral_large4_text",
            **TEXT,
            "num_key_value_heads": 4,
            **latents,
            **experts,
            **index,
        },
        vision_config={"model_type": "pixtral", **SIZES, "image_size": 2 * SIDE, "patch_size": PATCH},
        image_token_index=token("[IMG]"),
    )


def _glm5_next() -> Any:
    """A start of videos is a token that no prompt has."""
    vision = {"depth": 2, "hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 96, "num_heads": 4}
    config = glm5(TEXT, vision={**vision, "patch_size": PATCH, "projection_intermediate_size": 80})
    config.image_token_id, config.video_start_token_id = _PAD, token("<start_of_image>")
    return config


def _hy_v4_vl() -> Any:
    """A Hy4 VL whose index leaves tokens out, and of whose heads' numbers not all turn."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
    sizes = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 20}
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 6, "num_experts_per_tok": 2}
    index = {"index_topk": 24, "index_head_dim": 24, "index_n_heads": 16, "indexer_types": ["full", "full", "shared"]}
    text = {**TEXT, **sizes, **experts, **index, "num_hidden_layers": 3, "hc_mult": 3, "rope_parameters": rope}
    vision = {**SIZES, "patch_size": PATCH, "max_image_size": 5 * PATCH, "out_hidden_size": 64}
    config = transformers.HYV4VLConfig(
        text_config=text, vision_config=vision, image_token_id=_PAD, video_token_id=token("<|video_pad|>")
    )
    config.text_config._attn_implementation = "eager"
    return config


def _with_line_ends(random: torch.Generator, size: int) -> Picture:
    """Patches row by row, with an embedding at the end of each row."""
    whole = qwen_picture(random, size)
    assert whole.grid is not None
    _, rows, columns = whole.grid
    pixels = torch.randn(4 * rows * columns, 3 * PATCH * PATCH, generator=random)
    inside = [_PAD] * (rows * (columns + 1))
    return Picture({**whole.tensors, "pixel_values": pixels}, [_MARKS[0], *inside, _MARKS[1]], (1, rows, columns + 1))


def _film_with_line_ends(random: torch.Generator, size: int) -> Picture:
    """Three frames one behind the other."""
    frames = [_with_line_ends(random, size) for _ in range(3)]
    begin, *inside, end = [token("<|video_pad|>") if each == _PAD else each for each in frames[0].tokens]
    assert frames[0].grid is not None
    _, rows, columns = frames[0].grid
    tensors = {
        "pixel_values_videos": torch.cat([each.tensors["pixel_values"] for each in frames]),
        "video_grid_thw": frames[0].tensors["image_grid_thw"] * torch.tensor([3, 1, 1]),
    }
    return Picture(tensors, [begin, *inside * 3, end], (3, rows, columns), "video")


VIEWING: Final[Mapping[str, tuple[Callable[[], Any], Kind]]] = {
    "granite_docling": (_granite_docling, Kind(_page, _IMAGE, cat(1))),
    "granite_docling_fine": (_granite_docling, Kind(partial(_page, fine=True), _IMAGE, cat(1))),
    "hunyuan_vl": (_hunyuan_vl(rope_type="dynamic", alpha=50.0, factor=1.0), _ENDED),
    "mllama": (_mllama, Kind(_canvas, _BEHIND, cat(1), crossed_tiles=_TILES)),
    "cosmos3": (_cosmos3, Kind(qwen_picture, _PAD, cat())),
    "ernie_vl": (_ernie_vl, Kind(_of_one_frame, _PAD, cat(), expert_marks=_MARKS)),
    "mistral_large4": (_mistral_large4, PICTURES["mistral3"]),
    "glm5_next": (_glm5_next, Kind(qwen_picture, _PAD, cat())),
    "hy_v4_vl": (_hy_v4_vl, Kind(_with_line_ends, _PAD, cat())),
    "hy_v4_vl_film": (_hy_v4_vl, Kind(_film_with_line_ends, token("<|video_pad|>"), cat())),
    "hunyuan_vl_three": (_hunyuan_vl(mrope_section=[3, 3, 2]), _ENDED),
}
"""By name: a configuration, and what it takes."""
