"""Tiny random models that see or hear, besides those of :mod:`stentor.tests.support.vision_models`, and what they
take."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.engine.models.transformers.tower import leave_out_pictures
from stentor.tests.parity.inklings import INKLINGS
from stentor.tests.parity.looking import LOOKING, answer_without_pictures
from stentor.tests.parity.marking import MARKING
from stentor.tests.parity.muses import MUSES
from stentor.tests.parity.newer_media import NEWER
from stentor.tests.parity.omni import OMNI, take_videos_apart
from stentor.tests.parity.pictures import PICTURES, Kind, Picture, cat, film, film_in_frames, qwen_picture, square
from stentor.tests.parity.published import PUBLISHED, lighton_ocr
from stentor.tests.parity.reading import READING
from stentor.tests.parity.sounding import SOUNDING, grouped, model_of, second, with_a_talker
from stentor.tests.parity.viewing import VIEWING, see_nothing_before_pictures, turn_by_pairs
from stentor.tests.support.vision_models import EOS, PAD, PATCH, SIDE, SIZES, TEXT, VOCAB, Maker, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

_PLAIN: Final = {"rope_type": "default", "rope_theta": 10000.0}
_QWEN: Final = {
    "image_token_id": token("<|image_pad|>"),
    "video_token_id": token("<|video_pad|>"),
    "vision_start_token_id": token("<|vision_start|>"),
    "vision_end_token_id": token("<|vision_end|>"),
}


def _qwen2_vl() -> Any:
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": PATCH, "mlp_ratio": 2}
    text = {**TEXT, "rope_parameters": {**_PLAIN, "mrope_section": [2, 3, 3]}}
    return transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **_QWEN)


def _new_qwen_vision(**more: object) -> dict[str, Any]:
    return {
        **{"depth": 2, "hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 96, "num_heads": 4},
        **{"patch_size": PATCH, "num_position_embeddings": 36, **more},
    }


def _qwen3_vl_moe() -> Any:
    rope = {**_PLAIN, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    text = {**TEXT, "num_hidden_layers": 3, "head_dim": 16, "rope_parameters": rope, "decoder_sparse_step": 1}
    text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    vision = _new_qwen_vision(deepstack_visual_indexes=[0])
    return transformers.Qwen3VLMoeConfig(text_config=text, vision_config=vision, **_QWEN)


def _recurrent() -> dict[str, Any]:
    rope = {**_PLAIN, "mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.5}
    return {
        **{**TEXT, "num_hidden_layers": 3, "head_dim": 16, "rope_parameters": rope},
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
        **{"linear_key_head_dim": 16, "linear_value_head_dim": 16},
    }


def _qwen3_5() -> Any:
    return transformers.Qwen3_5Config(text_config=_recurrent(), vision_config=_new_qwen_vision(), **_QWEN)


def _qwen3_5_moe() -> Any:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    text = {**_recurrent(), **experts, "shared_expert_intermediate_size": 48}
    return transformers.Qwen3_5MoeConfig(text_config=text, vision_config=_new_qwen_vision(), **_QWEN)


def _glm4v() -> Any:
    vision = {"depth": 2, "hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 96, "num_heads": 4}
    vision |= {"patch_size": PATCH, "image_size": 32}
    text = {**TEXT, "rope_parameters": {**_PLAIN, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}}
    return transformers.Glm4vConfig(text_config=text, vision_config=vision, **_glm_tokens())


def _glm4v_moe() -> Any:
    vision = {"depth": 2, "hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 96, "num_heads": 4}
    vision |= {"patch_size": PATCH, "image_size": 32}
    text = {**TEXT, "rope_parameters": {**_PLAIN, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}}
    text |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "first_k_dense_replace": 1}
    text |= {"head_dim": 16, "n_shared_experts": 1, "attention_bias": True}
    return transformers.Glm4vMoeConfig(text_config=text, vision_config=vision, **_glm_tokens())


def _glm_tokens() -> dict[str, int]:
    return {
        "image_token_id": token("<|image_pad|>"),
        "video_token_id": token("<|video_pad|>"),
        "image_start_token_id": token("<|vision_start|>"),
        "image_end_token_id": token("<|vision_end|>"),
        "video_start_token_id": token("<start_of_image>"),
        "video_end_token_id": token("<end_of_image>"),
    }


def _glm46v() -> Any:
    vision = {"depth": 2, "hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 96, "num_heads": 4}
    vision |= {"patch_size": PATCH, "image_size": 32}
    text = {**TEXT, "rope_parameters": {**_PLAIN, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}}
    return transformers.Glm46VConfig(text_config=text, vision_config=vision, **_glm_tokens())


def _cohere_sees(config: str, **more: object) -> Any:
    text = {**TEXT, "num_hidden_layers": 3, "head_dim": 16, "sliding_window": 32, "model_type": "cohere2"}
    text |= {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
    text |= {"logit_scale": 1.0}  # transformers forgets it beside pictures, where the text alone was trained with it
    vision = {"model_type": "siglip_vision_model", **SIZES, "image_size": SIDE, "patch_size": PATCH}
    return getattr(transformers, config)(
        text_config=text,
        vision_config={**vision, "vision_use_head": False},
        downsample_factor=2,
        alignment_intermediate_size=96,
        **more,
    )


def _aya_vision() -> Any:
    return _cohere_sees("AyaVisionConfig", image_token_index=token("<image>"))


def _cohere2_vision() -> Any:
    return _cohere_sees("Cohere2VisionConfig", image_token_id=token("<image>"))


def _lfm2_vl() -> Any:
    text = {**TEXT, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "model_type": "lfm2"}
    text |= {"block_auto_adjust_ff_dim": False, "block_ff_dim": 96}
    vision = {**SIZES, "patch_size": PATCH, "num_patches": 16, "model_type": "siglip2_vision_model"}
    return transformers.Lfm2VlConfig(
        text_config=text,
        vision_config={**vision, "vision_use_head": False},
        image_token_id=token("<image>"),
        projector_hidden_size=64,
    )


def _llava_next(text: Mapping[str, Any]) -> Any:
    vision = {"model_type": "siglip_vision_model", **SIZES, "image_size": SIDE, "patch_size": PATCH}
    return transformers.LlavaNextConfig(
        text_config={**TEXT, **text},
        vision_config={**vision, "vision_use_head": False},
        image_token_index=token("<image>"),
        image_grid_pinpoints=[[SIDE, 2 * SIDE], [2 * SIDE, SIDE]],
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )


def _granite_vision() -> Any:
    return _llava_next({"model_type": "granite", "embedding_multiplier": 6.0, "residual_multiplier": 0.3})


def _gemma4(**more: object) -> Any:
    text = {**TEXT, "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "sliding_window": 32}
    text |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "hidden_size_per_layer_input": 0}
    vision = {**SIZES, "num_key_value_heads": 4, "head_dim": 16, "patch_size": PATCH, "pooling_kernel_size": 2}
    vision |= {"position_embedding_size": 64}
    return transformers.Gemma4Config(
        text_config={**text, "vocab_size_per_layer_input": VOCAB, **more},
        vision_config=vision,
        audio_config=None,
        image_token_id=token("<image_soft_token>"),
        video_token_id=token("<video>"),
        boi_token_id=token("<start_of_image>"),
        eoi_token_id=token("<end_of_image>"),
    )


def _gemma4_small() -> Any:
    return _gemma4(hidden_size_per_layer_input=16, num_kv_shared_layers=2, use_bidirectional_attention=None)


def _gemma4_large() -> Any:
    """Their pictures are longer than the window."""
    return _gemma4(use_bidirectional_attention="vision", sliding_window=4)


def _gemma4_hears() -> Any:
    """Small ones hear, and clip."""
    config = _gemma4_small()
    config.vision_config.use_clipped_linears = True
    audio = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "output_proj_dims": 48}
    config.audio_config = transformers.Gemma4AudioConfig(**audio, subsampling_conv_channels=[128, 4])
    config.audio_token_id = token("<image>")
    return config


_GEMMA3N: Final = {"image": 297, "audio": 305, "behind_image": 296, "behind_audio": 304}
"""Tokens that stand behind those of text: the first 8 are of pictures, 16 of sounds."""
_SOFT: Final = 12


def _gemma3n() -> Any:
    text = {**TEXT, "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 32, "laurel_rank": 8}
    text |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2}
    text |= {"activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0], "hidden_size_per_layer_input": 16}
    audio: dict[str, Any] = {"hidden_size": 32, "conf_num_attention_heads": 4, "conf_num_hidden_layers": 2}
    audio |= {"sscp_conv_channel_size": (8, 4), "vocab_offset": _GEMMA3N["behind_audio"], "vocab_size": 16}
    vision = {"hidden_size": 16, "vocab_offset": _GEMMA3N["behind_image"], "vocab_size": 8}
    config = transformers.Gemma3nConfig(
        text_config={**text, "vocab_size_per_layer_input": 288},
        vision_config=vision,
        audio_config=audio,
        audio_soft_tokens_per_image=_SOFT,
        image_token_id=_GEMMA3N["image"],
        audio_token_id=_GEMMA3N["audio"],
        eoi_token_id=_GEMMA3N["behind_image"],
        eoa_token_id=_GEMMA3N["behind_audio"],
    )
    leave_out_pictures(config)
    return config


def _ovis2() -> Any:
    vision = {**SIZES, "image_size": SIDE, "patch_size": PATCH, "vocab_size": 40, "hidden_stride": 2}
    return transformers.Ovis2Config(
        text_config={"model_type": "qwen2", **TEXT},
        vision_config={**vision, "num_visual_indicator_tokens": 5},
        image_token_id=token("<image>"),
        visual_indicator_token_ids=[token(f"<row_1_col_{column}>") for column in (1, 2, 3)]
        + [token(f"<row_2_col_{column}>") for column in (1, 2)],
        vocab_size=VOCAB,
        hidden_size=64,
        tie_word_embeddings=False,
    )


def _ovis_picture(random: torch.Generator, size: int) -> Picture:
    pixels = torch.randn(size + 1, 3, SIDE, SIDE, generator=random)
    begin, between, end = (token(f"<row_1_col_{column}>") for column in (1, 2, 3))
    tiles = [each for _ in range(size + 1) for each in (*[token("<image>")] * 4, between)]
    return Picture({"pixel_values": pixels}, [begin, *tiles, end])


def _mistral4() -> Any:
    latents = {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 1}
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    rope |= {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}
    text = {**TEXT, **latents, **experts, "num_key_value_heads": 4, "rope_parameters": rope}
    return transformers.Mistral3Config(
        text_config={"model_type": "mistral4", **text},
        vision_config={"model_type": "pixtral", **SIZES, "image_size": 2 * SIDE, "patch_size": PATCH},
        image_token_index=token("[IMG]"),
        spatial_merge_size=2,
    )


def _qwen3_asr() -> Any:
    audio = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "d_model": 64}
    return transformers.Qwen3ASRConfig(
        text_config={"model_type": "qwen3", **TEXT, "head_dim": 16, "tie_word_embeddings": True},
        audio_config={**audio, "num_mel_bins": 8, "max_source_positions": 16, "output_dim": 64},
        audio_token_id=token("<video>"),
        pad_token_id=token(PAD),
        eos_token_id=token(EOS),
    )


def _llama4() -> Any:
    text = {**TEXT, "num_hidden_layers": 4, "head_dim": 16, "intermediate_size_mlp": 96, "num_local_experts": 4}
    text |= {"num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "no_rope_layers": [1, 1, 1, 0]}
    text |= {"attention_chunk_size": 48, "moe_layers": [1, 3]}
    vision = {**SIZES, "image_size": SIDE, "patch_size": PATCH, "vision_output_dim": 64, "intermediate_size": 256}
    vision |= {"projector_input_dim": 64, "projector_output_dim": 64, "pixel_shuffle_ratio": 0.5}
    return transformers.Llama4Config(text_config=text, vision_config=vision, image_token_index=token("<image>"))


def _voxtral() -> Any:
    audio = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "hidden_size": 32}
    return transformers.VoxtralConfig(
        text_config={"model_type": "llama", **TEXT, "head_dim": 16},
        audio_config={**audio, "num_mel_bins": 8, "max_source_positions": 16, "head_dim": 8, "num_key_value_heads": 4},
        audio_token_id=token("<video>"),
    )


def _glm_frames(random: torch.Generator, size: int) -> Picture:
    """The same with a time behind each frame, whose placeholders are those of pictures, as GLM-4V takes it."""
    whole = film(random, size)
    inside = [token("<|image_pad|>")] * (len(whole.tokens) // 2 - 1)
    frame = [token("<|vision_start|>"), *inside, token("<|vision_end|>")]
    begin, end = token("<start_of_image>"), token("<end_of_image>")
    return Picture(whole.tensors, [begin, *frame, 61, *frame, 62, end], whole.grid, "video")


def _siglip2(random: torch.Generator, size: int) -> Picture:
    rows, columns = ((4, 6), (6, 4), (4, 4), (2, 4))[size]
    pixels = torch.randn(1, rows * columns, 3 * PATCH * PATCH, generator=random)
    mask, shapes = torch.ones(1, rows * columns, dtype=torch.int64), torch.tensor([[rows, columns]])
    tensors = {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": shapes}
    return Picture(tensors, [token("<image>")] * (rows * columns // 4))


def _siglip2_padded(parts: Any) -> dict[str, torch.Tensor]:
    longest = max(part["pixel_values"].shape[1] for part in parts)

    def filled(name: str) -> torch.Tensor:
        rows = []
        for part in parts:
            tensor = part[name]
            rows.append(torch.cat([tensor, tensor.new_zeros(1, longest - tensor.shape[1], *tensor.shape[2:])], 1))
        return torch.cat(rows)

    return {
        "pixel_values": filled("pixel_values"),
        "pixel_attention_mask": filled("pixel_attention_mask"),
        "spatial_shapes": torch.cat([part["spatial_shapes"] for part in parts]),
    }


def _anyres(random: torch.Generator, size: int) -> Picture:
    pixels = torch.randn(1, 3, 3, SIDE, SIDE, generator=random)
    sizes = torch.tensor([[SIDE, 2 * SIDE]])
    return Picture({"pixel_values": pixels, "image_sizes": sizes}, [token("<image>")] * (16 + 4 * 9))


def _gemma4_picture(random: torch.Generator, size: int) -> Picture:
    rows, columns = ((4, 6), (6, 4), (4, 4), (2, 4))[size]
    pixels = torch.rand(1, rows * columns, 3 * PATCH * PATCH, generator=random)
    places = torch.tensor([[[column, row] for row in range(rows) for column in range(columns)]])
    inside = [token("<image_soft_token>")] * (rows * columns // 4)
    tokens = [token("<start_of_image>"), *inside, token("<end_of_image>")]
    return Picture({"pixel_values": pixels, "image_position_ids": places}, tokens)


def _gemma4_sound(random: torch.Generator, size: int) -> Picture:
    """A picture, or a sound of which some is only filled up."""
    if not size:
        return _gemma4_picture(random, 0)
    features, frames = torch.randn(1, 64, 128, generator=random), 50
    mask = (torch.arange(64) < frames)[None]
    inside = [token("<image>")] * -(-frames // 4)
    return Picture({"input_features": features, "input_features_mask": mask}, inside, modality="audio")


def _gemma3n_sound(random: torch.Generator, size: int) -> Picture:
    """Of 64 frames some fill a sound up."""
    frames = (50, 40)[size]
    features, mask = torch.randn(1, 64, 128, generator=random), (torch.arange(64) < frames)[None]
    inside = [_GEMMA3N["audio"]] * _SOFT
    tokens = [61, *inside, _GEMMA3N["behind_audio"], _GEMMA3N["behind_image"]]
    return Picture({"input_features": features, "input_features_mask": mask}, tokens, modality="audio")


def _gemma4_film(random: torch.Generator, size: int) -> Picture:
    """Two frames with their times."""
    frames = [_gemma4_picture(random, 2) for _ in range(2)]
    inside = [token("<video>")] * (len(frames[0].tokens) - 2)
    frame = [token("<start_of_image>"), *inside, token("<end_of_image>")]
    tensors = {
        "pixel_values_videos": torch.cat([each.tensors["pixel_values"] for each in frames]),
        "video_position_ids": torch.cat([each.tensors["image_position_ids"] for each in frames]),
        "num_frames_per_video": torch.tensor([2]),
    }
    return Picture(tensors, [61, 62, *frame, 63, *frame], modality="video")


def _gemma4_padded(parts: Any) -> dict[str, torch.Tensor]:
    longest = max(part["pixel_values"].shape[1] for part in parts)
    pixels, places = [], []
    for part in parts:
        pad = longest - part["pixel_values"].shape[1]
        pixels.append(torch.nn.functional.pad(part["pixel_values"], (0, 0, 0, pad)))
        places.append(torch.nn.functional.pad(part["image_position_ids"], (0, 0, 0, pad), value=-1))
    return {"pixel_values": torch.cat(pixels), "image_position_ids": torch.cat(places)}


def _voxtral_sound(random: torch.Generator, size: int) -> Picture:
    features = torch.randn(1, 8, 32, generator=random)
    return Picture({"input_features": features}, [token("<video>")] * 4, modality="audio")


_QWEN_PICTURES: Final = Kind(qwen_picture, token("<|image_pad|>"), cat())
_IMAGE: Final = token("<image>")
_FAMILIES: Final[Mapping[str, tuple[Callable[[], Any], Kind]]] = {
    "qwen2_vl": (_qwen2_vl, _QWEN_PICTURES),
    "qwen3_vl_moe": (_qwen3_vl_moe, _QWEN_PICTURES),
    "qwen3_5": (_qwen3_5, _QWEN_PICTURES),
    "qwen3_5_moe": (_qwen3_5_moe, _QWEN_PICTURES),
    "glm4v": (_glm4v, _QWEN_PICTURES),
    "glm4v_moe": (_glm4v_moe, _QWEN_PICTURES),
    "glm46v": (_glm46v, _QWEN_PICTURES),
    "glm4v_film": (_glm4v, Kind(_glm_frames, token("<|image_pad|>"), cat())),
    "aya_vision": (_aya_vision, Kind(square("<image>", 4), _IMAGE, cat())),
    "cohere2_vision": (_cohere2_vision, Kind(square("<image>", 4), _IMAGE, cat())),
    "qwen2_vl_film": (_qwen2_vl, Kind(film, token("<|video_pad|>"), cat())),
    "qwen3_5_film": (_qwen3_5, Kind(film_in_frames, token("<|video_pad|>"), cat())),
    "lfm2_vl": (_lfm2_vl, Kind(_siglip2, _IMAGE, _siglip2_padded)),
    "granite_vision": (_granite_vision, Kind(_anyres, _IMAGE, cat())),
    "gemma4_small": (_gemma4_small, Kind(_gemma4_picture, token("<image_soft_token>"), _gemma4_padded)),
    "gemma4_large": (_gemma4_large, Kind(_gemma4_picture, token("<image_soft_token>"), _gemma4_padded)),
    "gemma4_hears": (
        _gemma4_hears,
        Kind(_gemma4_sound, token("<image_soft_token>"), grouped, (token("<image>"),)),
    ),
    "gemma3n_hears": (
        _gemma3n,
        Kind(_gemma3n_sound, _GEMMA3N["audio"], cat(), tuple(each for each in range(296, VOCAB) if each != 305)),
    ),
    "gemma4_film": (_gemma4_large, Kind(_gemma4_film, token("<video>"), cat())),
    "lighton_ocr": (lighton_ocr, PICTURES["mistral3"]),
    "mistral4": (_mistral4, PICTURES["mistral3"]),
    "ovis2": (_ovis2, Kind(_ovis_picture, _IMAGE, cat())),
    "llama4": (_llama4, Kind(square("<image>", 4), _IMAGE, cat())),
    "qwen3_asr": (_qwen3_asr, Kind(second, token("<video>"), cat())),
    "voxtral": (_voxtral, Kind(_voxtral_sound, token("<video>"), cat())),
    **INKLINGS,
    **MUSES,
    **OMNI,
    **SOUNDING,
    **READING,
    **VIEWING,
    **LOOKING,
    **MARKING,
    **NEWER,
}


_REPAIRED: Final[Mapping[str, Callable[[Any], None]]] = {
    "blip-2": answer_without_pictures,
    **{"hunyuan_vl": turn_by_pairs, "mllama": see_nothing_before_pictures, "nemotron_h_omni": take_videos_apart},
}
"""By model type, where a class of transformers computes otherwise than its authors' code, or not at all."""


def _made(config: Callable[[], Any]) -> Maker:
    def make(folder: Path) -> Any:
        made = config()
        model = randomised(made.model_type, lambda: model_of(made))
        if made.model_type == "phi4_multimodal":
            for module in model.model.embed_tokens_extend.image_embed.modules():
                if getattr(module, "is_causal", False):
                    module.is_causal = False  # else it is causal where all of a picture's patches are real
        if made.model_type in _REPAIRED:
            _REPAIRED[made.model_type](model)
        if made.model_type.startswith(("gemma3n", "gemma4")):
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name.endswith("q_norm.weight"):
                        parameter.mul_(0.25)  # nothing else scales scores: a peaked softmax would magnify rounding
                for name, limit in model.named_buffers():
                    if name.endswith(("put_min", "put_max")):
                        limit.fill_(0.5 if name.endswith("max") else -0.5)
        model.save_pretrained(folder)
        if hasattr(made, "thinker_config"):
            with_a_talker(folder, made)
        return model

    return make


CONFIGS: Final[Mapping[str, Callable[[], Any]]] = {name: config for name, (config, _) in _FAMILIES.items()}
MAKERS: Final[Mapping[str, Maker]] = {
    **{name: _made(config) for name, config in CONFIGS.items()},
    **{name: each.make for name, each in PUBLISHED.items()},
}
KINDS: Final[Mapping[str, Kind]] = {
    **PICTURES,
    **{name: kind for name, (_, kind) in _FAMILIES.items()},
    **{name: each.kind for name, each in PUBLISHED.items()},
}
"""Of all families."""
