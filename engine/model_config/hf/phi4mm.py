"""The config.json of Phi-4-multimodal's published files in the form of transformers' class, for its vision tower.
Torch-free."""

from collections.abc import Mapping
from typing import Final

from ..config_fields import Fields
from .common import expect

MODEL_TYPE: Final = "phi4mm"
_KNOWN: Final[Mapping[str, object]] = {
    **{"embedding_cls": "tune_image", "projection_cls": "mlp", "image_token_compression_cls": "avg_pool_2d"},
    **{"hd_transform_order": "sub_glb", "use_hd_transform": True, "with_learnable_separator": True},
}
"""Fields of its picture embeddings, with the only known values."""


def with_tower_of_phi4(config: Mapping[str, object]) -> Mapping[str, object]:
    """The config.json of transformers' class for the tower of published files; any other is returned as it is. Files
    tell no sizes of the tower: they are its class's defaults.

    Raises :class:`..config_fields.ConfigError`.
    """
    if config.get("model_type") != MODEL_TYPE:
        return config
    whole = Fields(config)
    pictures = Fields(Fields(whole.table("embd_layer") or {}).table("image_embd_layer") or {})
    expect(pictures, _KNOWN)
    tower = Fields(whole.table("img_processor") or {})
    expect(tower, {"type_feature": "patch"})
    vision = {
        "crop_size": pictures.integer("crop_size", 448),
        "feature_layer": tower.integer("layer_idx", -2, least=-100),
        **(whole.table("vision_config") or {}),
    }
    return {
        **{"architectures": ["Phi4MultimodalForCausalLM"], "model_type": "phi4_multimodal", "vision_config": vision},
        **{"hidden_size": whole.integer("hidden_size"), "num_hidden_layers": 1},
    }
