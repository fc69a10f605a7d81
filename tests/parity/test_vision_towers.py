"""Towers on our own layers against transformers', in float32: the same embeddings for the same pictures."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
import torch
import transformers as untyped_transformers

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.model_config.towers.vision_hf import vision_spec_from_hf
from stentor.engine.models.towers.payload import Payload
from stentor.engine.models.towers.vision_tower import VisionTower

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

HIDDEN: Final = 48
"""Of the decoder."""
SIZES: Final[Mapping[str, Any]] = {
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "patch_size": 4,
}
TEXT: Final[Mapping[str, Any]] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "vocab_size": 64,
    "pad_token_id": 0,
}


def idefics3(kind: str) -> Any:
    return transformers.AutoConfig.for_model(
        kind,
        vision_config={**SIZES, "image_size": 32},
        text_config={"model_type": "llama", **TEXT},
        scale_factor=2,
    )


def gemma3(_kind: str) -> Any:
    return transformers.Gemma3Config(
        vision_config={"model_type": "siglip_vision_model", **SIZES, "image_size": 32, "vision_use_head": False},
        text_config=dict(TEXT),
        mm_tokens_per_image=4,
    )


def qwen(kind: str) -> Any:
    vision: dict[str, Any] = {
        **{"depth": 3, "hidden_size": 32, "out_hidden_size": HIDDEN, "intermediate_size": 56, "num_heads": 2},
        **{"patch_size": 4, "window_size": 16, "fullatt_block_indexes": [1]},
        **{"num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2]},
    }
    if kind == "qwen2_vl":
        vision = {"depth": 3, "embed_dim": 32, "hidden_size": HIDDEN, "num_heads": 2, "patch_size": 4}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}
    text = {**TEXT, "num_experts": 2, "moe_intermediate_size": 16, "rope_parameters": rope}
    return transformers.AutoConfig.for_model(kind, vision_config=vision, text_config=text)


def ernie(kind: str) -> Any:
    vision = {"depth": 3, "hidden_size": 32, "intermediate_size": 56, "num_heads": 2, "patch_size": 4}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}
    text = {**TEXT, "moe_num_experts": 2, "moe_k": 1, "moe_intermediate_size": [16, 16], "rope_parameters": rope}
    return transformers.AutoConfig.for_model(kind, vision_config=vision, text_config=text)


def llava(kind: str) -> Any:
    tower = kind.split("-")[1]
    return transformers.LlavaConfig(
        vision_config={"model_type": tower, **SIZES, "image_size": 16},
        text_config={"model_type": "llama", **TEXT},
        vision_feature_layer=-1 if tower == "pixtral" else -2,
        vision_feature_select_strategy="default" if tower == "clip_vision_model" else "full",
    )


def mistral3(_kind: str) -> Any:
    return transformers.Mistral3Config(
        vision_config={"model_type": "pixtral", **SIZES, "image_size": 32},
        text_config={"model_type": "mistral", **TEXT},
        spatial_merge_size=2,
    )


def internvl(kind: str) -> Any:
    vision = {**SIZES, "patch_size": [4, 4], "image_size": [16, 16], "layer_scale_init_value": 0.1}
    if kind == "internvl-6b":
        vision |= {"norm_type": "rms_norm", "use_qk_norm": True}
    else:
        vision |= {"attention_bias": True}
    return transformers.InternVLConfig(vision_config=vision, text_config={"model_type": "qwen2", **TEXT})


def in_tiles(kind: str) -> Any:
    family, tower, layers = kind.split("-")
    vision = {"model_type": tower, **SIZES, "image_size": 16}
    config = {"next": transformers.LlavaNextConfig, "onevision": transformers.LlavaOnevisionConfig}[family]
    more = {"vision_aspect_ratio": "anyres_max_2"} if family == "onevision" else {}
    return config(
        vision_config={**vision, **({} if tower == "clip_vision_model" else {"vision_use_head": False})},
        text_config={"model_type": "llama", **TEXT},
        vision_feature_layer=[1, -1, 2] if layers == "several" else int(layers) - 3,
        vision_feature_select_strategy="default" if tower == "clip_vision_model" else "full",
        image_grid_pinpoints=[[16 * rows, 16 * columns] for rows in (1, 2, 3) for columns in (1, 2, 3)],
        **more,
    )


def cohere(kind: str) -> Any:
    return transformers.AutoConfig.for_model(
        kind,
        vision_config={"model_type": "siglip_vision_model", **SIZES, "image_size": 16, "vision_use_head": False},
        text_config={"model_type": "cohere2", **TEXT},
        alignment_intermediate_size=40,
    )


def lfm2(_kind: str) -> Any:
    return transformers.Lfm2VlConfig(
        vision_config={"model_type": "siglip2_vision_model", **SIZES, "num_patches": 25, "vision_use_head": False},
        text_config={"model_type": "lfm2", **TEXT, "layer_types": ["full_attention"]},
        projector_hidden_size=40,
    )


def glm(kind: str) -> Any:
    vision = {"depth": 3, "hidden_size": 32, "out_hidden_size": HIDDEN, "intermediate_size": 56, "num_heads": 2}
    vision |= {"patch_size": 4, "image_size": 20}
    text = {**TEXT, "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}}
    return transformers.AutoConfig.for_model(kind, vision_config=vision, text_config=text)


def cosmos3_edge(kind: str) -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}
    return transformers.AutoConfig.for_model(
        kind, vision_config={**SIZES, "num_patches": 36}, text_config={**TEXT, "rope_parameters": rope}
    )


def gemma4(kind: str) -> Any:
    vision = {**SIZES, "num_key_value_heads": 2, "head_dim": 16, "pooling_kernel_size": 2}
    vision |= {"position_embedding_size": 12, "standardize": kind == "gemma4-standard"}
    text = {**TEXT, "global_head_dim": 12, "hidden_size_per_layer_input": 0}
    return transformers.Gemma4Config(vision_config=vision, text_config=text, audio_config=None)


CONFIGS: Final[Mapping[str, Callable[[str], Any]]] = {
    "idefics3": idefics3,
    "smolvlm": idefics3,
    "gemma3": gemma3,
    "qwen2_vl": qwen,
    "qwen2_5_vl": qwen,
    "qwen3_vl": qwen,
    "qwen3_vl_moe": qwen,
    "qwen3_5": qwen,
    "ernie4_5_vl_moe": ernie,
    "llava-clip_vision_model": llava,
    "llava-siglip_vision_model": llava,
    "llava-pixtral": llava,
    "mistral3": mistral3,
    "internvl": internvl,
    "internvl-6b": internvl,
    "next-clip_vision_model-1": in_tiles,
    "next-siglip_vision_model-several": in_tiles,
    "onevision-siglip_vision_model-2": in_tiles,
    "aya_vision": cohere,
    "cohere2_vision": cohere,
    "lfm2_vl": lfm2,
    "cosmos3_edge": cosmos3_edge,
    "glm4v": glm,
    "glm4v_moe": glm,
    "gemma4": gemma4,
    "gemma4-standard": gemma4,
}


@torch.no_grad()
def theirs(kind: str) -> Any:
    """transformers' model with random weights."""
    torch.manual_seed(3)
    model = transformers.AutoModelForImageTextToText.from_config(CONFIGS[kind](kind)).float().eval()
    for name, parameter in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            parameter.add_(torch.empty_like(parameter).uniform_(-0.4, 0.4))
        else:
            parameter.normal_(0, 0.15)
    for name, buffer in model.named_buffers():
        if "std_" in name:
            buffer.uniform_(0.5, 1.5)
    return model


def ours(model: Any, *, packed: bool = True, dtype: torch.dtype = torch.float32) -> VisionTower:
    """A tower with the weights that transformers would write to a file."""
    spec = vision_spec_from_hf(model.config.to_dict(), HIDDEN)
    tower = VisionTower(spec, LayerContext(torch.device("cpu"), dtype, True, packed=packed))
    tensors = [(name, tensor) for name, tensor in model.state_dict().items() if not is_text(name)]
    tower.load(tensors)
    return tower


def is_text(name: str) -> bool:
    return "lm_head" in name or "language_model" in name or "text_model" in name


def pictures(count: int, height: int, width: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


def rows(found: Any) -> torch.Tensor:
    """What transformers' method returns, as rows of one piece of media."""
    parts = [found] if isinstance(found, torch.Tensor) else list(found)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


@torch.no_grad()
def agree(model: Any, tower: VisionTower, tensors: Mapping[str, torch.Tensor], modality: str = "image") -> None:
    expected = getattr(model, f"get_{modality}_features")(**tensors, return_dict=True)
    found = tower.encode(Payload(modality, tensors))
    torch.testing.assert_close(found.embeddings, rows(expected.pooler_output), rtol=1e-4, atol=1e-4)
    behind = getattr(expected, "deepstack_features", None) or ()
    assert len(found.behind) == len(behind)
    for layer, features in enumerate(behind):
        torch.testing.assert_close(found.behind[layer], rows(features), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", ["idefics3", "smolvlm"])
def test_idefics3_sees_as_transformers_does(kind: str, packed: bool) -> None:
    model = theirs(kind)
    tower = ours(model, packed=packed)
    for count in (1, 3):
        agree(model, tower, {"pixel_values": pictures(count, 32, 32).unsqueeze(0)})
    agree(model, tower, {"pixel_values": pictures(2, 24, 24).unsqueeze(0)})  # smaller than positions were learned for


def test_patches_of_padding_are_not_seen() -> None:
    model = theirs("idefics3")
    mask = torch.ones(1, 2, 32, 32, dtype=torch.int64)
    mask[0, 1, 20:] = 0
    mask[0, 1, :, 27:] = 0  # a patch that is padding in part is seen
    values = pictures(2, 32, 32).unsqueeze(0) * mask.unsqueeze(2)
    agree(model, ours(model), {"pixel_values": values, "pixel_attention_mask": mask})


def test_pictures_without_a_single_value_are_left_out() -> None:
    model = theirs("idefics3")
    values = pictures(3, 32, 32).unsqueeze(0)
    values[0, 1] = 0
    agree(model, ours(model), {"pixel_values": values, "pixel_attention_mask": torch.ones(1, 3, 32, 32).long()})


def test_gemma3_sees_as_transformers_does() -> None:
    model = theirs("gemma3")
    tower = ours(model)
    for count in (1, 2):
        agree(model, tower, {"pixel_values": pictures(count, 32, 32)})


QWENS: Final = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5")


def patched(*grids: tuple[int, int, int]) -> dict[str, torch.Tensor]:
    """Patches of pictures or videos of so many frames, rows and columns."""
    count = sum(frames * rows * columns for frames, rows, columns in grids)
    values = torch.randn(count, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(1))
    return {"pixel_values": values, "image_grid_thw": torch.tensor(grids)}


@pytest.mark.parametrize("kind", QWENS)
def test_qwens_towers_see_as_transformers_does(kind: str) -> None:
    model = theirs(kind)
    tower = ours(model)
    agree(model, tower, patched((1, 6, 6)))
    agree(model, tower, patched((1, 4, 10), (1, 14, 6), (1, 2, 2)))  # windows that pictures do not fill
    video = patched((3, 6, 8), (2, 4, 4))
    video = {"pixel_values_videos": video["pixel_values"], "video_grid_thw": video["image_grid_thw"]}
    agree(model, tower, video, "video")


def test_ernies_tower_sees_a_picture_as_two_frames_alike_as_transformers_does() -> None:
    model = theirs("ernie4_5_vl_moe")
    tower = ours(model)
    for grids in ([(1, 6, 6)], [(1, 4, 10), (1, 2, 2)]):
        given = patched(*grids)
        agree(model, tower, {**given, "pixel_values": given["pixel_values"][:, : 3 * 4 * 4].contiguous()})


def test_the_tower_of_cosmos_3_edge_sees_frames_one_by_one_as_transformers_does() -> None:
    model = theirs("cosmos3_edge")
    tower = ours(model)
    for grids in ([(1, 6, 6)], [(3, 4, 10), (1, 2, 2)]):
        given = patched(*grids)
        agree(model, tower, {**given, "pixel_values": given["pixel_values"][:, : 3 * 4 * 4].contiguous()})


@pytest.mark.parametrize("kind", ["llava-clip_vision_model", "llava-siglip_vision_model"])
def test_llava_takes_the_output_of_a_layer_before_the_last(kind: str) -> None:
    model = theirs(kind)
    tower = ours(model)
    assert len(tower.spec.layers) == 2
    for count in (1, 3):
        agree(model, tower, {"pixel_values": pictures(count, 16, 16)})


@pytest.mark.parametrize("kind", ["llava-pixtral", "mistral3"])
def test_pixtral_sees_pictures_of_several_sizes_at_once(kind: str) -> None:
    model = theirs(kind)
    sizes = torch.tensor([[32, 16], [8, 24], [24, 32]])
    agree(model, ours(model), {"pixel_values": pictures(3, 32, 32), "image_sizes": sizes})


@pytest.mark.parametrize("kind", ["internvl", "internvl-6b"])
def test_internvl_sees_as_transformers_does(kind: str) -> None:
    model = theirs(kind)
    tower = ours(model)
    for count in (1, 3):
        agree(model, tower, {"pixel_values": pictures(count, 16, 16)})


@pytest.mark.parametrize("kind", [kind for kind in CONFIGS if CONFIGS[kind] is in_tiles])
def test_a_picture_in_tiles_is_put_together_without_its_padding(kind: str) -> None:
    model = theirs(kind)
    tower = ours(model)
    assert len(tower.spec.layers) == (2 if kind.endswith("1") else 3)
    for height, width, tiles in ((30, 31, 4), (10, 40, 3), (47, 20, 6), (16, 9, 1)):
        size = torch.tensor([[height, width]])
        agree(model, tower, {"pixel_values": pictures(tiles + 1, 16, 16).unsqueeze(0), "image_sizes": size})


def test_a_picture_among_others_and_frames_are_seen_whole() -> None:
    model = theirs("onevision-siglip_vision_model-2")
    tower = ours(model)
    beside_another = {"image_sizes": torch.tensor([[30, 31]]), "batch_num_images": torch.tensor([2])}
    whole = {"pixel_values": pictures(1, 16, 16).unsqueeze(0), **beside_another}
    found = tower.encode(Payload("image", whole)).embeddings
    both = {name: torch.cat([tensor, tensor]) for name, tensor in whole.items() if name != "batch_num_images"}
    with torch.no_grad():
        expected = model.get_image_features(**both, batch_num_images=torch.tensor([2]), return_dict=True).pooler_output
    torch.testing.assert_close(found, expected[0], rtol=1e-4, atol=1e-4)
    for frames in (1, 3):
        agree(model, tower, {"pixel_values_videos": pictures(frames, 16, 16).unsqueeze(0)}, "video")


def test_tiles_that_make_up_no_picture_are_refused() -> None:
    tower = ours(theirs("next-clip_vision_model-1"))
    tensors = {"pixel_values": pictures(3, 16, 16).unsqueeze(0), "image_sizes": torch.tensor([[30, 31]])}
    with pytest.raises(ValueError, match="30 x 31 pixels has 3 tiles, expected 5"):
        tower.encode(Payload("image", tensors))


@pytest.mark.parametrize("kind", ["aya_vision", "cohere2_vision"])
def test_coheres_models_see_as_transformers_does(kind: str) -> None:
    model = theirs(kind)
    tower = ours(model)
    for count in (1, 3):
        agree(model, tower, {"pixel_values": pictures(count, 16, 16)})


def test_siglip_2_sees_pictures_of_any_shape() -> None:
    model = theirs("lfm2_vl")
    shapes = torch.tensor([[4, 6], [2, 2], [8, 4]])
    values = torch.randn(3, 40, 3 * 16, generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(40) < shapes.prod(1, keepdim=True)).long()
    agree(model, ours(model), {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": shapes})


@pytest.mark.parametrize("kind", ["glm4v", "glm4v_moe"])
def test_glm_sees_as_transformers_does(kind: str) -> None:
    model = theirs(kind)
    tower = ours(model)
    agree(model, tower, patched((1, 6, 6)))
    agree(model, tower, patched((1, 4, 10), (1, 14, 6), (1, 2, 2)))
    video = patched((3, 6, 8))
    agree(
        model, tower, {"pixel_values_videos": video["pixel_values"], "video_grid_thw": video["image_grid_thw"]}, "video"
    )


@pytest.mark.parametrize("kind", ["gemma4", "gemma4-standard"])
def test_gemma4_sees_pictures_and_frames_of_any_shape(kind: str) -> None:
    model = theirs(kind)
    tower = ours(model)
    values = torch.rand(3, 24, 3 * 16, generator=torch.Generator().manual_seed(1))
    places = torch.full((3, 24, 2), -1)
    for number, (down, across) in enumerate([(4, 6), (2, 10), (4, 2)]):
        at = torch.cartesian_prod(torch.arange(down), torch.arange(across))
        places[number, : down * across] = at.flip(1)
    agree(model, tower, {"pixel_values": values, "image_position_ids": places})
    film = {"pixel_values_videos": values[:1, :24].repeat(2, 1, 1), "video_position_ids": places[:1].repeat(2, 1, 1)}
    expected = model.model.get_video_features(**film, num_frames_per_video=torch.tensor([2]), return_dict=True)
    found = tower.encode(Payload("video", {**film, "num_frames_per_video": torch.tensor([2])})).embeddings
    torch.testing.assert_close(found, rows(expected.pooler_output), rtol=1e-4, atol=1e-4)
