"""The config.json of published files of DeepSeek-OCR and Unlimited-OCR, in the form of transformers' classes that have
the same tower. Torch-free."""

from collections.abc import Mapping
from typing import Final

from ..config_fields import Fields

PLACEHOLDER: Final = 128_815
"""``<image>`` of DeepSeek-OCR, which files omit."""
FIRST: Final = "DeepseekOCRForCausalLM"
_SECOND: Final = "DeepseekOCR2ForCausalLM"
_UNLIMITED: Final = "UnlimitedOCRForCausalLM"
"""Unlimited-OCR, whose tower is that of the first."""


def is_deepseek_ocr(config: Mapping[str, object]) -> bool:
    """Whether it is a published file."""
    return any(each in (FIRST, _SECOND, _UNLIMITED) for each in Fields(config).texts("architectures") or ())


def with_known_tower(config: Mapping[str, object]) -> Mapping[str, object]:
    """The config.json of transformers' class for the tower of a published file; any other is returned as it is.

    Raises :class:`..config_fields.ConfigError`.
    """
    if not is_deepseek_ocr(config):
        return config
    whole = Fields(config)
    text = Fields(whole.table("language_config") or config)
    sizes = {name: text.integer(name) for name in ("vocab_size", "hidden_size", "num_attention_heads")}
    first = _SECOND not in (whole.texts("architectures") or ())
    name, kind = ("UnlimitedOcr", "unlimited_ocr") if first else ("DeepseekOcr2", "deepseek_ocr2")
    made: dict[str, object] = {
        **{"architectures": [f"{name}ForConditionalGeneration"], "model_type": kind},
        **{"text_config": sizes, "image_token_id": PLACEHOLDER},
    }
    return {**made, "vision_config": _towers(Fields(whole.table("vision_config") or {}))} if first else made


def _towers(vision: Fields) -> dict[str, object]:
    """SAM's and CLIP's configurations."""
    width = Fields(vision.table("width") or {})
    sam, clip = Fields(width.table("sam_vit_b") or {}), Fields(width.table("clip-l-14-224") or {})
    sam_size, clip_size = sam.integer("width", 768), clip.integer("width", 1024)
    return {
        "sam_config": {
            **{"hidden_size": sam_size, "mlp_dim": 4 * sam_size, "image_size": vision.integer("image_size", 1024)},
            **{"num_hidden_layers": sam.integer("layers", 12), "num_attention_heads": sam.integer("heads", 12)},
            **{"global_attn_indexes": [int(each) for each in sam.numbers("global_attn_indexes")] or [2, 5, 8, 11]},
            "downsample_channels": [int(each) for each in sam.numbers("downsample_channels")] or [512, 1024],
        },
        "encoder_config": {
            **{"hidden_size": clip_size, "intermediate_size": 4 * clip_size},
            **{"num_hidden_layers": clip.integer("layers", 24), "num_attention_heads": clip.integer("heads", 16)},
            **{"image_size": clip.integer("image_size", 224), "patch_size": clip.integer("patch_size", 14)},
        },
    }
