"""Quantised checkpoints give the logits that their formats define, expanded at load or multiplied as stored."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.engine.layers.linear.weights import WeightError
from stentor.engine.quantization.choose import Backend
from stentor.engine.worker.errors import SetupError
from stentor.protocols.ipc.config import OnlineQuantization
from stentor.tests.engine.loading.tiny_gguf import write_gguf
from stentor.tests.engine.quantization import checkpoints as make
from stentor.tests.engine.quantization.checkpoints import Made
from stentor.tests.parity.paged import PagedDecoder

Maker = Callable[[Path], Made]

FP8_TOKENS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
INT8_TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}

WEIGHT_ONLY: dict[str, Maker] = {
    "gptq": lambda at: make.packed(at, {"quant_method": "gptq", "bits": 4, "group_size": 32}, make.gptq(32)),
    "gptq-v2": lambda at: make.packed(
        at,
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "gptq_v2"},
        make.gptq(64, version=2),
    ),
    "gptq-act-order": lambda at: make.packed(
        at,
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
        make.gptq(32, act_order=True),
    ),
    "gptq-channel": lambda at: make.packed(at, {"quant_method": "gptq", "bits": 4, "group_size": -1}, make.gptq(-1)),
    "awq": lambda at: make.packed(at, {"quant_method": "awq", "bits": 4, "group_size": 64}, make.awq(64)),
    "compressed-int4": lambda at: make.compressed(
        at,
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True},
    ),
    "compressed-int4-zeros": lambda at: make.compressed(
        at,
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False},
    ),
    "compressed-int4-channel": lambda at: make.compressed(
        at, "pack-quantized", {"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": True}
    ),
}

INT8 = {"num_bits": 8, "type": "int"}
GPTQ8 = {"quant_method": "gptq", "bits": 8, "group_size": 32}
INT8_GROUPS: dict[str, Maker] = {
    "gptq8": lambda at: make.packed(at, GPTQ8, make.gptq(32, bits=8)),
    "gptq8-v2": lambda at: make.packed(
        at, GPTQ8 | {"group_size": 64, "checkpoint_format": "gptq_v2"}, make.gptq(64, version=2, bits=8)
    ),
    "gptq8-act-order": lambda at: make.packed(at, GPTQ8 | {"desc_act": True}, make.gptq(32, act_order=True, bits=8)),
    "gptq8-channel": lambda at: make.packed(at, GPTQ8 | {"group_size": -1}, make.gptq(-1, bits=8)),
    "compressed-w8a16": lambda at: make.compressed(
        at, "pack-quantized", INT8 | {"strategy": "group", "group_size": 32, "symmetric": True}
    ),
    "compressed-w8a16-zeros": lambda at: make.compressed(
        at, "pack-quantized", INT8 | {"strategy": "group", "group_size": 128, "symmetric": False}
    ),
    "compressed-w8a16-channel": lambda at: make.compressed(
        at, "pack-quantized", INT8 | {"strategy": "channel", "symmetric": True}
    ),
}
FP4_WEIGHTS = {"num_bits": 4, "type": "float", "symmetric": True}


def _compressed_fp4(kind: str, group: int) -> Maker:
    form = f"{kind}-pack-quantized"
    strategy = "tensor_group" if kind == "nvfp4" else "group"
    weights = FP4_WEIGHTS | {"strategy": strategy, "group_size": group}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": weights | {"dynamic": True}}}
    described = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": groups,
        "ignore": ["lm_head"],
    }
    return lambda at: make.packed(at, described, make.fp4(kind))


FP4: dict[str, Maker] = {
    "compressed-nvfp4": _compressed_fp4("nvfp4", 16),
    "compressed-mxfp4": _compressed_fp4("mxfp4", 32),
    "modelopt-nvfp4": lambda at: make.packed(
        at,
        {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}},
        make.fp4("nvfp4", "modelopt"),
        file="hf_quant_config.json",
    ),
}
"""The inputs of the first two are meant to be quantised too; they are taken as they are."""

QUANTISED_INPUTS: dict[str, Maker] = {
    "compressed-fp8": lambda at: make.compressed(
        at, "float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, FP8_TOKENS
    ),
    "compressed-fp8-static": lambda at: make.compressed(
        at,
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "tensor"},
        {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False},
    ),
    "compressed-int8": lambda at: make.compressed(
        at, "int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}, INT8_TOKENS
    ),
    "bitnet": lambda at: make.bitnet(at, "autobitlinear"),
    "bitnet-divided": lambda at: make.bitnet(at, "bitlinear"),
    "bitnet-online": lambda at: make.bitnet(at, "autobitlinear", "online"),
}

EXPANDED_ONLY: dict[str, Maker] = {
    "fp8-blocks": lambda at: make.packed(
        at, {"quant_method": "fp8", "weight_block_size": [128, 128]}, make.fp8_by_block(128)
    ),
    "fp8-small-blocks": lambda at: make.packed(
        at, {"quant_method": "fp8", "weight_block_size": [32, 32]}, make.fp8_by_block(32)
    ),
    "fp8": lambda at: make.packed(at, {"quant_method": "fp8"}, make.fp8_by_tensor()),
    "modelopt": lambda at: make.packed(
        at,
        {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
        make.fp8_by_tensor(0.05),
        file="hf_quant_config.json",
    ),
    "modelopt-channel": lambda at: make.packed(
        at,
        {"quantization": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}},
        make.fp8_by_channel,
        file="hf_quant_config.json",
    ),
}


@torch.inference_mode()
def our_logits(folder: Path, backend: Backend) -> torch.Tensor:
    ours = PagedDecoder(folder, backend=backend)
    ours.add(0, make.TOKENS)
    (logits,) = ours.run((0, 0, len(make.TOKENS)))
    return logits


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    cache: dict[str, Made] = {}

    def get(name: str) -> Made:
        if name not in cache:
            maker = (WEIGHT_ONLY | QUANTISED_INPUTS | EXPANDED_ONLY | FP4 | INT8_GROUPS)[name]
            cache[name] = maker(tmp_path_factory.mktemp(name))
        return cache[name]

    return get


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", [*WEIGHT_ONLY, *EXPANDED_ONLY, *FP4, *INT8_GROUPS])
def test_expanded_weights_give_the_logits_of_their_format(made: Callable[[str], Made], name: str) -> None:
    found = made(name)
    assert found.logits.std() > 0.3, "logits this flat would hide a mistake"
    torch.testing.assert_close(our_logits(found.folder, "expanded"), found.logits, rtol=1e-4, atol=5e-4)


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", [*WEIGHT_ONLY, *FP4, *INT8_GROUPS])
def test_weights_multiplied_as_stored_give_the_same(made: Callable[[str], Made], name: str) -> None:
    found = made(name)
    torch.testing.assert_close(our_logits(found.folder, "kernels"), found.logits, rtol=1e-4, atol=5e-4)


@pytest.mark.parametrize("name", QUANTISED_INPUTS)
def test_quantised_inputs_give_what_their_format_defines(made: Callable[[str], Made], name: str) -> None:
    """A value next to a rounding boundary may fall to its other side, so a few logits differ by a little."""
    found = made(name)
    expected = make.with_int8_inputs(found.folder) if "int8" in name else found.logits
    error = (our_logits(found.folder, "kernels") - expected).abs()
    assert error.mean() < 0.01 * expected.std()
    assert error.max() < 0.25 * expected.std()
    rough = (our_logits(found.folder, "expanded") - expected).abs()
    assert rough.mean() > 2 * error.mean(), "inputs were not quantised, or the check cannot tell"


@pytest.mark.parametrize("quantization", ["fp8", "int8"])
def test_quantised_at_load_is_what_a_quantised_checkpoint_gives(
    made: Callable[[str], Made], quantization: OnlineQuantization, tmp_path: Path
) -> None:
    expected = make.int8_model_logits() if quantization == "int8" else made("compressed-fp8").logits
    make.tiny_llama().save_pretrained(tmp_path)
    ours = PagedDecoder(tmp_path, backend="kernels", quantization=quantization)
    ours.add(0, make.TOKENS)
    (logits,) = ours.run((0, 0, len(make.TOKENS)))
    assert (logits - expected).abs().mean() < 0.01 * expected.std()


def test_quantising_at_load_is_refused_where_no_kernel_multiplies_the_result(tmp_path: Path) -> None:
    make.tiny_llama().save_pretrained(tmp_path)
    for packed, unsupported_reason in (
        (True, "float32 asks for exact inputs, .*"),
        (False, "there are no CPU kernels"),
    ):
        with pytest.raises(
            WeightError, match=f"run on CUDA, not on cpu; {unsupported_reason}; plain weights would gain"
        ):
            PagedDecoder(tmp_path, quantization="fp8", packed=packed)
    with pytest.raises(WeightError, match="they take int8, four bits and GGUF's blocks; plain weights would gain"):
        PagedDecoder(tmp_path, quantization="fp8", dtype=torch.bfloat16)


def test_quantising_what_is_quantised_is_refused(made: Callable[[str], Made]) -> None:
    with pytest.raises(SetupError, match=r"--quantization int8: the weights are quantised already \(awq\)"):
        PagedDecoder(made("awq").folder, quantization="int8")


@pytest.mark.proof(each="kind")
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1", "MXFP4", "IQ4_NL"])
def test_gguf_blocks_multiplied_as_stored_give_what_expanded_ones_do(kind: str, tmp_path: Path) -> None:
    """Query and key rows change places on the way."""
    write_gguf(tmp_path / "m.gguf", make.tiny_llama(), "llama", gguf.GGMLQuantizationType[kind])
    assert_stored_blocks_are_multiplied(tmp_path / "m.gguf")


def test_gguf_blocks_of_evenly_spaced_codes_and_of_tables_stand_beside_each_other(tmp_path: Path) -> None:
    others = {"v_proj": gguf.GGMLQuantizationType.Q5_0, "up_proj": gguf.GGMLQuantizationType.MXFP4}
    write_gguf(tmp_path / "m.gguf", make.tiny_llama(), "llama", gguf.GGMLQuantizationType.IQ4_NL, others=others)
    assert_stored_blocks_are_multiplied(tmp_path / "m.gguf")


def assert_stored_blocks_are_multiplied(path: Path) -> None:
    notes = PagedDecoder(path, backend="kernels").model.weights.note_lines()
    assert all(": multiplied as they are stored" in note for note in notes)
    expanded = our_logits(path, "expanded")
    assert expanded.std() > 0.3
    torch.testing.assert_close(our_logits(path, "kernels"), expanded, rtol=1e-4, atol=5e-4)


@torch.inference_mode()
def test_stored_scales_of_a_float8_cache_are_used(made: Callable[[str], Made], tmp_path: Path) -> None:
    """Values far above 448 would be cut without their scale."""
    folder = made("modelopt").folder
    tensors = load_file(folder / "model.safetensors")
    for layer in range(2):
        prefix = f"model.layers.{layer}.self_attn"
        tensors[f"{prefix}.v_proj.weight_scale"] *= 1000
        tensors[f"{prefix}.o_proj.weight_scale"] /= 1000
        tensors[f"{prefix}.v_proj.v_scale"] = torch.tensor(8.0)
        tensors[f"{prefix}.k_proj.k_scale"] = torch.tensor(0.05)
    for file in ("config.json", "hf_quant_config.json"):
        (tmp_path / file).write_text((folder / file).read_text())
    save_file(tensors, tmp_path / "model.safetensors")

    def logits(dtype: torch.dtype) -> torch.Tensor:
        ours = PagedDecoder(tmp_path, cache_dtype=dtype)
        ours.add(0, make.TOKENS)
        return ours.run((0, 0, len(make.TOKENS)))[0]

    plain, scaled = logits(torch.float32), logits(torch.float8_e4m3fn)
    rounding = (scaled - plain).abs().mean() / plain.std()
    assert 0 < rounding < 0.1
    for layer in range(2):
        for which in ("k", "v"):
            del tensors[f"model.layers.{layer}.self_attn.{which}_proj.{which}_scale"]
    save_file(tensors, tmp_path / "model.safetensors")
    assert (logits(torch.float8_e4m3fn) - plain).abs().mean() / plain.std() > 2 * rounding


def test_the_kernels_are_refused_on_a_cpu_and_say_so(made: Callable[[str], Made]) -> None:
    ours = PagedDecoder(made("awq").folder)
    (line,) = ours.model.weights.note_lines()
    assert line == (
        "weights in int4 (awq, groups of 64): expanded to float32, since the kernels for it run on CUDA, not on cpu; "
        "float32 asks for exact inputs, and packed weights round them (14 projections)"
    )


def test_a_checkpoint_that_lacks_a_scale_is_refused(made: Callable[[str], Made], tmp_path: Path) -> None:
    folder = made("fp8").folder
    tensors: dict[str, Any] = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight_scale"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(WeightError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight_scale"):
        PagedDecoder(tmp_path)


@pytest.mark.parametrize(
    ("ending", "value"), [("weight_scale", torch.zeros(1)), ("weight", torch.full((64, 128), 3, dtype=torch.uint8))]
)
def test_a_ternary_weight_that_is_none_is_refused(
    made: Callable[[str], Made], tmp_path: Path, ending: str, value: torch.Tensor
) -> None:
    part = "model.layers.1.mlp.up_proj"
    folder = made("bitnet").folder
    tensors = load_file(folder / "model.safetensors") | {f"{part}.{ending}": value}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(WeightError, match=rf"{part}: a scale is not positive"):
        PagedDecoder(tmp_path)


@pytest.mark.parametrize(
    ("name", "ending", "value", "says"),
    [
        ("fp8", "weight_scale", torch.tensor(torch.nan), "weight_scale is float32, or holds a value that is no finite"),
        ("awq", "scales", torch.full((2, 256), torch.inf).half(), "scales is float16, or holds a value that is no fin"),
        ("gptq8", "scales", torch.full((4, 256), torch.nan).half(), "scales is float16, or holds a value that is no f"),
        (
            "gptq-act-order",
            "g_idx",
            torch.zeros(0, dtype=torch.int32),
            r"groups is int32 \(0,\), expected 128",
        ),
        ("gptq-act-order", "g_idx", torch.zeros(8, 16, dtype=torch.int32), r"groups is int32 \(8, 16\), expected 128"),
        (
            "gptq-act-order",
            "scales",
            torch.ones(4, 256, 1).half(),
            r"is float16 \(4, 256, 1\), expected a matrix",
        ),
        ("gptq-act-order", "scales", torch.ones(4, 256, dtype=torch.int64), "scales is int64, or holds"),
    ],
)
def test_scales_and_indices_that_are_none_are_refused(
    made: Callable[[str], Made], tmp_path: Path, name: str, ending: str, value: torch.Tensor, says: str
) -> None:
    folder = made(name).folder
    tensors = load_file(folder / "model.safetensors") | {f"model.layers.0.mlp.up_proj.{ending}": value}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(WeightError, match=rf"mlp\.up_proj: .*{says}"):
        PagedDecoder(tmp_path)


def test_a_scale_of_the_wrong_shape_is_refused(made: Callable[[str], Made], tmp_path: Path) -> None:
    folder = made("fp8").folder
    tensors: dict[str, Any] = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight_scale"] = torch.ones(7)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(WeightError, match=r"mlp\.up_proj: weight_scale has shape \(7,\), expected one scale or 256"):
        PagedDecoder(tmp_path)
