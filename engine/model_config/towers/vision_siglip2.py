"""SigLIP 2 over pictures of any shape: Isaac and Phi-4-reasoning-vision. Torch-free."""

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS
from ..hf.common import expect
from .vision_fields import MOST_SIDE, VisionFields, up_to
from .vision_siglip import siglip_tower
from .vision_spec import ProjectorProduct, ProjectorSpec, VisionSpec


def isaac(model: VisionFields) -> VisionSpec:
    """Isaac: two products of squares of patches."""
    vision = model.vision
    merge = vision.integer("pixel_shuffle_scale_factor", 1, most=MOST_SIDE)
    inner = 4 * vision.integer("hidden_size", 768) * merge * merge
    products = (
        ProjectorProduct("projector.linear_1", inner, False, "silu"),
        ProjectorProduct("projector.linear_2", model.hidden, False),
    )
    return replace(
        siglip_tower(model, ProjectorSpec(products)),
        names="isaac",
        source="rows",
        positions="antialiased",
        max_position=vision.integer("num_patches", 256),
        merge=merge,
    )


def phi4_siglip(model: VisionFields) -> VisionSpec:
    """Phi-4-reasoning-vision: two products of each patch, of the layer before the last."""
    expect(model.whole, {"mm_projector_type": "mlp2x_gelu"})
    products = (
        ProjectorProduct("projector.0", model.hidden, True, "gelu"),
        ProjectorProduct("projector.2", model.hidden, True),
    )
    spec = replace(
        siglip_tower(model, ProjectorSpec(products)),
        names="phi4_siglip",
        source="shaped",
        positions="antialiased",
        max_position=model.vision.integer("num_patches", 256),
    )
    return up_to(spec, model.whole.integer("mm_vision_select_layer", -2, least=-MOST_LAYERS))
