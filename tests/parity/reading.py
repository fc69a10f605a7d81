"""Tiny random models that see, most of them for documents, besides those of :mod:`.seeing`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.tests.parity.pictures import Kind, Picture, Tensors, cat, qwen_picture, square
from stentor.tests.support.vision_models import PATCH, SIDE, SIZES, TEXT, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

_PLAIN: Final = {"rope_type": "default", "rope_theta": 10000.0}
_QWEN: Final = {
    "image_token_id": token("<|image_pad|>"),
    "video_token_id": token("<|video_pad|>"),
    "vision_start_token_id": token("<|vision_start|>"),
    "vision_end_token_id": token("<|vision_end|>"),
}
_GLM: Final = {
    **{"image_token_id": token("<|image_pad|>"), "video_token_id": token("<|video_pad|>")},
    **{"image_start_token_id": token("<|vision_start|>"), "image_end_token_id": token("<|vision_end|>")},
    **{"video_start_token_id": token("<start_of_image>"), "video_end_token_id": token("<end_of_image>")},
}
_SIGLIP: Final = {"model_type": "siglip_vision_model", **SIZES, "image_size": SIDE, "patch_size": PATCH}
_QWEN_VISION: Final[Mapping[str, Any]] = {
    **{"depth": 2, "hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 96, "num_heads": 4},
    **{"patch_size": PATCH, "window_size": 4 * PATCH, "fullatt_block_indexes": [1]},
}


def _glm_ocr() -> Any:
    vision = {"depth": 2, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 96, "num_heads": 4}
    text = {**TEXT, "head_dim": 24, "rope_parameters": {**_PLAIN, "mrope_section": [4, 4, 4]}}
    text["partial_rotary_factor"] = 1.0
    return transformers.GlmOcrConfig(text_config=text, vision_config={**vision, "patch_size": PATCH}, **_GLM)


def _paddleocr_vl() -> Any:
    text = {**TEXT, "head_dim": 16, "rope_parameters": {**_PLAIN, "mrope_section": [2, 3, 3]}}
    vision = {**SIZES, "image_size": 20, "patch_size": PATCH}
    return transformers.PaddleOCRVLConfig(text_config=text, vision_config=vision, **_QWEN)


def _paddle_picture(random: torch.Generator, size: int) -> Picture:
    """Patches row by row."""
    whole = qwen_picture(random, size)
    rows = int(whole.tensors["image_grid_thw"].prod())
    pixels = torch.randn(rows, 3, PATCH, PATCH, generator=random)
    return Picture({**whole.tensors, "pixel_values": pixels}, whole.tokens, whole.grid)


def _plain_picture(random: torch.Generator, size: int) -> Picture:
    """As Qwen-VL's, whose tokens have positions as those of text."""
    whole = qwen_picture(random, size)
    return Picture(whole.tensors, whole.tokens)


def _deepseek_vl() -> Any:
    return transformers.DeepseekVLConfig(
        text_config={"model_type": "llama", **TEXT}, vision_config=_SIGLIP, image_token_id=token("<image>")
    )


def _deepseek_vl_hybrid() -> Any:
    high: dict[str, Any] = {**SIZES, "output_channels": 16, "image_size": 64, "patch_size": PATCH, "window_size": 3}
    high |= {"model_type": "sam_vision_model", "mlp_dim": 96, "global_attn_indexes": [1]}
    return transformers.DeepseekVLHybridConfig(
        text_config={"model_type": "llama", **TEXT},
        vision_config=_SIGLIP,
        high_res_vision_config=high,
        image_token_id=token("<image>"),
    )


def _in_two_sizes(random: torch.Generator, size: int) -> Picture:
    pixels, high = (torch.randn(1, 3, side, side, generator=random) for side in (SIDE, 64))
    return Picture({"pixel_values": pixels, "high_res_pixel_values": high}, [token("<image>")] * 16)


def _janus() -> Any:
    vision = {**SIZES, "image_size": SIDE, "patch_size": PATCH, "mlp_ratio": 1.5, "projection_dim": 64}
    painter = {
        "embed_dim": 8,
        "num_embeddings": 8,
        "latent_channels": 8,
        "base_channels": 32,
        "channel_multiplier": [1],
    }
    painter |= {"num_res_blocks": 1, "projection_dim": 64, "image_token_embed_dim": 64, "num_patches": 4}
    return transformers.JanusConfig(
        text_config={"model_type": "llama", **TEXT},
        vision_config=vision,
        vq_config=painter,
        image_token_id=token("<image>"),
    )


def _exaone4_5() -> Any:
    text = {"model_type": "exaone4", **TEXT, "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 32}
    text["layer_types"] = ["sliding_attention"] * 3 + ["full_attention"]
    vision = {**_QWEN_VISION, "num_key_value_heads": 2}
    tokens = {name: _QWEN[name] for name in ("image_token_id", "video_token_id")}
    return transformers.Exaone4_5_Config(text_config=text, vision_config=vision, **tokens)


def _hyperclovax_vision() -> Any:
    text = {"model_type": "hyperclovax", **TEXT, "embedding_multiplier": 6.0, "residual_multiplier": 0.3}
    text |= {"logits_scaling": 0.5, "attention_multiplier": 0.2, "use_post_norm": True}
    tokens = {name: _QWEN[name] for name in ("image_token_id", "video_token_id")}
    vision = {"model_type": "qwen2_5_vl_vision", **_QWEN_VISION, "out_hidden_size": 48}
    return transformers.HyperCLOVAXVisionV2Config(text_config=text, vision_config=vision, **tokens)


def _lfm3_vl() -> Any:
    text = {"model_type": "lfm3", **TEXT, "num_hidden_layers": 3, "head_dim": 16}
    text["layer_types"] = ["conv", "full_attention", "conv"]
    vision = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    vision |= {"num_key_value_heads": 2, "patch_size": PATCH, "spatial_merge_size": 2}
    return transformers.Lfm3VlConfig(text_config=text, vision_config=vision, projector_hidden_size=96, **_QWEN)


def _deepseek_ocr2() -> Any:
    sam: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 128,
        "mlp_dim": 64,
    }
    sam |= {"global_attn_indexes": [1], "downsample_channels": [24, 32], "output_channels": 16}
    encoder = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**TEXT, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
    text |= {"moe_intermediate_size": 48, "mlp_layer_types": ["dense", "sparse"], "topk_method": "greedy"}
    return transformers.DeepseekOcr2Config(
        text_config=text,
        vision_config={"sam_config": sam, "encoder_config": {**encoder, "num_key_value_heads": 2}},
        image_token_id=token("<image>"),
    )


def _ocr2_picture(random: torch.Generator, size: int) -> Picture:
    """The whole, and for the second size a tile; 144 embeddings each."""
    tensors = {"pixel_values": torch.randn(1, 3, 128, 128, generator=random), "num_local_patches": torch.tensor([size])}
    if size:
        tensors["pixel_values_local"] = torch.randn(1, 3, 64, 64, generator=random)
    return Picture(tensors, [token("<image>")] * (144 * (1 + size) + 1))


def _one_by_one(parts: Sequence[Tensors]) -> dict[str, torch.Tensor]:
    """Those that only some pictures have too."""
    names = {name for part in parts for name in part}
    return {name: torch.cat([part[name] for part in parts if name in part]) for name in names}


_IMAGE: Final = token("<image>")
_PAD: Final = token("<|image_pad|>")
READING: Final[Mapping[str, tuple[Callable[[], Any], Kind]]] = {
    "glm_ocr": (_glm_ocr, Kind(qwen_picture, _PAD, cat())),
    "paddleocr_vl": (_paddleocr_vl, Kind(_paddle_picture, _PAD, cat())),
    "deepseek_ocr2": (_deepseek_ocr2, Kind(_ocr2_picture, _IMAGE, _one_by_one)),
    "deepseek_vl": (_deepseek_vl, Kind(square("<image>", 16), _IMAGE, cat())),
    "deepseek_vl_hybrid": (_deepseek_vl_hybrid, Kind(_in_two_sizes, _IMAGE, cat())),
    "janus": (_janus, Kind(square("<image>", 16), _IMAGE, cat())),
    "exaone4_5": (_exaone4_5, Kind(_plain_picture, _PAD, cat())),
    "hyperclovax_vision": (_hyperclovax_vision, Kind(_plain_picture, _PAD, cat())),
    "lfm3_vl": (_lfm3_vl, Kind(_plain_picture, _PAD, cat())),
}
"""By name: a configuration, and what it takes."""
