"""Experts of quantised checkpoints: expanded at load, or packed as they are stored."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from stentor.engine.layers.experts.experts import Experts, PackedExperts, StoredExperts
from stentor.engine.layers.experts.moe import MoE
from stentor.engine.layers.layer import Layer
from stentor.engine.layers.linear.weights import WeightError
from stentor.engine.models.decoder import Decoder
from stentor.engine.quantization.stored import StoredError, gpt_oss_weight
from stentor.kernels import CodedMatrices, quantize_weight_int8
from stentor.kernels.linear_packed.reference import dequantize
from stentor.tests.engine.quantization import checkpoints as make
from stentor.tests.engine.quantization.checkpoints import Pack
from stentor.tests.parity import tiny
from stentor.tests.parity.paged import PagedDecoder

transformers: Any = untyped_transformers
BF16 = torch.bfloat16
LAYERS, EXPERTS, INNER = 2, 4, 64

INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
    },
}


def int8_by_channel(weight: torch.Tensor) -> tuple[make.Tensors, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 127
    codes = torch.round(weight / scale)
    return {"weight": codes.to(torch.int8), "weight_scale": scale}, codes * scale


FORMATS: dict[str, tuple[dict[str, Any], Pack]] = {
    "fp8": ({"quant_method": "fp8", "weight_block_size": [32, 32]}, make.fp8_by_block(32)),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, make.gptq(32)),
    "gptq-symmetric": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, make.gptq(32, symmetric=True)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 64}, make.awq(64)),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, make.fp4("nvfp4", "modelopt")),
    **{
        f"fp8-with-fp4-{ending}": (
            {"quant_method": "fp8", "weight_block_size": [32, 32], "ignored_layers": ["re:.*self_attn.*"], **said},
            make.fp4("mxfp4", ending),
        )
        for ending, said in (
            ("weight_scale", {"store_dtype": "mxfp4"}),
            ("weight_scale_inv", {"routed_experts_quant_method": "mxfp4"}),
        )
    },
    "gptq8": ({"quant_method": "gptq", "bits": 8, "group_size": 32}, make.gptq(32, bits=8)),
    "int8": (INT8, int8_by_channel),
}


def made(folder: Path, description: dict[str, Any], pack: Pack, *, inner: int = INNER) -> torch.Tensor:
    """A checkpoint whose experts are stored as ``pack`` says; the logits of transformers with their plain values."""
    torch.manual_seed(1)
    config = transformers.Qwen3MoeConfig(
        vocab_size=make.VOCAB,
        hidden_size=make.HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=EXPERTS,
        num_experts_per_tok=2,
        moe_intermediate_size=inner,
        max_position_embeddings=128,
        norm_topk_prob=True,
    )
    model = transformers.Qwen3MoeForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.08)
    model.save_pretrained(folder)
    plain = load_file(folder / "model.safetensors")
    stored = dict(plain)
    for name in plain:
        if ".experts." in name:
            part = name.removesuffix(".weight")
            tensors, plain[name] = pack(stored.pop(name).float())
            stored |= {f"{part}.{ending}": tensor.contiguous() for ending, tensor in tensors.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
    logits = make.logits_of(transformers.AutoModelForCausalLM.from_pretrained(folder))
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    described = json.loads((folder / "config.json").read_text()) | {"quantization_config": description}
    (folder / "config.json").write_text(json.dumps(described))
    return logits


def logits_of(ours: PagedDecoder) -> torch.Tensor:
    ours.add(0, make.TOKENS)
    (found,) = ours.run((0, 0, len(make.TOKENS)))
    return found


def experts_in(ours: PagedDecoder) -> list[Experts]:
    assert isinstance(ours.model, Decoder)
    networks = [layer._network for layer in ours.model._layers if isinstance(layer, Layer)]
    return [network.part._experts for network in networks if network and isinstance(network.part, MoE)]


def notes_of(ours: PagedDecoder) -> list[str]:
    return [line for line in ours.model.weights.note_lines() if "experts" in line]


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("packed", [None, False])
@pytest.mark.parametrize("name", FORMATS)
def test_expanded_experts_give_the_logits_of_their_format(name: str, packed: bool | None, tmp_path: Path) -> None:
    expected = made(tmp_path, *FORMATS[name])
    ours = PagedDecoder(tmp_path, packed=packed)
    (note,) = notes_of(ours)
    assert ": expanded to float32, since" in note
    assert note.endswith(f"({LAYERS * EXPERTS * 3} projections)")
    assert expected.std() > 0.3, "logits this flat would hide a mistake"
    torch.testing.assert_close(logits_of(ours), expected, rtol=1e-4, atol=5e-4)


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", FORMATS)
def test_experts_that_stay_in_their_codes_give_what_expanded_ones_give(name: str, tmp_path: Path) -> None:
    made(tmp_path, *FORMATS[name])
    expanded, coded = PagedDecoder(tmp_path, packed=False), PagedDecoder(tmp_path, packed=False, backend="kernels")
    (note,) = notes_of(coded)
    assert note.endswith(f": multiplied as they are stored ({LAYERS * EXPERTS * 3} projections)")
    for plain, codes in zip(experts_in(expanded), experts_in(coded), strict=True):
        assert isinstance(plain, StoredExperts)
        assert isinstance(codes, StoredExperts)
        for values, matrices in ((plain._gate_up, codes._gate_up), (plain._down, codes._down)):
            assert isinstance(values, torch.Tensor)
            assert isinstance(matrices, CodedMatrices)
            assert matrices.nbytes < values.nbytes / 3
            found = torch.stack([matrices.values(expert, values.dtype) for expert in range(EXPERTS)])
            torch.testing.assert_close(found, values, rtol=1e-6, atol=0)


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", ["gptq", "gptq-symmetric", "awq", "nvfp4", "gptq8", "int8"])
def test_experts_in_codes_are_packed_in_bfloat16(name: str, tmp_path: Path) -> None:
    expected = made(tmp_path, *FORMATS[name])
    ours = PagedDecoder(tmp_path, dtype=BF16)
    (note,) = notes_of(ours)
    assert "packed for this CPU" in note
    error = (logits_of(ours) - expected).abs() / expected.std()
    assert error.mean() < 0.05


def stacked_fp8(folder: Path, block: int) -> torch.Tensor:
    """A Mistral 4 whose experts' codes are one tensor, with a scale for each expert, or for blocks of this side; the
    logits of transformers with their plain values."""
    model = tiny.make("mistral4", folder)
    stored = load_file(folder / "model.safetensors")
    for name in [each for each in stored if each.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        weight = stored[name]
        if block:
            packs = [make.fp8_by_block(block)(matrix) for matrix in weight]
            codes, scales = (torch.stack([each[part] for each, _ in packs]) for part in ("weight", "weight_scale_inv"))
            values = torch.stack([each for _, each in packs])
        else:
            scales = weight.abs().amax((1, 2), keepdim=True) / 448
            codes = (weight / scales).to(torch.float8_e4m3fn)
            values = codes.float() * scales
            stored[f"{name}_activation_scale"] = torch.ones(len(weight))
        model.get_parameter(name).data.copy_(values)
        stored |= {name: codes, f"{name}_scale_inv": scales}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    scheme = {"weight_block_size": [block, block]} if block else {"activation_scheme": "static"}
    described = json.loads((folder / "config.json").read_text())
    described["quantization_config"] = {"quant_method": "fp8", **scheme}
    (folder / "config.json").write_text(json.dumps(described))
    return make.logits_of(model)


@pytest.mark.parametrize("packed", [None, False])
@pytest.mark.parametrize("block", [0, 16])
def test_experts_whose_codes_are_one_tensor_give_the_logits_of_their_values(
    block: int, packed: bool | None, tmp_path: Path
) -> None:
    expected = stacked_fp8(tmp_path, block)
    torch.testing.assert_close(logits_of(PagedDecoder(tmp_path, packed=packed)), expected, rtol=1e-4, atol=5e-4)


@pytest.mark.parametrize("block", [0, 16])
def test_experts_whose_codes_are_one_tensor_stay_in_them(block: int, tmp_path: Path) -> None:
    stacked_fp8(tmp_path, block)
    expanded, coded = PagedDecoder(tmp_path, packed=False), PagedDecoder(tmp_path, packed=False, backend="kernels")
    for plain, codes in zip(experts_in(expanded), experts_in(coded), strict=True):
        assert isinstance(plain, StoredExperts)
        assert isinstance(codes, StoredExperts)
        for values, matrices in ((plain._gate_up, codes._gate_up), (plain._down, codes._down)):
            assert isinstance(values, torch.Tensor)
            assert isinstance(matrices, CodedMatrices)
            found = torch.stack([matrices.values(expert, values.dtype) for expert in range(len(values))])
            torch.testing.assert_close(found, values, rtol=1e-6, atol=0)


def mxfp8(folder: Path, **scheme: Any) -> torch.Tensor:
    """An Inkling 2 whose experts' rows have a power of two for 32 codes, gates and ups in turn; the logits of
    transformers with their plain values."""
    model = tiny.make("inkling2", folder)
    stored = load_file(folder / "model.safetensors")
    for name in [each for each in stored if each.endswith(("w13_weight", "w2_weight"))]:
        groups = stored[name].unflatten(2, (-1, 32))
        exponents = (groups.abs().amax(3) / 448).log2().ceil()
        codes = (groups / exponents.exp2()[..., None]).to(torch.float8_e4m3fn)
        values = (codes.float() * exponents.exp2()[..., None]).flatten(2)
        layer = model.model.layers[int(name.split(".")[3])].mlp.experts
        if name.endswith("w2_weight"):
            layer.down_proj.data.copy_(values)
        else:
            layer.gate_up_proj.data.copy_(torch.cat((values[:, 0::2], values[:, 1::2]), dim=1))
        stored |= {name: codes.flatten(2), f"{name}_scale": (exponents + 127).to(torch.uint8)}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    described = json.loads((folder / "config.json").read_text())
    described["quantization_config"] = scheme
    (folder / "config.json").write_text(json.dumps(described))
    return make.logits_of(model)


@pytest.mark.parametrize(
    "scheme",
    [{"quant_method": "mxfp8"}, {"quant_method": "fp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}],
    ids=["mxfp8", "fp8"],
)
def test_experts_in_mxfp8_give_the_logits_of_their_values(scheme: dict[str, Any], tmp_path: Path) -> None:
    expected = mxfp8(tmp_path, **scheme)
    torch.testing.assert_close(logits_of(PagedDecoder(tmp_path)), expected, rtol=1e-4, atol=5e-4)


def test_experts_of_an_inkling_2_mini_in_nvfp4_and_mxfp8_are_expanded(tmp_path: Path) -> None:
    """As published: no description tells of them, some layers have one format and some the other."""
    model = tiny.make("inkling2-mini", tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    generator = torch.Generator().manual_seed(5)
    for name in [each for each in stored if each.endswith(("w13_weight", "w2_weight"))]:
        layer = int(name.split(".")[3])
        experts, outputs, inputs = stored[name].shape
        if layer % 2:
            codes = torch.randint(0, 256, (experts, outputs, inputs // 2), dtype=torch.uint8, generator=generator)
            scales = (0.25 + torch.rand(experts, outputs, inputs // 16, generator=generator)).to(torch.float8_e4m3fn)
            amax = torch.linspace(0.6, 1.2, experts)
            table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
            numbers = torch.stack((table[(codes & 15).long()], table[(codes >> 4).long()]), dim=-1).flatten(2)
            factors = (amax / 16)[:, None, None] * scales.float().repeat_interleave(16, 2)
            values = (numbers * factors).to(BF16).float()
            beside = {"_amax": amax, "_outer_scale_denominator": torch.full((experts,), 16.0)}
        else:
            codes = (torch.randn(experts, outputs, inputs, generator=generator) * 64).to(torch.float8_e4m3fn)
            scales = torch.randint(117, 120, (experts, outputs, inputs // 32), dtype=torch.uint8, generator=generator)
            values = codes.float() * (scales.float() - 127).exp2().repeat_interleave(32, 2)
            beside = {}
        of = model.model.layers[layer].mlp.experts
        if name.endswith("w2_weight"):
            of.down_proj.data.copy_(values)
        else:
            of.gate_up_proj.data.copy_(torch.cat((values[:, 0::2], values[:, 1::2]), dim=1))
        stored |= {name: codes, f"{name}_scale": scales, **{f"{name}{each}": part for each, part in beside.items()}}
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    torch.testing.assert_close(logits_of(PagedDecoder(tmp_path)), make.logits_of(model), rtol=1e-4, atol=5e-4)
    del stored["model.llm.layers.1.mlp.experts.w2_weight_amax"]
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        WeightError, match=r"has only a part of model\.layers\.1\.mlp\.experts\.w2_weight and its scales"
    ):
        PagedDecoder(tmp_path)


def test_gates_and_ups_in_turn_that_share_scales_are_refused(tmp_path: Path) -> None:
    mxfp8(tmp_path, quant_method="fp8", weight_block_size=[16, 16])
    with pytest.raises(WeightError, match="has gates and ups in turn, and scales of blocks of 16 rows, expected"):
        PagedDecoder(tmp_path)


def test_scales_of_fewer_experts_than_there_are_codes_are_refused_in_one_line(tmp_path: Path) -> None:
    stacked_fp8(tmp_path, 0)
    stored = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj"
    stored[f"{name}_scale_inv"] = stored[f"{name}_scale_inv"][:3].clone()
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightError, match=r"down_proj holds 8 experts and 3 scales of them, expected 8"):
        PagedDecoder(tmp_path)


def test_experts_that_are_no_whole_tiles_are_plain(tmp_path: Path) -> None:
    expected = made(tmp_path, {"quant_method": "fp8", "weight_block_size": [8, 8]}, make.fp8_by_block(8), inner=40)
    ours = PagedDecoder(tmp_path)
    assert "the kernels for it run on CUDA, not on cpu" in notes_of(ours)[0]
    torch.testing.assert_close(logits_of(ours), expected, rtol=1e-4, atol=5e-4)


def test_experts_are_quantised_at_load(tmp_path: Path) -> None:
    model = tiny.make("qwen3-moe-steps", tmp_path)
    ours = PagedDecoder(tmp_path, dtype=BF16, quantization="int8")
    (note,) = notes_of(ours)
    assert note.startswith("weights of experts in int8 by channel, quantised at load: packed")
    expected = make.logits_of(model)
    assert ((logits_of(ours) - expected).abs() / expected.std()).mean() < 0.05


def test_experts_that_share_a_tensor_are_quantised_at_load_each_by_itself(tmp_path: Path) -> None:
    model = tiny.make("gpt-oss", tmp_path)
    ours = PagedDecoder(tmp_path, dtype=BF16, quantization="int8")
    (note,) = notes_of(ours)
    assert note.startswith("weights of experts in int8 by channel, quantised at load: packed")
    for packed, exact in zip(experts_in(ours), experts_in(PagedDecoder(tmp_path, packed=False)), strict=True):
        assert isinstance(packed, PackedExperts)
        assert isinstance(exact, StoredExperts)
        for found, plain in ((packed._gate_up, exact._gate_up), (packed._down, exact._down)):
            assert isinstance(plain, torch.Tensor)
            codes, scales = quantize_weight_int8(plain.flatten(0, 1))
            torch.testing.assert_close(dequantize(found), codes * scales[:, None])
    error = (logits_of(ours) - make.logits_of(model)).abs()
    assert error.median() < 0.1, "some tokens choose other experts where all is rounded"


# ---- who multiplies by plain experts


def test_torchs_grouped_product_gives_what_ours_does(tmp_path: Path) -> None:
    tiny.make("qwen3-moe-steps", tmp_path)
    ours = PagedDecoder(tmp_path, dtype=BF16, packed=False)
    assert notes_of(ours) == []
    theirs = PagedDecoder(tmp_path, dtype=BF16, packed=False, moe_backend="torch")
    (note,) = notes_of(theirs)
    assert note.startswith("products of experts run on torch's grouped product (")
    expected, found = logits_of(ours), logits_of(theirs)
    assert ((found - expected).abs() / expected.std()).mean() < 0.02
    for backend, model in (("triton", ours), ("torch", theirs)):
        assert all(isinstance(each, StoredExperts) and each._provider == backend for each in experts_in(model))


def test_experts_in_codes_stay_with_ours_whoever_is_asked_for(tmp_path: Path) -> None:
    made(tmp_path, *FORMATS["gptq"])
    coded = PagedDecoder(tmp_path, dtype=BF16, packed=False, backend="kernels", moe_backend="torch")
    assert any(
        "run on this server's kernels (Triton); torch's grouped product does not run: it does not take weights in codes"
        in note
        for note in notes_of(coded)
    )


# ---- MXFP4


def test_mxfp4_is_as_its_specification_says() -> None:
    """Each code once, by scales of 1, 2^-127 and 4; the low half of a byte is the first value."""
    codes = torch.arange(16, dtype=torch.uint8)
    blocks = (codes | codes.flip(0) << 4).expand(1, 3, 16).contiguous()
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    block = torch.stack((values, values.flip(0)), dim=1).flatten()
    found = gpt_oss_weight(blocks, torch.tensor([[127, 0, 129]], dtype=torch.uint8), 1, 96).values()
    assert torch.equal(found[0], torch.cat((block, block * 2.0**-127, block * 4)))
    with pytest.raises(StoredError, match="a scale is negative or no number"):
        gpt_oss_weight(blocks, torch.tensor([[127, 255, 127]], dtype=torch.uint8), 1, 96)


def test_mxfp4_is_expanded_as_transformers_expands_it() -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 8, 2, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(100, 150, (3, 8, 2), dtype=torch.uint8, generator=generator)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    ours = torch.stack([gpt_oss_weight(b, s, 8, 64).values() for b, s in zip(blocks, scales, strict=True)])
    assert torch.equal(ours.transpose(1, 2), theirs)


@pytest.mark.parametrize(("blocks", "scales"), [((8, 2, 16), (8, 3)), ((8, 2, 8), (8, 2)), ((7, 2, 16), (7, 2))])
def test_mxfp4_of_another_shape_is_refused(blocks: tuple[int, ...], scales: tuple[int, ...]) -> None:
    with pytest.raises(StoredError, match=r"(blocks|weights|scales) are .*, expected"):
        gpt_oss_weight(torch.zeros(blocks, dtype=torch.uint8), torch.zeros(scales, dtype=torch.uint8), 8, 64)


def mxfp4_gpt_oss(folder: Path) -> torch.Tensor:
    """gpt-oss with experts in random MXFP4; the logits of transformers with their plain values."""
    model = tiny.make("gpt-oss", folder)
    make.mxfp4_experts(model, folder)
    return make.logits_of(model)


@pytest.mark.parametrize("packed", [None, False])
def test_gpt_oss_in_mxfp4_is_expanded(packed: bool | None, tmp_path: Path) -> None:
    expected = mxfp4_gpt_oss(tmp_path)
    ours = PagedDecoder(tmp_path, packed=packed)
    (note,) = ours.model.weights.note_lines()
    assert note.startswith("weights of experts in MXFP4: expanded to float32, since")
    torch.testing.assert_close(logits_of(ours), expected, rtol=1e-4, atol=2e-4)


def test_gpt_oss_in_mxfp4_stays_in_its_codes_where_kernels_take_them(tmp_path: Path) -> None:
    expected = mxfp4_gpt_oss(tmp_path)
    ours = PagedDecoder(tmp_path, packed=False, backend="kernels")
    (note,) = ours.model.weights.note_lines()
    assert note.startswith("weights of experts in MXFP4: multiplied as they are stored")
    torch.testing.assert_close(logits_of(ours), expected, rtol=1e-4, atol=2e-4)


def test_gpt_oss_in_mxfp4_is_multiplied_from_its_codes_in_bfloat16(tmp_path: Path) -> None:
    expected = mxfp4_gpt_oss(tmp_path)
    ours = PagedDecoder(tmp_path, dtype=BF16)
    (note,) = ours.model.weights.note_lines()
    assert note.startswith("weights of experts in MXFP4: packed for this CPU")
    plain = PagedDecoder(tmp_path, packed=False)
    for packed, exact in zip(experts_in(ours), experts_in(plain), strict=True):
        assert isinstance(packed, PackedExperts)
        assert isinstance(exact, StoredExperts)
        for ours_of, theirs in ((packed._gate_up, exact._gate_up), (packed._down, exact._down)):
            assert isinstance(theirs, torch.Tensor)
            assert torch.equal(dequantize(ours_of), theirs.flatten(0, 1))
    error = (logits_of(ours) - expected).abs() / expected.std()
    assert error.mean(1).median() < 0.05, "some tokens choose other experts where all is rounded to bfloat16"


def test_mxfp4_of_another_number_of_experts_is_refused(tmp_path: Path) -> None:
    mxfp4_gpt_oss(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    for ending in ("blocks", "scales"):
        name = f"model.layers.1.mlp.experts.down_proj_{ending}"
        stored[name] = stored[name][:3].contiguous()
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightError, match=r"layers\.1\.mlp\.experts\.down_proj_blocks hold 3 experts, expected 4"):
        PagedDecoder(tmp_path)
