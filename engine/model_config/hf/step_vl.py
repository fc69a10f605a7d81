"""The config.json of Step3-VL and Step 5 in the form of transformers' class for Step 3.7, whose tower they have.
Torch-free."""

from collections.abc import Mapping
from typing import Final

from ..config_fields import ConfigError, Fields

MODEL_TYPES: Final = "step_vl", "step5_vl"
_PUBLISHED: Final[Mapping[str, bool]] = {
    **{"use_ln_pre": True, "use_ln_post": False, "use_cls_token": False},
    **{"use_rope2d": True, "use_abs_posemb": True},
}
"""Flags of the vision part."""
_TAKEN: Final = (*("width", "layers", "heads", "mlp_ratio", "image_size", "patch_size"), "hidden_act", "ls_init_value")


def with_tower_of_step(config: Mapping[str, object]) -> Mapping[str, object]:
    """The config.json of transformers' class for the tower of Step3-VL or Step 5; any other is returned as it is.

    Raises :class:`..config_fields.ConfigError`.
    """
    if config.get("model_type") not in MODEL_TYPES:
        return config
    whole = Fields(config)
    text, vision = Fields(whole.table("text_config") or {}), Fields(whole.table("vision_config") or {})
    for name, value in _PUBLISHED.items():
        if vision.flag(name, value) != value:
            raise ConfigError(f"vision_config.{name} is {not value}, expected {value}")
    sizes = {name: vision.get(name) for name in _TAKEN if vision.has(name)}
    if (stride := whole.integer("understand_projector_stride", 2)) != 2:
        raise ConfigError(f"understand_projector_stride is {stride}, expected 2")
    side = vision.integer("image_size", 728) // vision.integer("patch_size", 14)
    decoder = {"hidden_size": text.integer("hidden_size"), "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    return {
        **{"architectures": ["Step3p7ForConditionalGeneration"], "model_type": "step3p7"},
        **{"text_config": {**decoder, "mlp_layer_types": ["dense"]}, "projector_bias": whole.flag("projector_bias")},
        "vision_config": {**sizes, "max_position_embeddings": side * side},
        **{name: config[name] for name in ("image_token_id",) if name in config},
    }
