"""Tiny random models that see with towers or tokens of pictures of their own, besides those of :mod:`.seeing`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.tests.parity.pictures import Kind, Merge, Picture, Tensors, cat, square
from stentor.tests.support.vision_models import PATCH, SIDE, SIZES, TEXT, VOCAB, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

_PATCHES: Final = (SIDE // PATCH) ** 2
_TOKEN, _START, _END = token("<image>"), token("[IMG]"), token("[IMG_END]")
_COLUMN, _LOW, _FRAME, _FRAME_END = token("[IMG_BREAK]"), token("<start_of_image>"), token("<img>"), token("</img>")
_MARKS: Final = (_START, _END, _COLUMN, _LOW, _FRAME, _FRAME_END)
"""All behind the vocabulary: with embeddings, and without logits."""


def _molmo2(**text: object) -> Any:
    attention = {"num_key_value_heads": 4, "head_dim": 16}
    vision = {**SIZES, **attention, "num_hidden_layers": 3, "image_size": [SIDE, SIDE], "patch_size": PATCH}
    adapter = {
        **attention,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 80,
        "text_hidden_size": 64,
        "vision_feature_layer": [2, 0],
    }
    return transformers.Molmo2Config(
        text_config={
            **TEXT,
            "head_dim": 16,
            "vocab_size": _TOKEN,
            "additional_vocab_size": VOCAB - _TOKEN,
            **text,
        },
        vision_config=vision,
        adapter_config=adapter,
        image_patch_id=_TOKEN,
        image_col_id=_COLUMN,
        image_start_token_id=_START,
        image_end_token_id=_END,
        low_res_image_start_token_id=_LOW,
        frame_start_token_id=_FRAME,
        frame_end_token_id=_FRAME_END,
    )


def _molmo2_olmo() -> Any:
    """With norms behind the parts of a layer, and a scaled rotation in one of two."""
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
    return _molmo2(
        qk_norm_type="olmo", norm_after=True, rope_parameters=yarn, rope_scaling_layers=[1], attention_bias=True
    )


def _squares(random: torch.Generator, size: int) -> Picture:
    """The whole, and two squares of it side by side; each embedding pools up to four patches, of which some are beyond
    the edge."""
    crops, (rows, columns) = 3, ((2, 3), (3, 2), (2, 2), (1, 3))[size]
    pooled = torch.randint(0, crops * _PATCHES, (4 + rows * columns, 4), generator=random)
    pooled[-1, 2:] = -1
    tensors = {
        "pixel_values": torch.randn(crops, _PATCHES, 3 * PATCH * PATCH, generator=random),
        "image_token_pooling": pooled,
        "image_grids": torch.tensor([[2, 2, rows, columns]]),
    }
    low = [_LOW, *[_TOKEN, _TOKEN, _COLUMN] * 2, _END]
    return Picture(tensors, [*low, _START, *[*[_TOKEN] * columns, _COLUMN] * rows, _END])


def _frames(random: torch.Generator, size: int) -> Picture:
    """Two frames behind their times."""
    pooled = torch.arange(2 * _PATCHES).view(2, 2, 2, 2, 2).transpose(2, 3).reshape(8, 4)
    tensors = {
        "pixel_values_videos": torch.randn(2, _PATCHES, 3 * PATCH * PATCH, generator=random),
        "video_token_pooling": pooled,
        "video_grids": torch.tensor([[2, 2, 2]]),
    }
    frame = [_FRAME, *[_TOKEN] * 4, _FRAME_END]
    return Picture(tensors, [61, *frame, 62, 63, *frame], modality="video")


def _pooled(pixels: str, pooling: str) -> Merge:
    """Joins pictures, whose embeddings pool patches by numbers that count on from picture to picture."""

    def merge(parts: Sequence[Tensors]) -> dict[str, torch.Tensor]:
        found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        before, moved = 0, []
        for part in parts:
            moved.append(torch.where(part[pooling] < 0, -1, part[pooling] + before))
            before += part[pixels].shape[0] * _PATCHES
        return {**found, pooling: torch.cat(moved)}

    return merge


_MOLMO2: Final = Kind(_squares, _TOKEN, _pooled("pixel_values", "image_token_pooling"), joined_marks=_MARKS)


def _chameleon(**more: object) -> Any:
    """With pictures of 16 tokens among 8, which no answer has."""
    digits = "ABCDEFGH"
    words = {"<image>": token("<image>"), **{f"IMGIMG{digit}Z": 30 + number for number, digit in enumerate(digits)}}
    pictures: dict[str, Any] = {
        "embed_dim": 8,
        "num_embeddings": len(digits),
        "latent_channels": 8,
        "base_channels": 32,
    }
    pictures |= {"resolution": SIDE, "channel_multiplier": [1, 1, 1], "num_res_blocks": 1}
    return transformers.ChameleonConfig(**TEXT, vq_config=pictures, vocabulary_map=words, **more)


def _emu3() -> Any:
    """With pictures of rows of four tokens among eight, and one that ends a row."""
    words = {f"<|visual token {number:06}|>": 30 + number for number in range(8)}
    pictures: dict[str, Any] = {"codebook_size": 8, "base_channels": 32, "channel_multiplier": [1, 1, 1, 2]}
    pictures |= {"num_res_blocks": 1, "hidden_size": 64, "temporal_downsample_factor": 2}
    words |= {"<image>": token("<image>"), "<|extra_200|>": 39}
    return transformers.Emu3Config(text_config={**TEXT}, vq_config=pictures, vocabulary_map=words)


def _in_rows(random: torch.Generator, size: int) -> Picture:
    """Three rows between marks, behind their number."""
    sides = {"pixel_values": torch.randn(1, 3, 24, 32, generator=random), "image_sizes": torch.tensor([[24, 32]])}
    return Picture(sides, [60, 51, 42, 52, 61, *[token("<image>")] * 3 * 5, 62, 63])


def _unlimited_ocr() -> Any:
    """With a window that no answer fills."""
    text = {**TEXT, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
    sam = {"hidden_size": 32, "mlp_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 128}
    clip = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return transformers.UnlimitedOcrConfig(
        text_config={**text, "moe_intermediate_size": 48, "sliding_window": 4096},
        vision_config={
            "sam_config": {**sam, "global_attn_indexes": [1], "downsample_channels": [24, 32]},
            "encoder_config": {**clip, "image_size": 28, "patch_size": 14},
        },
        image_token_id=token("<image>"),
    )


def _whole_in_rows(random: torch.Generator, size: int) -> Picture:
    """A picture without tiles."""
    tensors = {"pixel_values": torch.randn(1, 3, 128, 128, generator=random)}
    tensors |= {"num_local_patches": torch.tensor([0]), "patches_grid": torch.tensor([[1, 1]])}
    return Picture(tensors, [token("<image>")] * 7)


def _with_lists(parts: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
    whole = cat()(parts)
    return {**whole, **{name: whole[name].tolist() for name in ("num_local_patches", "patches_grid")}}


def _perception_lm() -> Any:
    """With a tower that needs no package besides transformers."""
    return transformers.PerceptionLMConfig(
        text_config={"model_type": "llama", **TEXT},
        vision_config={**_SIGLIP, "model_args": {"embed_dim": SIZES["hidden_size"]}},
        vision_use_cls_token=False,
        projector_pooling_ratio=2,
        image_token_id=token("<image>"),
        video_token_id=token("<video>"),
    )


def _tiles(random: torch.Generator, size: int) -> Picture:
    """The whole, or that and two tiles."""
    count = 1 + 2 * size
    pixels = torch.randn(1, count, 3, SIDE, SIDE, generator=random)
    return Picture({"pixel_values": pixels}, [token("<image>")] * (count * _PATCHES // 4))


def _fast_vlm() -> Any:
    """With a convolutional tower that needs no package besides transformers."""
    tower = {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 24], "depths": [1, 1]}
    return transformers.FastVlmConfig(
        text_config={"model_type": "qwen2", **TEXT},
        vision_config={**tower, "layer_type": "basic", "hidden_size": 24},
        image_token_index=token("<image>"),
        image_seq_length=4,
    )


_SIGLIP: Final = {
    **{"model_type": "siglip_vision_model", **SIZES, "image_size": SIDE},
    **{"patch_size": PATCH, "vision_use_head": False},
}
_IMAGE: Final = token("<image>")
MARKING: Final[Mapping[str, tuple[Callable[[], Any], Kind]]] = {
    "molmo2": (_molmo2, _MOLMO2),
    "chameleon": (_chameleon, Kind(square("<image>", 16), _IMAGE, cat())),
    "chameleon_swin": (partial(_chameleon, swin_norm=True), Kind(square("<image>", 16), _IMAGE, cat())),
    "emu3": (_emu3, Kind(_in_rows, _IMAGE, cat())),
    "unlimited_ocr": (_unlimited_ocr, Kind(_whole_in_rows, _IMAGE, _with_lists)),
    "fast_vlm": (_fast_vlm, Kind(square("<image>", 4), _IMAGE, cat())),
    "perception_lm": (_perception_lm, Kind(_tiles, _IMAGE, cat(1), (token("<video>"),))),
    "molmo2_olmo": (_molmo2_olmo, _MOLMO2),
    "molmo2_film": (
        _molmo2,
        Kind(_frames, _TOKEN, _pooled("pixel_values_videos", "video_token_pooling"), joined_marks=_MARKS),
    ),
}
"""By name: a configuration, and what it takes."""
