"""Isaac's tower: SigLIP 2 over patches with a grid, whose squares two products project. Torch-free."""

from dataclasses import replace

from .vision_fields import MOST_SIDE, VisionFields
from .vision_siglip import siglip_tower
from .vision_spec import ProjectorProduct, ProjectorSpec, VisionSpec


def isaac(model: VisionFields) -> VisionSpec:
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
