"""Towers by themselves: rounding, batches, refusals. What they see is compared with transformers in tests/parity."""

import math
from collections.abc import Mapping
from typing import Any, Final

import pytest
import torch

from stentor.engine.layers.linear.adapters import AdapterPlaces
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.layers.linear.weights import WeightError
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.towers.vision_hf import vision_spec_from_hf
from stentor.engine.models.towers.payload import Payload
from stentor.engine.models.towers.vision_tower import VisionTower, native_tower
from stentor.engine.quantization.formats import OnlineFormat, QuantizationRule, QuantizedCheckpoint

HIDDEN: Final = 48
SIGLIP: Final = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"image_size": 32, "patch_size": 4},
}
IDEFICS: Final[Mapping[str, Any]] = {"model_type": "idefics3", "scale_factor": 2, "vision_config": SIGLIP}
QWEN: Final[Mapping[str, Any]] = {
    "model_type": "qwen2_5_vl",
    "vision_config": {
        **{"hidden_size": 64, "intermediate_size": 96, "depth": 2, "num_heads": 2, "out_hidden_size": HIDDEN},
        **{"patch_size": 4, "window_size": 16, "fullatt_block_indexes": [1]},
    },
}
NEXT: Final[Mapping[str, Any]] = {
    "model_type": "llava_next",
    "vision_config": {**SIGLIP, "model_type": "siglip_vision_model"},
    "vision_feature_select_strategy": "full",
    "image_grid_pinpoints": [[32, 64]],
}
LFM2: Final[Mapping[str, Any]] = {"model_type": "lfm2_vl", "vision_config": {**SIGLIP, "num_patches": 16}}
MOLMO: Final[Mapping[str, Any]] = {
    "model_type": "molmo",
    "intermediate_size": 160,
    "vision_config": {
        **{"image_emb_dim": 64, "image_num_heads": 2, "image_num_layers": 9, "image_mlp_dim": 96},
        **{"image_patch_size": 4, "image_default_input_size": 32, "overlap_margins": [2, 2]},
    },
}
INT8: Final = QuantizedCheckpoint("int8", (QuantizationRule(("Linear",), OnlineFormat("int8")),))


def tower(
    config: Mapping[str, Any],
    dtype: torch.dtype = torch.float32,
    quantized: QuantizedCheckpoint | None = None,
) -> VisionTower:
    """With small random weights, the same each time."""
    context = LayerContext(torch.device("cpu"), dtype, True, packed=True, quantized=quantized)
    made = VisionTower(vision_spec_from_hf(config, HIDDEN), context)
    generator = torch.Generator().manual_seed(2)
    made.weights.load([(name, torch.randn(shape, generator=generator) * 0.1) for name, shape in made.shapes.items()])
    return made


def pictures(count: int, side: int = 32, seed: int = 1) -> torch.Tensor:
    return torch.randn(1, count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def test_a_picture_has_the_same_bits_alone_and_beside_others() -> None:
    made, several = tower(IDEFICS), pictures(3)
    together = made.encode(Payload("image", {"pixel_values": several})).embeddings
    alone = [made.encode(Payload("image", {"pixel_values": several[:, i : i + 1]})).embeddings for i in range(3)]
    assert torch.equal(together, torch.cat(alone))


def test_adapters_of_requests_find_no_place_in_a_tower_whose_embeddings_all_share() -> None:
    places = AdapterPlaces()
    context = LayerContext(torch.device("cpu"), torch.float32, True, packed=True, adapters=places)
    VisionTower(vision_spec_from_hf(IDEFICS, HIDDEN), context)
    assert not places.by_name


def test_pictures_of_several_sizes_have_the_same_bits_alone_and_together() -> None:
    made, grids = tower(QWEN), [(1, 4, 6), (2, 10, 2), (1, 8, 8)]
    counts = [frames * rows * columns for frames, rows, columns in grids]
    values = torch.randn(sum(counts), 3 * 2 * 16, generator=torch.Generator().manual_seed(1))
    together = made.encode(Payload("image", {"pixel_values": values, "image_grid_thw": torch.tensor(grids)}))
    alone = [
        made.encode(Payload("image", {"pixel_values": some, "image_grid_thw": torch.tensor([grid])})).embeddings
        for some, grid in zip(values.split(counts), grids, strict=True)
    ]
    assert torch.equal(together.embeddings, torch.cat(alone))


@pytest.mark.parametrize(("dtype", "quantized", "most"), [(torch.bfloat16, None, 0.02), (torch.bfloat16, INT8, 0.03)])
def test_rounded_weights_change_embeddings_little(
    dtype: torch.dtype, quantized: QuantizedCheckpoint | None, most: float
) -> None:
    media = Payload("image", {"pixel_values": pictures(2)})
    exact = tower(IDEFICS).encode(media).embeddings
    rounded = tower(IDEFICS, dtype, quantized).encode(media).embeddings
    assert 0 < float((rounded - exact).square().mean().sqrt()) < most * float(exact.square().mean().sqrt())


def counted(made: VisionTower, media: Payload, seconds: float) -> tuple[torch.Tensor, int]:
    """Embeddings, and how often others might compute, where a part is to take so long."""
    calls: list[float] = []

    def pause(left: float) -> float:
        assert left > 0
        calls.append(seconds)
        return seconds

    made.before_parts(pause)
    return made.encode(media).embeddings, len(calls)


def test_others_may_compute_before_every_product_and_every_attention() -> None:
    _, calls = counted(tower(IDEFICS), Payload("image", {"pixel_values": pictures(2)}), math.inf)
    assert calls == 1 + 2 * (4 + 1) + 1  # of patches, of two layers, of the projector


@pytest.mark.parametrize("config", [IDEFICS, QWEN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_computed_in_parts_has_the_same_bits(config: Mapping[str, Any], dtype: torch.dtype) -> None:
    made = tower(config, dtype)
    media = Payload("image", {"pixel_values": pictures(2)})
    if config is QWEN:
        values = torch.randn(24 + 40, 3 * 2 * 16, generator=torch.Generator().manual_seed(1))
        media = Payload("image", {"pixel_values": values, "image_grid_thw": torch.tensor([(1, 4, 6), (2, 10, 2)])})
    whole, few = counted(made, media, math.inf)
    found, many = counted(made, media, 0.0)
    assert torch.equal(found, whole)
    # of 128 patches, 16 rows of a product at a time, and 64 queries of a head; the projector has 32 rows
    assert (many == 8 + 2 * (4 * 8 + 2 * 2) + 2) if config is IDEFICS else (many > 2 * few)


def test_embeddings_of_padding_count_where_patches_have_some_in_either_dtype() -> None:
    pixels, sizes = pictures(2)[0], torch.tensor([[32, 32]])
    shares = torch.ones(2, 64)
    shares[1, :2] = torch.tensor([0.0, 0.5])  # of the first square of the tile
    given = [
        {"pixel_values": pixels, "image_sizes": sizes, "image_masks": each} for each in (torch.ones(2, 64), shares)
    ]
    towers = tower(MOLMO), tower(MOLMO, torch.bfloat16)
    exact, rounded = ([made.encode(Payload("image", each)).embeddings for each in given] for made in towers)
    assert exact[0].shape == (2 * 16, HIDDEN)
    assert (exact[0] != exact[1]).any(dim=1).nonzero()[:, 0].tolist() == [16]
    for ours, theirs in zip(rounded, exact, strict=True):
        torch.testing.assert_close(ours.float(), theirs, rtol=0.05, atol=0.05 * float(theirs.abs().max()))


def test_no_picture_gives_no_embedding() -> None:
    found = tower(IDEFICS).encode(Payload("image", {"pixel_values": torch.zeros(1, 2, 3, 32, 32)}))
    assert found.embeddings.shape == (0, HIDDEN)


@pytest.mark.parametrize(
    ("config", "tensors", "says"),
    [
        (IDEFICS, {"input_features": torch.zeros(3)}, "media come as input_features, expected pixel_values"),
        (IDEFICS, {"pixel_values": torch.ones(1, 1, 4, 32, 32)}, r"expected \[pictures, 3, height, width\]"),
        (IDEFICS, {"pixel_values": torch.ones(1, 1, 3, 32, 12)}, "8 x 3 patches is not made of squares of 2 x 2"),
        (
            IDEFICS,
            {"pixel_values": torch.ones(1, 1, 3, 32, 32), "pixel_attention_mask": torch.zeros(1, 1, 16, 32)},
            r"pixel_attention_mask has shape \[1, 16, 32\]",
        ),
        (
            IDEFICS,
            {"pixel_values": torch.ones(1, 1, 3, 32, 32), "pixel_attention_mask": torch.zeros(1, 1, 32, 32)},
            "pixel_attention_mask hides the first rows",
        ),
        (QWEN, {"pixel_values": torch.ones(16, 96)}, "expected image_grid_thw or video_grid_thw"),
        (
            QWEN,
            {"pixel_values": torch.ones(15, 96), "image_grid_thw": torch.tensor([[1, 4, 4]])},
            "expected 96 numbers for each patch of 1 x 4 x 4",
        ),
        (NEXT, {"pixel_values": torch.ones(1, 2, 3, 32, 32)}, "tiles come without image_sizes"),
        (
            NEXT,
            {"pixel_values": torch.ones(1, 2, 3, 32, 32), "image_sizes": torch.tensor([[20, 50]])},
            "20 x 50 pixels has 2 tiles, expected 3",
        ),
        (MOLMO, {"pixel_values": torch.ones(2, 3, 32, 32)}, r"image_masks has none, expected \[2, 64\]"),
        (
            MOLMO,
            {"pixel_values": torch.ones(2, 3, 32, 32), "image_masks": torch.ones(2, 64)},
            "tiles come without image_sizes",
        ),
        (
            MOLMO,
            {
                **{"pixel_values": torch.ones(2, 3, 32, 32), "image_masks": torch.ones(2, 64)},
                "image_sizes": torch.tensor([[32, 48]]),
            },
            "a canvas of 32 x 48 pixels has 2 tiles, expected 3",
        ),
        (LFM2, {"pixel_values": torch.ones(1, 8, 48)}, "expected spatial_shapes"),
        (
            LFM2,
            {"pixel_values": torch.ones(1, 8, 48), "spatial_shapes": torch.tensor([[4, 4]])},
            "expected 48 numbers for each patch of 4 x 4",
        ),
        (
            LFM2,
            {"pixel_values": torch.ones(1, 8, 48), "spatial_shapes": torch.tensor([[2, 3]])},
            "2 x 3 patches is not made of squares of 2 x 2",
        ),
    ],
)
def test_media_that_do_not_fit_are_refused(
    config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        tower(config).encode(Payload("image", tensors))


@pytest.mark.parametrize(("config", "modality"), [(IDEFICS, "video"), (QWEN, "audio")])
def test_media_of_another_kind_are_refused(config: Mapping[str, Any], modality: str) -> None:
    with pytest.raises(ValueError, match=f"the model has no encoder for {modality}s"):
        tower(config).encode(Payload(modality, {}))


def test_a_weight_without_a_place_is_refused_by_its_stored_name() -> None:
    with pytest.raises(WeightError, match=r"holds model\.vision_model\.odd\.weight, which"):
        tower(IDEFICS).load([("model.vision_model.odd.weight", torch.ones(2))])


def test_a_tower_that_lacks_a_weight_is_refused() -> None:
    made = tower(IDEFICS)
    with pytest.raises(WeightError, match="lacks"):
        made.load([("model.vision_model.post_layernorm.weight", torch.ones(64))])


def changed(config: Mapping[str, Any], **fields: object) -> dict[str, Any]:
    return {**config, "vision_config": {**config["vision_config"], **fields}}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "ovis2", "vision_config": {}}, "the tower of ovis2 is not native"),
        ({"model_type": "idefics3"}, "the tower of idefics3 is not native"),
        (changed(IDEFICS, num_attention_heads=5), "5 heads do not divide 64 dimensions"),
        (changed(IDEFICS, hidden_act="relu"), "hidden_act is 'relu', expected one of"),
        (changed(IDEFICS, patch_size=[4, 8]), r"patch_size is '\[4, 8\]', expected a whole number"),
        (changed(QWEN, num_heads=32), "heads of 2 dimensions do not turn by row and column"),
        (changed(QWEN, window_size=4), "a window of attention has less than 2 patches of 4 pixels"),
        ({**IDEFICS, "model_type": "gemma3", "mm_tokens_per_image": 9}, "mm_tokens_per_image is 9, expected a square"),
        ({**changed(IDEFICS, model_type="vit"), "model_type": "llava"}, "vision_config.model_type is 'vit', expected"),
        (
            {**changed(IDEFICS, model_type="siglip_vision_model"), "model_type": "llava"},
            "vision_feature_select_strategy is 'default', which a siglip_vision_model has no native form of",
        ),
        ({**NEXT, "vision_feature_layer": [-2, 0]}, r"outputs of layers \(1, 0\) are taken, expected some of 1"),
        ({**NEXT, "vision_feature_layer": []}, "vision_feature_layer is 0, expected"),
        ({**NEXT, "image_grid_pinpoints": [[32]]}, "image_grid_pinpoints is no list of heights and widths"),
        ({**NEXT, "image_grid_pinpoints": [[32, 40]]}, "not made of tiles of 32 x 32 pixels"),
        (
            {**NEXT, "model_type": "llava_onevision", "vision_aspect_ratio": "square"},
            "vision_aspect_ratio is 'square', expected such as 'anyres_max_9'",
        ),
        (
            {"model_type": "gemma4", "vision_config": {"use_clipped_linears": True}},
            "a tower of Gemma 4 that clips, or beside one that hears, has no native form",
        ),
        (changed(LFM2, num_patches=20), "20 learned positions are no square"),
        ({**IDEFICS, "model_type": "mistral3", "vision_feature_layer": -9}, "vision_feature_layer is -9, expected"),
    ],
)
def test_towers_that_are_not_known_are_refused(config: Mapping[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        vision_spec_from_hf(config, HIDDEN)
    assert native_tower(config, HIDDEN, LayerContext(torch.device("cpu"), torch.float32, True)) is None


@pytest.mark.parametrize(
    "config",
    [
        changed(QWEN, out_hidden_size=64),
        {**IDEFICS, "model_type": "paligemma", "projection_dim": 64},
        {**IDEFICS, "model_type": "janus", "vision_config": {"projection_dim": 64}},
    ],
)
def test_embeddings_of_another_size_than_the_decoders_are_refused(config: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match="makes embeddings of 64 numbers, expected hidden_size of the decoder, 48"):
        native_tower(config, HIDDEN, LayerContext(torch.device("cpu"), torch.float32, True))


def test_a_spec_counts_what_its_tower_holds() -> None:
    made = tower(IDEFICS)
    assert made.spec.parameters * 4 == made.weights.total_bytes
