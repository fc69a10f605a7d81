"""What programs write beside the format that they name: extra tensors, other names, projections left out."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.layers.linear.linear import Linear
from stentor.engine.layers.linear.weights import WeightError, WeightMap
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.quantization.choose import Backend
from stentor.engine.quantization.formats import (
    Format,
    FP8Format,
    GroupedInt8Format,
    Int4Format,
    Int8Format,
    OnlineFormat,
    QuantizationRule,
    QuantizedCheckpoint,
    ScaleType,
)
from stentor.engine.quantization.stored_tensors import correct_by_tensors
from stentor.tests.engine.local import weights_bytes
from stentor.tests.engine.quantization import checkpoints as make
from stentor.tests.engine.quantization.checkpoints import Made, Pack, Tensors
from stentor.tests.parity.paged import PagedDecoder

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
STATIC_FP8 = {"quant_method": "fp8", "activation_scheme": "static"}
Change = Callable[[str, Tensors], None]
"""Changes the tensors of the checkpoint, given a projection's name."""

CPU = torch.device("cpu")


def changed(made: Made, change: Change, ending: str) -> Made:
    """The checkpoint after ``change`` for every projection that has a tensor with ``ending``."""
    tensors = load_file(made.folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(f".{ending}")]:
        change(name.removesuffix(f".{ending}"), tensors)
    save_file(tensors, made.folder / "model.safetensors")
    return made


@torch.inference_mode()
def check(made: Made, backend: Backend = "auto") -> PagedDecoder:
    """The decoder, once its logits were found to be those of the checkpoint."""
    ours = PagedDecoder(made.folder, backend=backend)
    ours.add(0, make.TOKENS)
    (logits,) = ours.run((0, 0, len(make.TOKENS)))
    torch.testing.assert_close(logits, made.logits, rtol=1e-4, atol=5e-4)
    return ours


def add_biases(part: str, tensors: Tensors) -> None:
    tensors[f"{part}.bias"] = torch.zeros(tensors[f"{part}.qweight"].shape[1], dtype=torch.float16)


def add_attention_scales(part: str, tensors: Tensors) -> None:
    prefix = part.rpartition(".")[0]
    tensors[f"{part}.weight_zero_point"] = torch.zeros(1, dtype=torch.int8)
    if part.endswith("q_proj"):
        for name in ("q_scale", "prob_scale", "q_proj.output_scale", "kv_scale"):
            tensors[f"{prefix}.{name}"] = torch.tensor(0.5)
        tensors[f"{prefix}.rotary_emb.inv_freq"] = torch.ones(16)


def test_tensors_that_carry_nothing_are_passed_over(tmp_path: Path) -> None:
    """GPTQ's exporters write a bias for every projection; FP8's write zero points, and scales for attention."""
    check(changed(make.packed(tmp_path / "gptq", GPTQ, make.gptq(32)), add_biases, "qweight"))
    check(
        changed(
            make.packed(tmp_path / "fp8", STATIC_FP8, make.fp8_by_tensor(0.05)), add_attention_scales, "weight_scale"
        )
    )


def test_a_bias_without_a_place_that_is_not_zero_is_refused(tmp_path: Path) -> None:
    def add(part: str, tensors: Tensors) -> None:
        add_biases(part, tensors)
        tensors[f"{part}.bias"][3] = 1e-3

    made = changed(make.packed(tmp_path, GPTQ, make.gptq(32)), add, "qweight")
    with pytest.raises(WeightError, match=r"proj\.bias, which this architecture has no place for"):
        PagedDecoder(made.folder)


@pytest.mark.parametrize(
    ("file", "description", "pack"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 32, "desc_act": False, "sym": True}, make.gptq(32)),
        ("quant_config.json", {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}, make.awq(64)),
    ],
)
def test_what_older_programs_describe_beside_config_json_is_read(
    file: str, description: dict[str, Any], pack: Pack, tmp_path: Path
) -> None:
    check(make.packed(tmp_path, description, pack, file=file))


def test_scales_by_the_names_of_transformers_are_found(tmp_path: Path) -> None:
    """One description stands for both names: a scale a tensor, static."""

    def rename(part: str, tensors: Tensors) -> None:
        tensors[f"{part}.weight_scale_inv"] = tensors.pop(f"{part}.weight_scale")
        tensors[f"{part}.activation_scale"] = tensors.pop(f"{part}.input_scale")

    made = make.packed(tmp_path, {**STATIC_FP8, "weight_block_size": None}, make.fp8_by_tensor(0.05))
    check(changed(made, rename, "weight_scale"))


@pytest.mark.parametrize("backend", ["auto", "kernels"])
def test_a_projection_that_is_stored_plain_is_plain_whatever_the_description_says(
    backend: Backend, tmp_path: Path
) -> None:
    """Nothing says that k_proj was left out; the projections fused with it are then plain too, and the note says so."""

    def restore(part: str, tensors: Tensors) -> None:
        scale = tensors.pop(f"{part}.weight_scale")
        tensors[f"{part}.weight"] = tensors[f"{part}.weight"].float() * scale

    def restore_keys(part: str, tensors: Tensors) -> None:
        if part.endswith("k_proj"):
            restore(part, tensors)

    made = changed(make.packed(tmp_path, {"quant_method": "fp8"}, make.fp8_by_tensor()), restore_keys, "weight_scale")
    if backend == "auto":
        check(made)
        return
    lines = list(PagedDecoder(made.folder, backend=backend).model.weights.note_lines())
    assert lines == [
        "weights in fp8 by tensor: multiplied as they are stored (8 projections)",
        "weights in fp8 by tensor: expanded to float32, since a projection that it is fused with is stored otherwise "
        "(4 projections)",
    ]


def test_only_scales_a_tensor_are_renamed_and_only_where_no_usual_name_is() -> None:
    tensor, int4 = FP8Format("tensor"), Int4Format("gptq", 32, symmetric=False)
    quantized = QuantizedCheckpoint(
        "fp8", (QuantizationRule(("up_proj",), int4), QuantizationRule(("Linear",), tensor))
    )
    names = {"a.weight": "F8_E4M3", "a.weight_scale_inv": "float32", "b.weight": "bfloat16"}
    settled = correct_by_tensors(quantized, names)
    assert settled.format_of("a") == FP8Format(
        "tensor", scale_ending="weight_scale_inv", input_ending="activation_scale"
    )
    assert settled.format_of("a.up_proj") == int4
    assert settled.format_of("b") is None
    assert correct_by_tensors(quantized, {**names, "c.weight_scale": "float32"}).format_of("a") == tensor


@pytest.mark.parametrize(
    ("types", "kept"),
    [
        (("float16", "float16"), "float16"),
        (("bfloat16", "bfloat16"), "bfloat16"),
        (("bfloat16", "float16"), "float32"),
        (("float32", "float32"), "float32"),
        (("float64", "bfloat16"), "float32"),
    ],
)
@pytest.mark.parametrize(
    ("format", "ending"),
    [
        (Int4Format("awq", 64, symmetric=False), "scales"),
        (GroupedInt8Format("gptq", 64, symmetric=False), "scales"),
        (Int4Format("compressed-tensors", 64, symmetric=True), "weight_scale"),
    ],
)
def test_scales_of_groups_are_kept_in_the_type_that_all_are_stored_in(
    types: tuple[str, str], kept: ScaleType, format: Int4Format | GroupedInt8Format, ending: str
) -> None:
    quantized = QuantizedCheckpoint("any", (QuantizationRule(("Linear",), format),))
    stored = {f"{part}.{ending}": type for part, type in zip("ab", types, strict=True)} | {"norm.weight": "float32"}
    assert correct_by_tensors(quantized, stored).format_of("a") == replace(format, scales=kept)


def test_scales_of_a_float8_cache_are_found_under_every_name(tmp_path: Path) -> None:
    made = make.packed(tmp_path, STATIC_FP8, make.fp8_by_tensor(0.05))

    tensors = load_file(made.folder / "model.safetensors")

    @torch.inference_mode()
    def logits(*names: str) -> torch.Tensor:
        extra = {f"model.layers.{layer}.self_attn.{name}": torch.tensor([0.3]) for layer in range(2) for name in names}
        save_file(tensors | extra, tmp_path / "model.safetensors")
        ours = PagedDecoder(tmp_path, cache_dtype=torch.float8_e4m3fn)
        ours.add(0, make.TOKENS)
        return ours.run((0, 0, len(make.TOKENS)))[0]

    expected = logits("k_scale", "v_proj.v_scale")
    assert not torch.equal(logits("k_scale"), expected)
    assert torch.equal(logits("kv_scale"), expected)
    assert torch.equal(logits("k_proj.output_scale", "v_proj.output_scale"), expected)


def test_a_cache_scale_of_the_wrong_shape_is_refused() -> None:
    weights = WeightMap()
    weights.offer("a.k_scale", torch.ones(2))
    with pytest.raises(WeightError, match=r"a\.k_scale has shape \(3, 1\) in the checkpoint, expected one value or 2"):
        weights.load([("a.k_scale", torch.ones(3, 1))])


# ---- single layers


def fused(
    stored: Mapping[str, tuple[Format, Tensors]], inputs: int, backend: Backend, sizes: Mapping[str, int]
) -> tuple[Linear, list[str]]:
    rules = tuple(QuantizationRule((part,), format) for part, (format, _) in stored.items())
    weights = WeightMap()
    place = LayerContext(CPU, torch.float32, False, QuantizedCheckpoint("test", rules), backend)
    linear = Linear(weights, dict(sizes), inputs, place)
    weights.load(
        (f"{part}.{ending}", tensor) for part, (_, tensors) in stored.items() for ending, tensor in tensors.items()
    )
    return linear, list(weights.note_lines())


@pytest.mark.parametrize("backend", ["auto", "kernels"])
def test_fused_projections_of_different_formats_are_expanded(backend: Backend) -> None:
    torch.manual_seed(0)
    packs: dict[str, tuple[Format, Pack]] = {
        "a.q_proj": (FP8Format("channel", "token"), make.fp8_by_channel),
        "a.k_proj": (Int4Format("gptq", 32, symmetric=False, zero_offset=1), make.gptq(32)),
        "a.v_proj": (FP8Format("tensor"), make.fp8_by_tensor()),
    }
    made = {part: (format, pack(torch.randn(16, 64))) for part, (format, pack) in packs.items()}
    stored = {part: (format, tensors) for part, (format, (tensors, _)) in made.items()}
    linear, notes = fused(stored, 64, backend, dict.fromkeys(made, 16))
    x = torch.randn(5, 64)
    expected = x @ torch.cat([value for _, (_, value) in made.values()]).T
    torch.testing.assert_close(linear(x), expected, rtol=1e-4, atol=1e-4)
    assert len(notes) == 3
    assert all("expanded to float32" in line for line in notes)


def test_fused_projections_quantise_their_input_by_the_largest_of_their_scales() -> None:
    torch.manual_seed(0)
    format = FP8Format("tensor", "tensor")
    scales = {"a.q_proj": 0.002, "a.k_proj": 0.02, "a.v_proj": 0.001}
    made = {part: make.fp8_by_tensor(scale)(torch.randn(16, 64)) for part, scale in scales.items()}
    stored: dict[str, tuple[Format, Tensors]] = {part: (format, tensors) for part, (tensors, _) in made.items()}
    linear, _ = fused(stored, 64, "kernels", dict.fromkeys(made, 16))
    x = torch.randn(5, 64)
    rounded = (x / 0.02).to(torch.float8_e4m3fn).float() * 0.02
    expected = rounded @ torch.cat([value for _, value in made.values()]).T
    torch.testing.assert_close(linear(x), expected, rtol=1e-4, atol=1e-3)


def test_block_scales_may_keep_the_dimensions_they_were_reduced_over() -> None:
    torch.manual_seed(0)
    tensors, value = make.fp8_by_block(128)(torch.randn(200, 300))
    kept = {"weight": tensors["weight"], "weight_scale": tensors["weight_scale_inv"][:, None, :, None]}
    linear, _ = fused({"a.o_proj": (FP8Format("block"), kept)}, 300, "auto", {"a.o_proj": 200})
    x = torch.randn(3, 300)
    torch.testing.assert_close(linear(x), x @ value.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("backend", ["auto", "kernels"])
def test_int8_weights_of_the_whole_range_are_multiplied(backend: Backend) -> None:
    """compressed-tensors takes 127.5 steps a side, so that -128 occurs."""
    weight = torch.full((16, 64), -128, dtype=torch.int8)
    scale = torch.linspace(0.1, 1, 16)
    stored: Tensors = {"weight": weight, "weight_scale": scale[:, None].bfloat16()}
    linear, _ = fused({"a.o_proj": (Int8Format("channel", "token"), stored)}, 64, backend, {"a.o_proj": 16})
    x = torch.full((3, 64), -1.0)
    expected = (128 * 64 * scale.bfloat16().float()).expand(3, 16)
    torch.testing.assert_close(linear(x), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("backend", ["auto", "kernels"])
@pytest.mark.parametrize(
    ("format", "pack", "ending", "change"),
    [
        (Int4Format("gptq", 32, symmetric=False, zero_offset=1), make.gptq(32), "qweight", lambda t: t[None]),
        (Int4Format("gptq", 32, symmetric=False, zero_offset=1), make.gptq(32), "qzeros", lambda t: t.long()),
        (Int4Format("gptq", 32, symmetric=False, zero_offset=1), make.gptq(32), "scales", lambda t: t[:-1]),
        (Int4Format("awq", 32, symmetric=False), make.awq(32), "qweight", lambda t: t[:0]),
        (Int4Format("awq", 32, symmetric=False), make.awq(32), "qzeros", lambda t: t.flatten()),
        (FP8Format("channel"), make.fp8_by_channel, "weight", lambda t: t.T),
        (
            FP8Format("block", scale_ending="weight_scale_inv"),
            make.fp8_by_block(128),
            "weight_scale_inv",
            torch.flatten,
        ),
    ],
)
def test_tensors_that_do_not_fit_name_their_projection(
    format: Format, pack: Pack, ending: str, change: Callable[[torch.Tensor], torch.Tensor], backend: Backend
) -> None:
    torch.manual_seed(0)
    tensors, _ = pack(torch.randn(256, 128))
    tensors[ending] = change(tensors[ending])
    with pytest.raises(WeightError, match=r"^a\.o_proj: "):
        fused({"a.o_proj": (format, tensors)}, 128, backend, {"a.o_proj": 256})


def test_an_empty_input_scale_names_its_projection() -> None:
    tensors, _ = make.fp8_by_tensor(0.05)(torch.ones(16, 64))
    tensors["input_scale"] = torch.ones(0)
    with pytest.raises(WeightError, match=r"a\.o_proj: input_scale is empty"):
        fused({"a.o_proj": (FP8Format("tensor", "tensor"), tensors)}, 64, "kernels", {"a.o_proj": 16})


def test_weights_are_sized_as_they_will_be_kept(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make.packed(tmp_path, GPTQ, make.gptq(32)).folder)
    plain = weights_bytes(checkpoint.decoder, LayerContext(CPU, torch.float32, False))
    backends: tuple[Backend, ...] = ("auto", "kernels")
    for backend in backends:
        place = LayerContext(CPU, torch.float32, False, checkpoint.quantized, backend)
        size = weights_bytes(checkpoint.decoder, place)
        assert size == PagedDecoder(tmp_path, backend=backend).model.weights.total_bytes
        assert (size == plain) == (backend == "auto")


def test_the_sizing_of_weights_refuses_for_the_device_that_was_asked_for(tmp_path: Path) -> None:
    make.tiny_llama().save_pretrained(tmp_path)
    online = QuantizedCheckpoint("online", (QuantizationRule(("Linear",), OnlineFormat("int8")),))
    with pytest.raises(WeightError, match="run on CUDA, not on cpu"):
        weights_bytes(open_checkpoint(tmp_path).decoder, LayerContext(CPU, torch.float32, False, online))
