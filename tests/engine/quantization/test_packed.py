"""On a CPU in bfloat16, weights whose kinds can be packed are; the model is the expanded one but for rounding."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from msgspec.structs import replace

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.layers.linear.linear import Linear
from stentor.engine.layers.linear.weights import WeightError, WeightMap
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.quantization.choose import LinearTraits, select
from stentor.engine.quantization.formats import (
    Format,
    FP4Format,
    FP8Format,
    GGUFFormat,
    GroupedInt8Format,
    Int4Format,
    Int8Format,
    OnlineFormat,
    QuantizationRule,
    QuantizedCheckpoint,
)
from stentor.engine.quantization.gguf_codes import CODED_BLOCKS
from stentor.engine.quantization.stored import expand
from stentor.kernels import native
from stentor.kernels.forward import Program, Traced
from stentor.kernels.linear_packed import PackedKind
from stentor.kernels.linear_packed.reference import dequantize
from stentor.tests.engine.loading.k_quants import quantize
from stentor.tests.engine.loading.tiny_gguf import write_gguf
from stentor.tests.engine.local import weights_bytes
from stentor.tests.engine.quantization import checkpoints as make
from stentor.tests.engine.quantization.checkpoints import Pack, Tensors
from stentor.tests.engine.quantization.test_checkpoints import FP4, INT8_GROUPS, QUANTISED_INPUTS, WEIGHT_ONLY
from stentor.tests.kernels.helpers import normal
from stentor.tests.parity.paged import PagedDecoder

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native library")

CPU, BF16, F32 = torch.device("cpu"), torch.bfloat16, torch.float32
MEAN, MOST = 0.03, 0.2
"""How far logits may be from those of expanded weights in float32, on average and at most, in units of the spread of
all logits: plain parts are rounded to bfloat16, and inputs to that or to 255 steps a block."""
PACKED = "packed for this CPU, multiplied by rounded inputs"
Type = gguf.GGMLQuantizationType


@torch.inference_mode()
def logits_of(model: PagedDecoder) -> torch.Tensor:
    model.add(0, make.TOKENS)
    return model.run((0, 0, len(make.TOKENS)))[0]


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.std() > 0.3, "logits this flat would hide a mistake"
    error = (actual - expected).abs() / expected.std()
    assert error.mean() < MEAN
    assert error.max() < MOST


def notes_of(model: PagedDecoder) -> list[str]:
    return list(model.model.weights.note_lines())


# ---- whole models


@pytest.mark.proof(each="kind")
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "Q5_0", "Q5_1", "Q5_K", "IQ4_NL", "MXFP4"])
def test_gguf_blocks_are_packed_in_bfloat16_and_expanded_in_float32(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, make.tiny_llama(hidden_size=256), "llama", gguf.GGMLQuantizationType.__members__[kind])
    expanded = PagedDecoder(path, backend="expanded", packed=False)
    expected = logits_of(expanded)
    packed = PagedDecoder(path, dtype=BF16)
    assert notes_of(packed) == [f"weights in {kind}: {PACKED} (15 projections)"]
    assert_near(logits_of(packed), expected)
    assert (
        packed.model.weights.total_bytes < 0.7 * PagedDecoder(path, dtype=BF16, packed=False).model.weights.total_bytes
    )
    exact = PagedDecoder(path)
    assert "float32 asks for exact inputs" in notes_of(exact)[0]
    torch.testing.assert_close(logits_of(exact), expected, rtol=1e-4, atol=2e-4)


@pytest.mark.proof(each="kind")
@pytest.mark.parametrize("kind", CODED_BLOCKS)
def test_gguf_blocks_that_are_read_as_codes_are_packed_too(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, make.tiny_llama(hidden_size=256, tie_word_embeddings=True), "llama", getattr(Type, kind))
    packed = PagedDecoder(path, dtype=BF16)
    assert notes_of(packed) == [f"weights in {kind}: {PACKED} (14 projections)"]
    assert_near(logits_of(packed), logits_of(PagedDecoder(path, backend="expanded", packed=False)))


@pytest.mark.parametrize("kind", CODED_BLOCKS)
def test_codes_of_gguf_blocks_are_packed_exactly(kind: str) -> None:
    """Two parts that meet inside a tile."""
    sizes, inputs = {"a.gate_proj": 40, "a.up_proj": 24}, 512
    parts = {part: gguf_part(normal(size, inputs, seed=size), getattr(Type, kind)) for part, size in sizes.items()}
    ((found_kind, found),) = pieces_of(loaded(parts, sizes, inputs), inputs)
    assert found_kind == "q8h"
    values = torch.cat([value_of(parts[part], size, inputs) for part, size in sizes.items()])
    torch.testing.assert_close(found, values, rtol=1e-6, atol=0)


def test_blocks_of_codes_that_do_not_fit_are_refused() -> None:
    sizes = {"a.up_proj": 16}
    parts = {"a.up_proj": gguf_part(normal(16, 256, seed=1), Type.Q3_K)}
    with pytest.raises(WeightError, match=r"a.up_proj.weight: Q3_K blocks \(16, 110\) do not fit a weight \(16, 512\)"):
        loaded(parts, sizes, 512)


@pytest.mark.parametrize("tied", [False, True])
def test_a_file_of_several_kinds_is_packed_part_by_part(tied: bool, tmp_path: Path) -> None:
    """The kinds of a Q4_K_M file: values and down projections are Q6_K."""
    path = tmp_path / "m.gguf"
    others = {"v_proj": Type.Q6_K, "0.mlp.down": Type.Q6_K, "1.mlp.down": Type.Q5_0, "embed_tokens": Type.Q8_0}
    model = make.tiny_llama(hidden_size=256, tie_word_embeddings=tied)
    write_gguf(path, model, "llama", Type.Q4_K, others=others)
    packed = PagedDecoder(path, dtype=BF16)
    assert sorted(line.split(",")[0] for line in notes_of(packed)) == [
        f"weights in Q4_K: {PACKED.split(',')[0]}",
        f"weights in Q5_0: {PACKED.split(',')[0]}",
        f"weights in Q6_K: {PACKED.split(',')[0]}",
    ]
    assert_near(logits_of(packed), logits_of(PagedDecoder(path, backend="expanded", packed=False)))


@pytest.mark.parametrize("name", ["compressed-int8", "compressed-int8-static", "compressed-int8-tensor"])
def test_int8_checkpoints_are_packed(name: str, tmp_path: Path) -> None:
    weights = {"num_bits": 8, "type": "int", "strategy": "tensor" if name.endswith("tensor") else "channel"}
    inputs = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False}
    made = (
        make.compressed(tmp_path, "int-quantized", weights, inputs)
        if name.endswith("static")
        else QUANTISED_INPUTS["compressed-int8"](tmp_path)
        if name == "compressed-int8"
        else make.compressed(tmp_path, "int-quantized", weights, {**inputs, "strategy": "token", "dynamic": True})
    )
    packed = PagedDecoder(made.folder, dtype=BF16)
    assert [line.rpartition(" (")[0].partition(": ")[2] for line in notes_of(packed)] == [PACKED]
    assert_near(logits_of(packed), logits_of(PagedDecoder(made.folder, backend="expanded", packed=False)))


@pytest.mark.parametrize("tied", [False, True])
def test_weights_quantised_at_load_are_packed(tied: bool, tmp_path: Path) -> None:
    model = make.tiny_llama(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    packed = PagedDecoder(tmp_path, dtype=BF16, quantization="int8")
    assert notes_of(packed) == [f"weights in int8 by channel, quantised at load: {PACKED} (14 projections)"]
    assert_near(logits_of(packed), make.logits_of(model))


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", [name for name in WEIGHT_ONLY if name != "gptq-act-order"])
def test_four_bit_checkpoints_are_packed(name: str, tmp_path: Path) -> None:
    made = WEIGHT_ONLY[name](tmp_path)
    packed = PagedDecoder(made.folder, dtype=BF16)
    assert [line.rpartition(" (")[0].partition("): ")[2] for line in notes_of(packed)] == [PACKED]
    assert_near(logits_of(packed), made.logits)


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", [name for name in INT8_GROUPS if name != "gptq8-act-order"])
def test_eight_bits_in_groups_are_packed(name: str, tmp_path: Path) -> None:
    made = INT8_GROUPS[name](tmp_path)
    packed = PagedDecoder(made.folder, dtype=BF16)
    assert [line.rpartition(" (")[0].partition("): ")[2] for line in notes_of(packed)] == [PACKED]
    assert_near(logits_of(packed), made.logits)


@pytest.mark.parametrize("name", FP4)
def test_four_bit_floats_are_packed(name: str, tmp_path: Path) -> None:
    made = FP4[name](tmp_path)
    packed = PagedDecoder(made.folder, dtype=BF16)
    kind = name.rpartition("-")[2]
    assert notes_of(packed) == [f"weights in {kind.upper()}: {PACKED} (14 projections)"]
    assert_near(logits_of(packed), made.logits)


@pytest.mark.parametrize("name", ["compressed-nvfp4", "modelopt-nvfp4", "compressed-mxfp4"])
@pytest.mark.parametrize("inputs", [32, 64, 80, 256])
def test_four_bit_floats_are_packed_exactly(name: str, inputs: int) -> None:
    """Two parts that meet inside a tile, each with its own factor; the last block may be half a block."""
    torch.manual_seed(0)
    packing, _, kind = name.replace("compressed", "compressed_tensors").partition("-")
    packing = packing.replace("_", "-")
    if kind == "mxfp4" and inputs % 32:
        return
    format = FP4Format(
        "nvfp4" if kind == "nvfp4" else "mxfp4", "modelopt" if packing == "modelopt" else "compressed-tensors"
    )
    sizes = {"a.gate_proj": 40, "a.up_proj": 24}
    made = {part: make.fp4(kind, packing)(torch.randn(size, inputs) / 16 * size) for part, size in sizes.items()}
    linear = loaded({part: (format, tensors) for part, (tensors, _) in made.items()}, sizes, inputs)
    ((found_kind, found),) = pieces_of(linear, inputs)
    assert found_kind == kind
    values = torch.cat([value for _, value in made.values()])
    torch.testing.assert_close(found, values, rtol=1e-6, atol=0)
    expanded = [expand(format, tensors, sizes[part], inputs, F32) for part, (tensors, _) in made.items()]
    torch.testing.assert_close(torch.cat(expanded), values, rtol=1e-6, atol=0)
    x = normal(3, inputs, seed=1)
    assert (linear(x.bfloat16()).float() - x @ values.T).abs().mean() < 0.02 * (x @ values.T).std()


@pytest.mark.parametrize(
    ("description", "pack"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "lm_head": True}, make.gptq(32)),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, make.awq(64)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, make.fp4("nvfp4", "modelopt")),
    ],
)
def test_a_head_that_is_stored_quantised_is_packed(description: dict[str, Any], pack: Pack, tmp_path: Path) -> None:
    made = make.packed(tmp_path, description, pack, head=True)
    packed = PagedDecoder(made.folder, dtype=BF16)
    (note,) = notes_of(packed)
    assert note.endswith(f"{PACKED} (15 projections)")
    assert_near(logits_of(packed), made.logits)
    exact = PagedDecoder(made.folder, packed=False)
    torch.testing.assert_close(logits_of(exact), made.logits, rtol=1e-4, atol=5e-4)


def test_columns_in_another_order_are_expanded(tmp_path: Path) -> None:
    made = WEIGHT_ONLY["gptq-act-order"](tmp_path)
    packed = PagedDecoder(made.folder, dtype=BF16)
    (line,) = notes_of(packed)
    assert "expanded to bfloat16" in line
    assert "packed groups lie in the order of the inputs" in line
    assert_near(logits_of(packed), made.logits)


def test_fp8_checkpoints_are_expanded(tmp_path: Path) -> None:
    made = QUANTISED_INPUTS["compressed-fp8"](tmp_path)
    packed = PagedDecoder(made.folder, dtype=BF16)
    assert "expanded to bfloat16" in notes_of(packed)[0]
    expected = logits_of(PagedDecoder(made.folder, backend="expanded", packed=False))
    assert_near(logits_of(packed), expected)


@pytest.mark.parametrize("name", ["gptq", "compressed-int4-channel"])
def test_packed_weights_are_sized_as_they_will_be_kept(name: str, tmp_path: Path) -> None:
    folder = WEIGHT_ONLY[name](tmp_path).folder
    checkpoint = open_checkpoint(folder)
    packed = PagedDecoder(folder, dtype=BF16)
    place = LayerContext(CPU, BF16, False, checkpoint.quantized, packed=True)
    assert weights_bytes(checkpoint.decoder, place) == packed.model.weights.total_bytes
    plain = weights_bytes(checkpoint.decoder, replace(place, backend="expanded"))
    assert packed.model.weights.total_bytes < 0.8 * plain


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_a_packed_models_program_attends_to_a_cache_of_bytes(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, make.tiny_llama(), "llama", Type.Q8_0)
    one_call = logits_of(PagedDecoder(path, dtype=BF16))
    bytewise = PagedDecoder(path, dtype=BF16, cache_dtype=dtype)
    assert not bytewise.calls
    error = (logits_of(bytewise) - one_call).abs() / one_call.std()
    assert 0 < error.mean() < 0.1


# ---- single layers


def loaded(
    stored: Mapping[str, tuple[Format, Tensors]], sizes: Mapping[str, int], inputs: int, *, bias: bool = False
) -> Linear:
    rules = tuple(QuantizationRule((part,), format) for part, (format, _) in stored.items())
    weights = WeightMap()
    place = LayerContext(CPU, BF16, False, QuantizedCheckpoint("test", rules), packed=True)
    linear = Linear(weights, dict(sizes), inputs, place, bias=bias)
    weights.load(
        (f"{part}.{ending}", tensor) for part, (_, tensors) in stored.items() for ending, tensor in tensors.items()
    )
    return linear


def pieces_of(linear: Linear, inputs: int) -> list[tuple[PackedKind, torch.Tensor]]:
    """The kinds that a layer was packed as, and the values that they stand for, along its outputs."""
    program = Program()
    linear(Traced.written(program, program.buffer(inputs)))
    weights = [instruction.weight for instruction in program.instructions]
    return [(weight.kind, dequantize(weight)) for weight in weights if weight is not None]


def gguf_part(values: torch.Tensor, kind: Type) -> tuple[Format, Tensors]:
    return GGUFFormat(kind.name), {"weight": torch.from_numpy(quantize(values.numpy(), kind))}


def value_of(part: tuple[Format, Tensors], outputs: int, inputs: int) -> torch.Tensor:
    match part:
        case GGUFFormat(kind=kind), tensors:
            return torch.from_numpy(
                gguf.dequantize(tensors["weight"].numpy(), gguf.GGMLQuantizationType.__members__[kind])
            )
        case (FP8Format() | Int8Format() | Int4Format()) as format, tensors:
            return expand(format, tensors, outputs, inputs, F32)
    raise AssertionError(part)


def compressed_int4(group: int, *, symmetric: bool) -> Pack:
    """compressed-tensors' ``pack-quantized``, as its own library packs it."""
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    def pack(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rows, columns = weight.shape
        groups = weight.view(rows, -1, group or columns)
        scale = groups.abs().amax(2) / 7.0
        zero = torch.zeros(scale.shape) if symmetric else torch.randint(-4, 5, scale.shape).float()
        codes = torch.clamp(torch.round(groups / scale[:, :, None]) + zero[:, :, None], -8, 7)
        stored: Tensors = {
            "weight_packed": pack_to_int32(codes.view(rows, columns).to(torch.int8), 4),
            "weight_scale": scale,
            "weight_shape": torch.tensor([rows, columns]),
        }
        if not symmetric:
            stored["weight_zero_point"] = pack_to_int32(zero.to(torch.int8), 4, packed_dim=0)
        return stored, ((codes - zero[:, :, None]) * scale[:, :, None]).view(rows, columns)

    return pack


INT4: dict[str, tuple[Int4Format, Pack]] = {
    **{
        f"gptq-{group}": (Int4Format("gptq", group, symmetric=False, zero_offset=1), make.gptq(group or -1))
        for group in (0, 32, 64, 128)
    },
    "gptq-v2": (Int4Format("gptq", 32, symmetric=False), make.gptq(32, version=2)),
    **{f"awq-{group}": (Int4Format("awq", group, symmetric=False), make.awq(group)) for group in (32, 64, 128)},
    **{
        f"compressed-{group}-{symmetric}": (
            Int4Format("compressed-tensors", group, symmetric=symmetric),
            compressed_int4(group, symmetric=symmetric),
        )
        for group in (0, 32, 128)
        for symmetric in (True, False)
    },
}


@pytest.mark.parametrize("name", INT4)
def test_four_bits_are_packed_exactly(name: str) -> None:
    """Two parts that meet inside a tile. Scale · code - scale · zero may differ from scale · (code - zero) by a bit."""
    torch.manual_seed(0)
    format, pack = INT4[name]
    sizes = {"a.gate_proj": 40, "a.up_proj": 24}
    made = {part: pack(torch.randn(size, 256) / 16) for part, size in sizes.items()}
    linear = loaded({part: (format, tensors) for part, (tensors, _) in made.items()}, sizes, 256)
    ((kind, found),) = pieces_of(linear, 256)
    assert kind == "q4z"
    values = [expand(format, tensors, sizes[part], 256, F32) for part, (tensors, _) in made.items()]
    torch.testing.assert_close(found, torch.cat(values), rtol=0, atol=1e-6)
    torch.testing.assert_close(found, torch.cat([value for _, value in made.values()]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("packing", ["gptq", "compressed-tensors"])
def test_a_row_of_one_group_may_end_inside_a_block(packing: str) -> None:
    torch.manual_seed(0)
    format, pack = INT4["gptq-0" if packing == "gptq" else "compressed-0-True"]
    tensors, value = pack(torch.randn(24, 72))
    linear = loaded({"a.o_proj": (format, tensors)}, {"a.o_proj": 24}, 72)
    ((_, found),) = pieces_of(linear, 72)
    torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-6)
    x = normal(3, 72, seed=1)
    assert (linear(x.bfloat16()).float() - x @ value.T).abs().mean() < 0.02 * (x @ value.T).std()


def test_parts_of_several_block_types_are_neighbouring_weights() -> None:
    """Query, key and value of 40, 24 and 24 rows: one weight while the type stays, each at its columns."""
    torch.manual_seed(0)
    sizes = {"a.q_proj": 40, "a.k_proj": 24, "a.v_proj": 24}
    stored = {
        part: gguf_part(torch.randn(size, 256), Type.Q6_K if part == "a.v_proj" else Type.Q4_K)
        for part, size in sizes.items()
    }
    linear = loaded(stored, sizes, 256)
    pieces = pieces_of(linear, 256)
    assert [(kind, len(values)) for kind, values in pieces] == [("q4m", 64), ("q8h", 24)]
    value = torch.cat([value_of(stored[part], size, 256) for part, size in sizes.items()])
    torch.testing.assert_close(torch.cat([values for _, values in pieces]), value, rtol=2e-3, atol=5e-3)
    x = normal(5, 256, seed=1)
    assert (linear(x.bfloat16()).float() - x @ value.T).abs().mean() < 0.02 * (x @ value.T).std()


def test_a_part_that_cannot_be_packed_makes_its_layer_plain() -> None:
    torch.manual_seed(0)
    sizes = {"a.gate_proj": 40, "a.up_proj": 24}
    stored: dict[str, tuple[Format, Tensors]] = {
        "a.gate_proj": (INT4["gptq-32"][0], make.gptq(32)(torch.randn(40, 64))[0]),
        "a.up_proj": (FP8Format("channel"), make.fp8_by_channel(torch.randn(24, 64))[0]),
    }
    ((kind, found),) = pieces_of(loaded(stored, sizes, 64), 64)
    assert kind == "bf16"
    value = torch.cat([value_of(stored[part], size, 64) for part, size in sizes.items()])
    assert torch.equal(found, value.bfloat16().float())


def test_the_bias_goes_to_the_outputs_of_each_piece() -> None:
    torch.manual_seed(0)
    sizes = {"a.q_proj": 40, "a.k_proj": 24}
    stored = {
        part: gguf_part(torch.zeros(size, 32), kind)
        for (part, size), kind in zip(sizes.items(), (Type.Q4_0, Type.Q8_0), strict=True)
    }
    for number, (_, tensors) in enumerate(stored.values()):
        tensors["bias"] = torch.full((sizes[f"a.{'qk'[number]}_proj"],), number + 1.0)
    out = loaded(stored, sizes, 32, bias=True)(normal(2, 32, seed=0).bfloat16())
    assert torch.equal(out, torch.tensor([1.0] * 40 + [2.0] * 24).bfloat16().expand(2, 64))


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        (gguf_part(torch.ones(16, 64), Type.Q4_0), lambda t: t[:, :18], "Q4_0 blocks"),
        (gguf_part(torch.ones(16, 64), Type.Q4_0), lambda t: torch.cat([t, t]), "lie outside"),
        ((Int8Format("channel"), {"weight": torch.ones(16, 64, dtype=torch.int8)}), lambda t: t[1:], "expected int8"),
        ((INT4["gptq-32"][0], make.gptq(32)(torch.ones(16, 64))[0]), lambda t: t[:, 1:], "expected"),
        ((OnlineFormat("int8"), {"weight": torch.ones(16, 64)}), lambda t: t.T, "expected"),
        (
            (GroupedInt8Format("gptq", 32, symmetric=False), make.gptq(32, bits=8)(torch.ones(16, 64))[0]),
            lambda t: t[1:],
            "expected int32",
        ),
        (
            (FP4Format("nvfp4", "modelopt"), make.fp4("nvfp4", "modelopt")(torch.ones(16, 64))[0]),
            lambda t: t.T,
            "expected",
        ),
        ((OnlineFormat("int8"), {"weight": torch.ones(16, 64)}), lambda t: t.to(torch.int8), "not quantised"),
        ((FP8Format("channel"), make.fp8_by_channel(torch.ones(16, 64))[0]), lambda t: t.T, "expected"),
    ],
)
def test_tensors_that_do_not_fit_name_their_projection(
    part: tuple[Format, Tensors], change: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    format, tensors = part
    ending = "qweight" if "qweight" in tensors else "weight"
    if isinstance(format, Int8Format):
        tensors = tensors | {"weight_scale": torch.ones(16)}
    with pytest.raises(WeightError, match=rf"^a\.o_proj.*{message}"):
        loaded({"a.o_proj": (format, tensors | {ending: change(tensors[ending])})}, {"a.o_proj": 16}, 64)


# ---- the selection


def layer(format: Format, **fields: Any) -> LinearTraits:
    return replace(LinearTraits(format, CPU, BF16, 256, (64, 64), packed=True), **fields)


@pytest.mark.parametrize(
    ("format", "fields", "unsupported_reason"),
    [
        (GGUFFormat("Q4_K"), {"device": torch.device("cuda"), "dtype": F32}, "packed weights are for the CPU"),
        (GGUFFormat("Q4_K"), {"packed": False}, "there are no CPU kernels"),
        (GGUFFormat("Q4_K"), {"dtype": F32}, "float32 asks for exact inputs"),
        (GGUFFormat("Q2_K"), {}, "they take Q4_0, Q4_1, Q8_0, Q4_K, Q6_K, Q5_0"),
        (Int4Format("awq", 16, symmetric=False), {}, "they take groups of 32, 64, 128, not 16"),
        (Int4Format("gptq", 32, symmetric=True, act_order=True), {}, "in the order of the inputs"),
        (FP8Format("block"), {}, "they take int8, four bits and GGUF's blocks"),
    ],
)
def test_what_cannot_be_packed_is_expanded_and_says_why(
    format: Format, fields: dict[str, Any], unsupported_reason: str
) -> None:
    selection = select(layer(format, **fields))
    assert selection.name == "expanded"
    assert re.search(unsupported_reason, "; ".join(selection.refusals))


def test_what_was_asked_for_passes_over_what_is_preferred() -> None:
    q4, q2 = GGUFFormat("Q4_K"), GGUFFormat("Q2_K")
    assert select(layer(q4)).name == "packed"
    assert select(layer(q4), "kernels").name == "kernels"
    on_gpu = layer(q4, device=torch.device("cuda"))
    assert select(on_gpu).name == "kernels"
    assert select(on_gpu, "packed").name == "expanded"
    assert select(layer(q4), "expanded").name == "expanded"
    assert select(layer(q2), "kernels").name == "expanded"
