"""Tiny configurations of Inkling, text alone and with pictures and sounds."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.tests.parity.pictures import Kind, Picture, cat
from stentor.tests.parity.sounding import grouped
from stentor.tests.support.vision_models import PATCH, TEXT, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""
_IMAGE: Final = token("<image>")
_SOUND: Final = token("<video>")
_BINS: Final = 16
_SIZES: Final[Mapping[str, Any]] = {
    **{"head_dim": 16, "swa_head_dim": 32, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 1},
    **{"d_rel": 4, "rel_extent": 30, "sliding_window_size": 24, "moe_intermediate_size": 32},
    **{"n_routed_experts": 6, "num_experts_per_tok": 2, "logits_mup_width_multiplier": 0.5, "route_scale": 2.0},
}


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    text = {**shape, **_SIZES}
    return {
        "inkling": lambda: transformers.AutoConfig.for_model(
            "inkling_text",
            **text,
            layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding"],
            mlp_layer_types=["dense", "sparse", "sparse"],
            log_scaling_n_floor=20,
            log_scaling_alpha=0.4,
        ),
        "inkling-wide": lambda: transformers.AutoConfig.for_model(
            "inkling_text",
            **{**text, "num_hidden_layers": 6, "n_shared_experts": 1, "conv_kernel_size": 3},
            local_layer_ids=[0, 4],
            dense_mlp_idx=5,
        ),
        "inkling2": lambda: transformers.AutoConfig.for_model(
            "inkling2_text",
            **{**_second(shape), "num_hidden_layers": 5},
            layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid", "hybrid_sliding"],
            log_scaling_n_floor=20,
            log_scaling_alpha=0.4,
        ),
        "inkling2-full": lambda: transformers.AutoConfig.for_model(
            "inkling2_text",
            **{**_second(shape), "conv_kernel_size": 3, "n_layers_per_attn_res_block": 1, "n_routed_experts": 2},
            layer_types=["hybrid", "hybrid_sliding", "hybrid"],
        ),
        "inkling2-mini": lambda: transformers.AutoConfig.for_model(
            "inkling2_loop_text",
            **{**_second(shape), "num_hidden_layers": 7, "n_routed_experts": 2},
            layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid", "hybrid", "hybrid_sliding", "hybrid"],
            log_scaling_n_floor=20,
            **{"loop_layer_index_start": 2, "loop_layer_index_end": 6, "loop_num_passes": 3, "loop_gate_rank": 8},
        ),
    }


def _second(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of Inkling 2, with lengths that some heads of tiny models exceed."""
    own = {"n_layers_per_attn_res_block": 2, "qk_l2_clip_threshold": 4.5, "rel_l2_clip_threshold": 2.0}
    own["unpadded_vocab_size"] = shape["vocab_size"]
    left = ("intermediate_size", "logits_mup_width_multiplier")
    return {key: value for key, value in {**shape, **_SIZES, **own}.items() if key not in left}


def _inkling() -> Any:
    """Saved under its published names."""
    kinds = ["hybrid_sliding", "hybrid", "hybrid_sliding"]
    mlps = ["dense", "sparse", "sparse"]
    return transformers.InklingConfig(
        text_config={**TEXT, **_SIZES, "num_hidden_layers": 3, "layer_types": kinds, "mlp_layer_types": mlps},
        vision_config={"patch_size": PATCH, "num_hidden_layers": 4},
        audio_config={"n_mel_bins": 8, "mel_vocab_size": _BINS},
        image_token_id=_IMAGE,
        audio_token_id=_SOUND,
    )


def _picture_or_sound(random: torch.Generator, size: int) -> Picture:
    if size:
        bins = torch.randint(_BINS, (1, 7, 8), generator=random, dtype=torch.int32)
        return Picture({"audio_input_ids": bins}, [61, *[_SOUND] * 7], modality="audio")
    pixels = torch.randn(6, 1, PATCH, PATCH, 3, generator=random).repeat(1, 2, 1, 1, 1)
    return Picture({"pixel_values": pixels}, [token("<img>"), *[_IMAGE] * 6])


def _inkling2() -> Any:
    """Saved under its published names."""
    kinds = ["hybrid_sliding", "hybrid", "hybrid_sliding"]
    tower = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": PATCH}
    tower |= {"posemb_grid_size": 5, "projection_hidden_dim": 48, "text_hidden_size": TEXT["hidden_size"]}
    return transformers.Inkling2Config(
        text_config={**_second(TEXT), "num_hidden_layers": 3, "layer_types": kinds},
        vision_config=tower,
        image_token_id=_IMAGE,
    )


def _mini() -> Any:
    """An Inkling 2 whose middle layers run twice, under its published names."""
    kinds = ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"]
    config = _inkling2().to_dict()
    loop = {"loop_layer_index_start": 2, "loop_layer_index_end": 4, "loop_num_passes": 2, "loop_gate_rank": 8}
    return transformers.Inkling2LoopConfig(
        text_config={**_second(TEXT), **loop, "num_hidden_layers": 4, "layer_types": kinds},
        vision_config=config["vision_config"],
        image_token_id=_IMAGE,
    )


def _squares(random: torch.Generator, size: int) -> Picture:
    rows, columns = ((2, 3), (4, 1), (1, 1))[size]
    pixels = torch.randn(rows * columns, 2 * PATCH, 2 * PATCH, 3, generator=random)
    grid = torch.tensor([[1, rows, columns]])
    return Picture({"pixel_values": pixels, "image_grid_thw": grid}, [token("<img>"), *[_IMAGE] * rows * columns])


INKLINGS: Final[Mapping[str, tuple[Callable[[], Any], Kind]]] = {
    "inkling": (_inkling, Kind(_picture_or_sound, _IMAGE, grouped, (_SOUND,))),
    "inkling2": (_inkling2, Kind(_squares, _IMAGE, cat())),
    "inkling2_mini": (_mini, Kind(_squares, _IMAGE, cat())),
}
