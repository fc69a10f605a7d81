"""Tiny random models that see, most of them for documents, besides those of :mod:`.seeing`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.tests.parity.pictures import Kind, Picture, Tensors, cat, qwen_picture, square
from stentor.tests.parity.sounding import grouped
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
    """A picture of Qwen-VL whose tokens have the positions of text."""
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


def _paligemma(**text: object) -> Any:
    """Gemma in a generation of its own; ``text`` differs between them."""
    return transformers.PaliGemmaConfig(
        text_config={**TEXT, "head_dim": 16, **text},
        vision_config={**_SIGLIP, "vision_use_head": False},
        image_token_index=token("<image>"),
        projection_dim=64,
    )


def _paligemma2() -> Any:
    """With a window in its first layer, shorter than prompts."""
    return _paligemma(model_type="gemma2", sliding_window=12, query_pre_attn_scalar=16)


def _idefics2() -> Any:
    perceiver = {"hidden_size": 64, "resampler_n_latents": 4, "resampler_depth": 2, "resampler_n_heads": 2}
    perceiver |= {"resampler_head_dim": 16, "num_key_value_heads": 1}
    return transformers.Idefics2Config(
        text_config={"model_type": "mistral", **TEXT, "head_dim": 16, "sliding_window": None},
        vision_config={**SIZES, "image_size": 32, "patch_size": PATCH},
        perceiver_config=perceiver,
        image_token_id=token("<image>"),
    )


def _of_any_shape(random: torch.Generator, size: int) -> Picture:
    """Between marks; for the second size two parts of different heights."""
    rows = (4, 6)[: 1 + size]
    pixels = torch.randn(1, len(rows), 3, PATCH * max(rows), SIDE, generator=random)
    mask = torch.ones(1, len(rows), PATCH * max(rows), SIDE, dtype=torch.int64)
    for number, count in enumerate(rows):
        pixels[0, number, :, PATCH * count :] = 0
        mask[0, number, PATCH * count :] = 0
    mark = token("<fake_token_around_image>")
    inside = [each for _ in rows for each in (*[token("<image>")] * 4, mark)]
    return Picture({"pixel_values": pixels, "pixel_attention_mask": mask}, [mark, *inside])


def _filled_up(parts: Sequence[Tensors]) -> dict[str, torch.Tensor]:
    """All parts of pictures in one row, filled up with nothing to one shape."""
    pixels = [part["pixel_values"] for part in parts]
    masks = [
        part.get("pixel_attention_mask", torch.ones(each.shape[0], each.shape[1], *each.shape[3:], dtype=torch.int64))
        for part, each in zip(parts, pixels, strict=True)
    ]
    height, width = (max(each.shape[side] for each in pixels) for side in (3, 4))

    def whole(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        pad = torch.nn.functional.pad
        return torch.cat([pad(each, (0, width - each.shape[-1], 0, height - each.shape[-2])) for each in tensors], 1)

    return {"pixel_values": whole(pixels), "pixel_attention_mask": whole(masks)}


def _got_ocr2() -> Any:
    vision: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 64}
    vision |= {"output_channels": 16, "patch_size": PATCH, "window_size": 3, "mlp_dim": 64, "global_attn_indexes": [1]}
    return transformers.GotOcr2Config(
        text_config={"model_type": "qwen2", **TEXT, "tie_word_embeddings": True},
        vision_config=vision,
        image_token_index=token("<image>"),
    )


def _phi4() -> Any:
    vision = {**SIZES, "num_hidden_layers": 3, "image_size": SIDE, "crop_size": SIDE, "patch_size": PATCH}
    vision["image_token_id"] = token("<image>")
    audio: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_blocks": 1, "num_attention_heads": 2}
    audio |= {"ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32, "nemo_conv_channels": 8}
    return transformers.Phi4MultimodalConfig(
        **TEXT,
        vision_config=vision,
        audio_config={**audio, "audio_token_id": token("<video>")},
        tie_word_embeddings=True,
        rope_parameters={**_PLAIN, "partial_rotary_factor": 0.75},
    )


def _on_a_canvas(random: torch.Generator, size: int) -> Picture:
    """A tile, or two side by side of which the last column of patches is filled up; the whole before them."""
    tiles, patches = 1 + size, SIDE // PATCH
    mask = torch.ones(1, 1 + tiles, patches, patches)
    if size:
        mask[0, -1, :, 2:] = 0
    side = patches // 2
    count = side * (side * tiles - size + 1) + 1 + side * (side + 1)
    tensors = {
        "image_pixel_values": torch.randn(1, 1 + tiles, 3, SIDE, SIDE, generator=random),
        "image_sizes": torch.tensor([[SIDE, SIDE * tiles]]),
        "image_attention_mask": mask,
    }
    return Picture(tensors, [token("<image>")] * count)


def _with_most_tiles(parts: Sequence[Tensors]) -> dict[str, torch.Tensor]:
    """Pictures with tiles of nothing up to one number."""
    most = max(part["image_pixel_values"].shape[1] for part in parts)
    filled: dict[str, list[torch.Tensor]] = {name: [] for name in parts[0]}
    for part in parts:
        for name, tensor in part.items():
            more = 0 if name == "image_sizes" else most - tensor.shape[1]
            rest = torch.full((1, more, *tensor.shape[2:]), float(name == "image_attention_mask"))
            filled[name].append(torch.cat([tensor, rest], 1) if more else tensor)
    return {name: torch.cat(tensors) for name, tensors in filled.items()}


def _in_squares(random: torch.Generator, size: int) -> Picture:
    """A picture, or two squares of it; 16 embeddings each."""
    pixels = torch.randn(1 + size, 3, 64, 64, generator=random)
    inside = [token("<image>")] * (16 * (1 + size))
    return Picture({"pixel_values": pixels}, [token("<img>"), *inside, token("</img>")])


def minicpm(kind: str = "MiniCPMV4_6", **more: int) -> Any:
    rope = {**_PLAIN, "mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.5}
    text = {**TEXT, "model_type": "qwen3_5_text", "num_hidden_layers": 3, "head_dim": 16, "rope_parameters": rope}
    text |= {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
    text |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    text |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    vision = {**SIZES, "num_hidden_layers": 3, "image_size": 32, "patch_size": PATCH}
    tokens = {name: _QWEN[name] for name in ("image_token_id", "video_token_id")}
    made = getattr(transformers, f"{kind}Config")
    tokens |= more
    return made(text_config=text, vision_config=vision, insert_layer_id=1, tie_word_embeddings=False, **tokens)


def _minimax_m3() -> Any:
    text = {**TEXT, "head_dim": 16, "rotary_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
    text |= {"rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5}}
    layers = TEXT["num_hidden_layers"]
    text |= {"layer_types": ["full_attention", *["minimax_m3_sparse"] * (layers - 1)]}
    text |= {"mlp_layer_types": ["dense", *["sparse"] * (layers - 1)], "dense_intermediate_size": 96}
    text |= {"index_n_heads": TEXT["num_key_value_heads"], "index_head_dim": 16, "index_block_size": 16}
    text |= {"index_topk_blocks": 1, "shared_intermediate_size": 48}
    return transformers.MiniMaxM3VLConfig(
        text_config={"model_type": "minimax_m3_vl_text", **text},
        vision_config={**SIZES, "image_size": SIDE, "patch_size": PATCH},
        image_token_index=token("<|image_pad|>"),
        video_token_index=token("<|video_pad|>"),
        projector_hidden_size=48,
    )


def _step() -> Any:
    text = {**TEXT, "head_dim": 16, "sliding_window": 24, "num_sliding_attention_heads": 8, "n_routed_experts": 4}
    text |= {"layer_types": ["full_attention", *["sliding_attention"] * (TEXT["num_hidden_layers"] - 1)]}
    text |= {"mlp_layer_types": ["dense", *["sparse"] * (TEXT["num_hidden_layers"] - 1)], "num_experts_per_tok": 2}
    text |= {"moe_intermediate_size": 32, "share_expert_dim": 48}
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 1.5}
    vision |= {"image_size": SIDE, "patch_size": PATCH, "max_position_embeddings": (SIDE // PATCH) ** 2}
    return transformers.Step3p7Config(text_config=text, vision_config=vision, image_token_id=token("<image>"))


def _whole_and_squares(random: torch.Generator, size: int) -> Picture:
    """A whole of one embedding, and for the second size two squares of four before it."""
    tensors = {"pixel_values": torch.randn(1, 3, SIDE, SIDE, generator=random)}
    tensors["num_local_patches"] = torch.tensor([2 * size])
    inside = [token("<image>")] * 4
    if size:
        tensors["pixel_values_local"] = torch.randn(2, 3, 8 * PATCH, 8 * PATCH, generator=random)
    squares = [token("<start_of_image>"), *inside, token("<end_of_image>")] * 2 * size
    return Picture(tensors, [*squares, token("<img>"), token("<image>"), token("</img>")])


def _gemma4_unified() -> Any:
    """With a window that is shorter than its pictures, and no encoder of any media."""
    text = {**TEXT, "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "sliding_window": 4}
    text["layer_types"] = ["sliding_attention", "full_attention"] * 2
    return transformers.Gemma4UnifiedConfig(
        text_config=text,
        vision_config={"patch_size": PATCH // 2, "pooling_kernel_size": 2, "mm_embed_dim": 48, "mm_posemb_size": 80}
        | {"output_proj_dims": 48},
        audio_config={"audio_embed_dim": 8},
        image_token_id=token("<image_soft_token>"),
        video_token_id=token("<video>"),
        audio_token_id=token("<image>"),
        boi_token_id=token("<start_of_image>"),
        eoi_token_id=token("<end_of_image>"),
    )


def _of_squares(random: torch.Generator, size: int) -> Picture:
    rows, columns = ((2, 3), (3, 2))[size % 2]
    places = torch.tensor([[[column, row] for row in range(rows) for column in range(columns)]])
    tensors = {"pixel_values": torch.rand(1, 6, 3 * PATCH * PATCH, generator=random), "image_position_ids": places}
    inside = [token("<image_soft_token>")] * 6
    return Picture(tensors, [token("<start_of_image>"), *inside, token("<end_of_image>")])


def _squares_or_samples(random: torch.Generator, size: int) -> Picture:
    """A picture, or a sound of five tokens."""
    if not size:
        return _of_squares(random, 0)
    tensors = {"input_features": torch.randn(1, 5, 8, generator=random)}
    tensors["input_features_mask"] = torch.ones(1, 5, dtype=torch.bool)
    return Picture(tensors, [token("<image>")] * 5, modality="audio")


def _frames_of_squares(random: torch.Generator, size: int) -> Picture:
    """Two frames with their times."""
    frames = [_of_squares(random, size) for _ in range(2)]
    frame = [token("<start_of_image>"), *[token("<video>")] * 6, token("<end_of_image>")]
    tensors = {
        "pixel_values_videos": torch.cat([each.tensors["pixel_values"] for each in frames]),
        "video_position_ids": torch.cat([each.tensors["image_position_ids"] for each in frames]),
        "num_frames_per_video": torch.tensor([2]),
    }
    return Picture(tensors, [61, 62, *frame, 63, *frame], modality="video")


def _granite4_vision() -> Any:
    """With features before its first layer and others, from two layers of the tower and from corners of squares."""
    text = {**TEXT, "num_hidden_layers": 5, "embedding_multiplier": 6.0, "residual_multiplier": 0.3}
    text |= {"logits_scaling": 0.5, "attention_multiplier": 0.2}
    qformer = {"model_type": "blip_2_qformer", **SIZES, "num_hidden_layers": 1, "num_attention_heads": 1}
    return transformers.Granite4VisionConfig(
        text_config=text,
        vision_config={**_SIGLIP, "vision_use_head": False},
        qformer_config={**qformer, "cross_attention_frequency": 1, "use_qformer_text_input": False},
        image_token_index=token("<image>"),
        image_grid_pinpoints=[[SIDE, 2 * SIDE], [2 * SIDE, SIDE]],
        vision_feature_select_strategy="full",
        downsample_rate="1/2",
        deepstack_layer_map=[[-1, 0], [-2, 1]],
        spatial_target_layers=[2, 3, 4, 2],
    )


def _halved_tiles(random: torch.Generator, size: int) -> Picture:
    """A whole picture, and two tiles of it side by side with a line's end behind each row."""
    pixels = torch.randn(1, 3, 3, SIDE, SIDE, generator=random)
    tensors = {"pixel_values": pixels, "image_sizes": torch.tensor([[SIDE, 2 * SIDE]])}
    return Picture(tensors, [token("<image>")] * (4 + 2 * 5))


ARIA_SIDE: Final = 980
"""Pixels on each side of its pictures; its processor makes no smaller ones."""


def _aria() -> Any:
    experts = {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 2, "intermediate_size": 32}
    return transformers.AriaConfig(
        text_config={**TEXT, **experts},
        vision_config={"model_type": "idefics3_vision", **SIZES, "image_size": ARIA_SIDE, "patch_size": 140},
        projector_patch_to_query_dict={49: 3},
        image_token_index=token("<image>"),
    )


def _filled_square(random: torch.Generator, size: int) -> Picture:
    """Of which the lower half is filled up if it has the second size."""
    mask = torch.ones(1, ARIA_SIDE, ARIA_SIDE, dtype=torch.bool)
    mask[:, ARIA_SIDE // (1 + size) :] = False
    pixels = torch.randn(1, 3, ARIA_SIDE, ARIA_SIDE, generator=random)
    return Picture({"pixel_values": pixels, "pixel_mask": mask}, [token("<image>")] * 3)


def _video_llama_3() -> Any:
    tokens = {name: _QWEN[name] for name in ("image_token_id", "video_token_id")}
    return transformers.VideoLlama3Config(
        text_config={"model_type": "qwen2", **TEXT}, vision_config={**SIZES, "patch_size": PATCH}, **tokens
    )


def _merged_patches(random: torch.Generator, size: int) -> Picture:
    whole = qwen_picture(random, size)
    patches = int(whole.tensors["image_grid_thw"].prod())
    tensors = {"pixel_values": torch.randn(patches, 3 * PATCH * PATCH, generator=random)}
    return Picture({**whole.tensors, **tensors, "image_merge_sizes": torch.tensor([2])}, whole.tokens)


def _changed_squares(random: torch.Generator, size: int) -> Picture:
    """Two frames with their times, the second with what changed."""
    rows, columns = ((4, 6), (6, 4))[size % 2]
    kept = torch.tensor([True] * 6 + [False, True, True, False, False, True])
    pad = token("<|video_pad|>")
    tensors = {
        "pixel_values_videos": torch.randn(2 * rows * columns, 3 * PATCH * PATCH, generator=random),
        "video_grid_thw": torch.tensor([[2, rows, columns]]),
        "video_merge_sizes": torch.tensor([2]),
        "video_compression_mask": kept,
    }
    return Picture(tensors, [61, *[pad] * 6, 62, 63, *[pad] * 3], modality="video")


def _sliced(random: torch.Generator, size: int, merged: int = 16) -> Picture:
    """A picture in its own shape, and for the second size two slices of it; ``merged``: patches of an embedding."""
    grids = [(4, 8), *[(8, 4)] * 2 * size]
    patches = sum(rows * columns for rows, columns in grids)
    pixels = torch.randn(1, 3, PATCH, PATCH * patches, generator=random)
    pad, begin, end = (token(f"<|{name}|>") for name in ("image_pad", "vision_start", "vision_end"))
    tokens = [each for rows, columns in grids for each in (begin, *[pad] * (rows * columns // merged), end)]
    return Picture({"pixel_values": pixels, "target_sizes": torch.tensor(grids, dtype=torch.int32)}, tokens)


def along_patches(parts: Sequence[Tensors]) -> dict[str, torch.Tensor]:
    return {
        "pixel_values": torch.cat([part["pixel_values"] for part in parts], -1),
        "target_sizes": torch.cat([part["target_sizes"] for part in parts]),
    }


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
    "idefics2": (_idefics2, Kind(_of_any_shape, _IMAGE, _filled_up)),
    "got_ocr2": (_got_ocr2, Kind(_in_squares, _IMAGE, cat())),
    "phi4_multimodal": (_phi4, Kind(_on_a_canvas, _IMAGE, _with_most_tiles)),
    "minicpmv4_6": (minicpm, Kind(_sliced, _PAD, along_patches)),
    "minicpm_ocr": (lambda: minicpm("MiniCPMOcr"), Kind(partial(_sliced, merged=4), _PAD, along_patches)),
    "minimax_m3": (_minimax_m3, Kind(qwen_picture, token("<|image_pad|>"), cat())),
    "step": (_step, Kind(_whole_and_squares, _IMAGE, _one_by_one)),
    "gemma4_unified": (_gemma4_unified, Kind(_of_squares, token("<image_soft_token>"), cat())),
    "gemma4_unified_film": (_gemma4_unified, Kind(_frames_of_squares, token("<video>"), cat())),
    "gemma4_unified_hears": (
        _gemma4_unified,
        Kind(_squares_or_samples, token("<image_soft_token>"), grouped, (token("<image>"),)),
    ),
    "granite4_vision": (_granite4_vision, Kind(_halved_tiles, _IMAGE, cat())),
    "aria": (_aria, Kind(_filled_square, _IMAGE, cat())),
    "video_llama_3": (_video_llama_3, Kind(_merged_patches, _PAD, cat())),
    "video_llama_3_film": (_video_llama_3, Kind(_changed_squares, token("<|video_pad|>"), cat())),
    "paligemma": (
        lambda: _paligemma(model_type="gemma"),
        Kind(square("<image>", 16), _IMAGE, cat(), whole_prompts=True),
    ),
    "paligemma2": (_paligemma2, Kind(square("<image>", 16), _IMAGE, cat(), whole_prompts=True)),
    "janus": (_janus, Kind(square("<image>", 16), _IMAGE, cat())),
    "exaone4_5": (_exaone4_5, Kind(_plain_picture, _PAD, cat())),
    "hyperclovax_vision": (_hyperclovax_vision, Kind(_plain_picture, _PAD, cat())),
    "lfm3_vl": (_lfm3_vl, Kind(_plain_picture, _PAD, cat())),
}
"""By name: a configuration, and what it takes."""
