from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.quantization.formats import Format, FP8Format, GroupedInt8Format, Int4Format, Int8Format, matches
from stentor.engine.quantization.parse import parse_quantization

Q_PROJ = "model.layers.3.self_attn.q_proj"


def parsed(table: dict[str, Any], part: str = Q_PROJ) -> Format | None:
    found = parse_quantization({"quantization_config": table})
    assert found is not None
    return found.format_of(part)


def refusal(table: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_quantization({"quantization_config": table})
    return str(caught.value)


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"], **top}


def test_a_plain_checkpoint_has_no_quantisation() -> None:
    assert parse_quantization({}) is None
    assert parse_quantization({"quantization_config": None}) is None


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"quant_method": "fp8"}, FP8Format("tensor", "token")),
        ({"quant_method": "fp8", "activation_scheme": "static"}, FP8Format("tensor", "tensor")),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"},
            FP8Format("block", "group", "weight_scale_inv"),
        ),
        ({"quant_method": "mxfp8"}, FP8Format("block", "group", "weight_scale_inv", (1, 32))),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True},
            Int4Format("gptq", 128, symmetric=False, act_order=True, zero_offset=1),
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": -1, "checkpoint_format": "gptq_v2"},
            Int4Format("gptq", 0, symmetric=False),
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "GEMM"},
            Int4Format("awq", 64, symmetric=False),
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": None, "backend": "autoawq"},
            Int4Format("awq", 32, symmetric=False),
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, FP8Format("tensor", "tensor")),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, FP8Format("channel", "token")),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": [Q_PROJ]}, None),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32, "dynamic": {"-:.*q_proj": {}}}, None),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": 32, "dynamic": {r"-:.*\.4\..*": {}}},
            GroupedInt8Format("gptq", 32, symmetric=False, zero_offset=1),
        ),
        (
            {"quant_method": "gptq", "bits": 8, "dynamic": {r"+:.*\.3\..*": {"bits": 4, "desc_act": True}}},
            Int4Format("gptq", 128, symmetric=False, act_order=True, zero_offset=1),
        ),
        ({"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}, FP8Format("block", "none")),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, FP8Format("tensor", "tensor")),
        (
            compressed(
                {"num_bits": 8, "type": "float", "strategy": "channel"},
                {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
                format="float-quantized",
            ),
            FP8Format("channel", "token"),
        ),
        (
            compressed(
                {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
                {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 128, "dynamic": True},
                format="float-quantized",
            ),
            FP8Format("block", "group"),
        ),
        (
            compressed(
                {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
                {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False},
                format="int-quantized",
            ),
            Int8Format("channel", "tensor"),
        ),
        (
            compressed(
                {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False,
                 "actorder": "group"},
                format="pack-quantized",
            ),
            Int4Format("compressed-tensors", 32, symmetric=False, act_order=True),
        ),
        (
            compressed(
                {"num_bits": 4, "type": "int", "strategy": "channel", "actorder": "weight"}, format="pack-quantized"
            ),
            Int4Format("compressed-tensors", 0, symmetric=True),
        ),
        ({"quant_method": "bitnet"}, Int8Format("tensor", "token", "divided")),
        ({"quant_method": "bitnet", "linear_class": "autobitlinear"}, Int8Format("tensor", "token", "multiplied")),
        (
            {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"},
            Int8Format("tensor", "token", "rounded"),
        ),
    ],
)  # fmt: skip
def test_each_description_is_understood(table: dict[str, Any], expected: Format) -> None:
    assert parsed(table) == expected
    assert parsed(table, "lm_head") is None


def test_modelopts_own_file_is_read_where_config_json_says_nothing() -> None:
    table = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["*.up_proj"]}}
    found = parse_quantization({}, table)
    assert found is not None
    assert found.kv_cache_fp8
    assert found.format_of(Q_PROJ) == FP8Format("tensor", "tensor")
    assert found.format_of("model.layers.0.mlp.up_proj") is None


def test_autofp8s_list_of_what_it_left_out_is_read() -> None:
    table = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": [Q_PROJ, "re:.*gate"]}
    assert parsed(table) is None
    assert parsed(table, "model.layers.0.mlp.gate") is None
    assert parsed(table, "model.layers.0.mlp.up_proj") == FP8Format("tensor", "tensor")


@pytest.mark.parametrize(
    ("order", "by_index"), [("group", True), ("dynamic", True), ("weight", False), ("static", False)]
)
def test_every_name_of_an_activation_order_is_known(order: str, by_index: bool) -> None:
    table = compressed({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "actorder": order})
    found = parsed(table)
    assert isinstance(found, Int4Format)
    assert found.act_order == by_index


def test_a_file_beside_config_json_counts_only_where_that_is_silent() -> None:
    awq = {"w_bit": 4, "q_group_size": 32}
    found = parse_quantization({}, awq, "awq")
    assert found is not None
    assert found.format_of(Q_PROJ) == Int4Format("awq", 32, symmetric=False)
    found = parse_quantization({"quantization_config": {"quant_method": "fp8"}}, awq, "awq")
    assert found is not None
    assert found.method == "fp8"


def test_rules_that_name_modules_go_before_those_for_all() -> None:
    table = compressed({"num_bits": 4, "type": "int", "strategy": "channel"}, format="mixed-precision")
    table["config_groups"]["group_1"] = {
        "targets": ["re:.*down_proj"],
        "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
    }
    assert parsed(table, "model.layers.0.mlp.down_proj") == Int8Format("channel")
    assert isinstance(parsed(table), Int4Format)


def test_patterns_name_parts_by_whole_components() -> None:
    assert matches("lm_head", "lm_head")
    assert matches("q_proj", Q_PROJ)
    assert matches("model.layers.3", Q_PROJ)
    assert matches("re:.*self_attn", Q_PROJ)
    assert matches("model.*.q_proj", Q_PROJ)
    assert not matches("proj", Q_PROJ)
    assert not matches("model.layers.33", Q_PROJ)
    assert not matches("head", "lm_head")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes', which is not read; serve the unquantised model with"),
        ({"quant_method": "nvfp4"}, "'nvfp4', which is not read; use a checkpoint in FP8"),
        ({"quant_method": "something new"}, "'something new', which is not read"),
        ({"bits": 4}, "names no quant_method, expected one of fp8"),
        ([1], "not a table"),
        ({"quant_method": "gptq", "bits": 3}, "3 bits, expected 4 or 8"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {".*": {"bits": 2}}}, "2 bits, expected 4 or 8"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:(": {}}}, "is no regular expression"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {".*": 8}}, "no table of settings"),
        ({"quant_method": "auto-round"}, "export it from AutoRound in its format auto_gptq"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "stored as 'marlin', expected gptq or"),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "stored as 'marlin', expected gptq or"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version 'gemv', expected gemm"),
        ({"quant_method": "awq", "bits": 4, "checkpoint_format": "gemv_fast"}, "version 'gemv_fast', expected gemm"),
        (
            compressed({"num_bits": 4, "type": "int"}, transform_config={"config_groups": {"R1": {}}}),
            "rotated before they are multiplied (transform_config)",
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, "NVFP4_AWQ is not read, expected FP8"),
        ({"quant_method": "fp8", "weight_block_size": [0, 1]}, "weight_block_size is [0, 1]"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "expected e4m3"),
        ({"quant_method": "fp8", "modules_to_not_convert": [7]}, "modules_to_not_convert holds '7'"),
        (compressed({"num_bits": 8, "type": "float"}, format="mxfp8-quantized"), "'mxfp8-quantized' is not"),
        (
            compressed({"num_bits": 4, "type": "float", "group_size": 32}, format="nvfp4-pack-quantized"),
            "NVFP4 in groups of 32, expected 16",
        ),
        (
            compressed({"num_bits": 8, "type": "int"}, format="pack-quantized"),
            "int8 weights by 'tensor', expected group or channel",
        ),
        (compressed({"num_bits": 8, "type": "int", "symmetric": False}), "with a zero point are not read"),
        (
            compressed({"num_bits": 8, "type": "float"}, {"num_bits": 8, "type": "float", "strategy": "channel"}),
            "stored input scales by 'channel'",
        ),
        (
            compressed({"num_bits": 4, "type": "int", "strategy": "channel"}, ignore=["re:("]),
            "which is no regular expression",
        ),
        (compressed({"num_bits": 4, "type": "int", "strategy": "block"}), "int4 weights by 'block'"),
        (
            compressed({"num_bits": 4, "type": "int"}, sparsity_config={"format": "sparse-24-bitmask"}),
            "stored sparse ('sparse-24-bitmask'), expected dense",
        ),
    ],
)
def test_what_is_not_read_is_refused_with_a_way_out(table: Any, words: str) -> None:
    assert words in refusal(table)
