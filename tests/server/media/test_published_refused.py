"""Towers that models name as their makers publish them, in forms that are not served."""

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.hf.step_vl import with_tower_of_step
from stentor.engine.model_config.towers.vision_hf import vision_spec_from_hf


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"img_processor": {"type_feature": "cls_patch"}}, "type_feature is 'cls_patch', expected 'patch'"),
        ({"embd_layer": {"hd_transform_order": "glb_sub"}}, "hd_transform_order is 'glb_sub', expected 'sub_glb'"),
        ({"embd_layer": {"use_hd_transform": False}}, "use_hd_transform is false, expected true"),
    ],
)
def test_a_tower_of_phi_3_of_another_form_is_refused(config: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        vision_spec_from_hf({"model_type": "phi3_v", **config}, 64)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"tile_tag": "1D"}, "tile_tag is '1D', expected '2D'"),
        ({"global_view_pos": "side"}, "global_view_pos is 'side', expected 'head' or 'tail'"),
        ({"projector_config": {"projector_type": "linear"}}, "projector_type is 'linear', expected 'downsample_mlp_g"),
        ({"projector_config": {"token_pooling": True}}, "token_pooling is true, expected false"),
    ],
)
def test_a_tower_of_deepseek_vl2_of_another_form_is_refused(config: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        vision_spec_from_hf({"model_type": "deepseek_vl_v2", "vision_config": {"layers": 2}, **config}, 64)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"downsample_ratio": 0.3}, "downsample_ratio is 0.3, expected one over a whole number"),
        ({"select_layer": -9}, "vision_feature_layer is -9, expected one of 2 layers"),
        ({"use_backbone_lora": 16}, "use_backbone_lora is not 0"),
        (
            {"vision_config": {"model_type": "radio"}},
            "vision_config.model_type is 'radio', expected",
        ),
    ],
)
def test_a_tower_of_eagle_of_another_form_is_refused(config: dict[str, object], why: str) -> None:
    vision = {"model_type": "siglip_vision_model", "num_hidden_layers": 2}
    with pytest.raises(ConfigError, match=why):
        vision_spec_from_hf({"model_type": "eagle_2_5_vl", "vision_config": vision, **config}, 64)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            {"vision_config": {"args": {"model": "vit_giant"}}},
            "vision_config.args.model is 'vit_giant', expected one of",
        ),
        ({"vision_config": {"num_attention_heads": 7}}, "7 heads do not divide 1280 dimensions"),
        ({"downsample_ratio": 0.3}, "downsample_ratio is 0.3"),
        ({"vision_config": {"args": {"register_multiple": -3}}}, "register_multiple is '-3'"),
    ],
)
def test_a_tower_of_nemotron_of_another_form_is_refused(config: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        vision_spec_from_hf({"model_type": "NemotronH_Nano_VL_V2", "vision_config": {"patch_size": 16}, **config}, 64)


@pytest.mark.parametrize(
    ("kind", "vision", "why"),
    [
        ("ovis2", {"tokenize_function": "st_argmax"}, "tokenize_function is 'st_argmax', expected 'softmax'"),
        ("ovis2", {"hidden_stride": 3}, "hidden_stride is 3, which does not divide 16 patches a side"),
        ("ovis2", {"num_visual_indicator_tokens": 4}, "visual_indicator_token_ids are not num_visual_indicator_tokens"),
        ("llama4", {"intermediate_size": 4096}, "intermediate_size is 4096, expected 3072"),
        (
            "llama4",
            {"intermediate_size": 3072, "projector_input_dim": 8},
            "projector_input_dim is not projector_output",
        ),
        ("llama4", {"pixel_shuffle_ratio": 0.7}, "pixel_shuffle_ratio is 0.7, expected one over a whole number"),
        ("kanana-1.5-v", {"embed_dim": 640}, "encoder_hidden_size of projector_config are not the tower's, 2 and 640"),
        ("kanana-1.5-v", {"spatial_merge_size": 1}, "merge_size and encoder_hidden_size of projector_config are not"),
        (
            "openpangu_vl",
            {"mm_unit_vision_select_layer": [-27], "depth": 26},
            "expected layers counted from the last, -1 to -26",
        ),
        ("openpangu_vl", {"mm_unit_vision_select_layer": [0]}, "expected layers counted from the last, -1 to -26"),
        ("openpangu_vl", {"mm_unit_vision_select_layer": []}, "expected layers counted from the last, -1 to -26"),
    ],
)
def test_towers_of_ovis_2_and_others_of_another_form_are_refused(
    kind: str, vision: dict[str, object], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        vision_spec_from_hf({"model_type": kind, "vision_config": vision, "visual_indicator_token_ids": [1, 2]}, 64)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ({"tokenize_function": "st_argmax"}, "tokenize_function is 'st_argmax', expected 'softmax'"),
        ({"hidden_stride": 3}, "hidden_stride is 3, which does not divide 16 patches a side"),
        ({"backbone_config": {"model_type": "siglip_vision_model"}}, "is 'siglip_vision_model', expected 'aimv2'"),
    ],
)
def test_towers_of_ovis_as_published_of_another_form_are_refused(seen: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        vision_spec_from_hf({"model_type": "ovis", "visual_tokenizer_config": {"vocab_size": 100, **seen}}, 64)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"projector_type": "c-abs"}, "projector_type is 'c-abs', expected 'dynamic-c-abs'"),
        ({"prenorm": True}, "prenorm is true, expected false"),
        ({"pos_emb_size": 577}, "pos_emb_size is 577, expected the square of a number"),
        ({"feature_layer_index": [-1, -2]}, r"feature_layer_index is \[-1, -2\], expected a layer of 32"),
        ({"feature_layer_index": -33}, "feature_layer_index is -33, expected a layer of 32"),
    ],
)
def test_convolutions_of_kanana_of_another_form_are_refused(told: dict[str, object], why: str) -> None:
    config = {"model_type": "kanana-1.5-v", "vision_config": {"depth": 32}, "projector_config": told}
    with pytest.raises(ConfigError, match=why):
        vision_spec_from_hf(config, 64)


@pytest.mark.parametrize(
    ("flag", "why"), [("use_cls_token", "True, expected False"), ("use_ln_pre", "False, expected True")]
)
def test_a_tower_of_step_of_another_form_is_refused(flag: str, why: str) -> None:
    vision = {flag: flag == "use_cls_token"}
    config = {"model_type": "step_vl", "text_config": {"hidden_size": 64}, "vision_config": vision}
    with pytest.raises(ConfigError, match=f"vision_config.{flag} is {why}"):
        with_tower_of_step(config)


@pytest.mark.parametrize(
    ("vision", "why"),
    [
        ({"temporal_patch_size": 2}, "temporal_patch_size is 2, expected 1"),
        ({"is_causal": True}, "is_causal is set, expected false"),
    ],
)
def test_a_tower_of_dots_ocr_of_another_form_is_refused(vision: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        vision_spec_from_hf({"model_type": "dots_ocr", "vision_config": vision}, 64)


@pytest.mark.parametrize(
    ("config", "hidden", "why"),
    [({}, 300, "hidden_size is 300, expected heads of 128 numbers"), ({"query_num": 0}, 256, "query_num is '0'")],
)
def test_a_resampler_of_another_form_is_refused(config: dict[str, object], hidden: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        vision_spec_from_hf({"model_type": "minicpmv", "vision_config": {"patch_size": 14}, **config}, hidden)


@pytest.mark.parametrize("version", [None, 2.5, "2.0"])
def test_a_minicpm_v_of_another_version_is_refused(version: object) -> None:
    config = {"architectures": ["MiniCPMV"], "version": version, "hidden_size": 256}
    with pytest.raises(ConfigError, match=r"version is '.*', expected one of 2\.6, 4\.0, 4, 4\.5"):
        model_spec_from_hf(config)


@pytest.mark.parametrize("config", [{"select_layer": -4}, {"ps_version": "v1"}])
def test_a_tower_of_internvl_of_another_form_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="select_layer is not -1, or ps_version not 'v2', which has no native form"):
        vision_spec_from_hf({"model_type": "internvl_chat", "vision_config": {"patch_size": 14}, **config}, 64)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"vit_config": {"model_type": "aimv2"}}, "vit_config.model_type is 'aimv2'"),
        ({"vit_config": {"fullatt_block_indexes": "7,15"}}, "fullatt_block_indexes is '7,15', expected such as"),
    ],
)
def test_a_tower_of_ovis_of_another_form_is_refused(config: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        vision_spec_from_hf({"model_type": "ovis2_5", **config}, 64)
