"""Packed weights: they hold what was put in, and their product is the reference's, each row by itself."""

import gc
import os
from pathlib import Path

import gguf
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stentor.kernels import ActivationKind, activate_, force_variant, native
from stentor.kernels.linear_packed import (
    PackedKind,
    Scaling,
    Stored,
    choose,
    empty_packed,
    kind_of,
    linear_packed,
    pack_codes_,
    pack_gguf_,
    pack_plain_,
    scaling_of,
    unpack_rows,
    unsupported_reason,
)
from stentor.kernels.linear_packed.reference import dequantize, round_input
from stentor.kernels.linear_packed.weight import (
    FOUR_BITS,
    HALVES,
    MINS,
    OFFSETS,
    PARTS,
    TABLES,
    USUAL_ZEROS,
    ZEROS,
    PackedWeight,
    activation_format_of,
)
from stentor.kernels.linear_packed.weight import KINDS as ALL_KINDS
from stentor.tests.examples import examples
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal, thread_count
from stentor.tests.kernels.packed_weights import KINDS, codes_and_scales, factors_of, packed_weight, spans_of, zeros_of
from stentor.tests.kernels.test_linear_gguf import random_blocks

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native library")

STORED: tuple[Stored, ...] = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "Q5_0", "Q5_1", "Q5_K", "IQ4_NL", "MXFP4")
MOST_BYTES: dict[Stored, float] = dict.fromkeys(("Q5_0", "Q5_1", "Q5_K", "Q6_K"), 2.1)
"""Of a packed weight for each of the blocks: codes of five and six bits become bytes."""
SHAPES = ((1, 1), (15, 31), (16, 32), (17, 33), (37, 95), (50, 257), (130, 64))
"""Outputs and inputs: tiles, blocks and pairs that are whole and that are not."""
BYTES = 1e-6
"""Rounded alike, sums of integers: only the blocks' sums are rounded."""
TOLERANCE: dict[PackedKind, float] = dict.fromkeys(ALL_KINDS, BYTES) | {"f32": 2e-6, "bf16": 4e-6}


def summed_in_double(x: Tensor, weight: PackedWeight) -> Tensor:
    """The reference's product but for its sums, which are up to 1e-6 off, otherwise on each processor."""
    rounded = round_input(x, activation_format_of(weight.kind))
    return (rounded.double() @ dequantize(weight).double().T).float()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


# ---- what is packed


@pytest.mark.parametrize("stored", STORED)
def test_packed_blocks_are_what_the_format_says(stored: Stored) -> None:
    blocks = random_blocks(stored, 37, 512)
    expected = torch.from_numpy(gguf.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[stored])).float()
    weight = empty_packed(37, 512, kind_of(stored), scaling=scaling_of(stored))
    pack_gguf_(weight, 0, blocks, stored)
    assert torch.equal(dequantize(weight), expected)
    assert weight.nbytes <= MOST_BYTES.get(stored, 1.03 * 48 / 37) * blocks.nbytes, "48 outputs are whole tiles"


@pytest.mark.parametrize("stored", STORED)
def test_rows_put_in_piece_by_piece_are_those_put_in_at_once(stored: Stored) -> None:
    """Parts of a fused layer meet inside a tile."""
    blocks = random_blocks(stored, 50, 256, seed=1)
    whole, pieces = (empty_packed(50, 256, kind_of(stored), scaling=scaling_of(stored)) for _ in range(2))
    pack_gguf_(whole, 0, blocks, stored)
    for first, end in ((40, 50), (0, 7), (7, 8), (8, 40)):
        pack_gguf_(pieces, first, blocks[first:end], stored)
    assert torch.equal(whole.codes, pieces.codes)
    assert torch.equal(whole.scales.view(torch.uint8), pieces.scales.view(torch.uint8))


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_plain_rows_are_kept_in_the_dtype_of_the_weight(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    rows = normal(outputs, inputs + 3, seed=1, dtype=dtype)[:, 3:]
    kinds: tuple[tuple[PackedKind, torch.dtype], ...] = (("f32", torch.float32), ("bf16", torch.bfloat16))
    for kind, kept in kinds:
        weight = empty_packed(outputs, inputs, kind)
        pack_plain_(weight, 0, rows)
        assert_same_bits(dequantize(weight), rows.to(kept).float())
        again = empty_packed(outputs, inputs, kind)
        pack_plain_(again, 0, rows.T.contiguous().T)
        assert torch.equal(again.codes, weight.codes)


@pytest.mark.parametrize(("kind", "scaling"), [pair for pair in KINDS if PARTS[pair[0]]])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_codes_and_scales_are_kept(kind: PackedKind, scaling: Scaling, outputs: int, inputs: int) -> None:
    codes, scales = codes_and_scales(kind, outputs, inputs, 3, scaling)
    weight = packed_weight(kind, outputs, inputs, scaling=scaling, seed=3)
    if weight.scales.dtype == torch.float16:
        scales = scales.half().float()
    factors = factors_of(kind, outputs, seed=3)
    if factors is not None:
        scales = scales * factors.view(-1, 1, 1)
    spans = spans_of(kind, outputs, inputs, 3, scaling)
    if spans is not None:
        scales = scales * spans.repeat_interleave(8, 1)[:, : scales.shape[1]]
    each = scaling.group or inputs
    spread = (
        scales.flatten(1).repeat_interleave(16, 1) if kind in HALVES else scales.repeat_interleave(each, 1)[:, :inputs]
    )
    values = torch.tensor(TABLES[kind])[codes.long()] if kind in TABLES else codes.float() - OFFSETS[kind]
    if kind in ZEROS:
        zeros = zeros_of(kind, outputs, inputs, 3, scaling)
        zero = USUAL_ZEROS[kind] if zeros is None else zeros.repeat_interleave(each, 1)[:, :inputs]
        expected = values * spread[:, :, 0] + spread[:, :, 0] * (OFFSETS[kind] - zero)
    elif kind in MINS:
        expected = values * spread[:, :, 0] + spread[:, :, 1]
    else:
        expected = values * spread.reshape(outputs, -1)[:, :inputs]
    assert_same_bits(dequantize(weight), expected)
    kept = (weight.codes, weight.scales, weight.factors, weight.zeros, weight.spans)
    assert weight.nbytes == sum(plane.nbytes for plane in kept if plane is not None)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, 5e-8, -3.1e-6, 6.1e-5, 6.103e-5, 2049.0, 2051.0, 65504.0, 65519.9])
def test_scales_are_rounded_to_half_precision_as_torch_rounds(value: float) -> None:
    weight = empty_packed(1, 32, "q4")
    pack_codes_(weight, 0, torch.zeros(1, 32, dtype=torch.uint8), torch.full((1, 1, 1), value))
    expected = torch.tensor(value).half()
    assert_same_bits(weight.scales[0, 0, 0, :1], expected[None])
    assert unpack_rows(weight, torch.tensor([0]))[0, 0] == -8 * expected.float()


@pytest.mark.parametrize(("kind", "scaling"), KINDS)
@pytest.mark.parametrize("inputs", [32, 45])
def test_rows_are_unpacked_in_any_order(kind: PackedKind, scaling: Scaling, inputs: int) -> None:
    weight = packed_weight(kind, 61, inputs, scaling=scaling)
    rows = torch.randint(0, 61, (300,), generator=torch.Generator().manual_seed(0))
    values = dequantize(weight) + 0.0  # no zero has a sign
    assert_same_bits(unpack_rows(weight, rows), values[rows])
    assert_same_bits(unpack_rows(weight, rows[::3]), values[rows[::3]])
    assert unpack_rows(weight, rows[:0]).shape == (0, inputs)


# ---- products


@pytest.mark.parametrize(("kind", "scaling"), KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_the_native_product_is_the_defined_one_for_every_number_of_rows(
    kind: PackedKind, scaling: Scaling, outputs: int, inputs: int
) -> None:
    weight, bias = packed_weight(kind, outputs, inputs, scaling=scaling), normal(outputs, seed=5)
    x = normal(40, inputs, seed=6)
    x[7] = 0
    assert choose(x, "native") == "native"
    expected = summed_in_double(x, weight)
    for count in range(1, 41):
        chosen = bias if count % 2 else None
        wanted = expected[:count] if chosen is None else expected[:count] + bias
        assert_close(linear_packed(x[:count], weight, chosen, variant="native"), wanted, TOLERANCE[kind])


@pytest.mark.parametrize(("kind", "scaling"), KINDS)
def test_the_product_is_close_to_the_exact_one(kind: PackedKind, scaling: Scaling) -> None:
    """So that native and reference are not wrong alike. Inputs of eight bits cost about half a percent."""
    weight, x = packed_weight(kind, 64, 256, scaling=scaling), normal(9, 256, seed=1)
    exact = (x.double() @ dequantize(weight).double().T).float()
    error = (linear_packed(x, weight) - exact).abs().mean() / exact.abs().mean()
    assert error < {"f32": 1e-6, "bf16": 4e-3}.get(kind, 1e-2)


@pytest.mark.parametrize(("kind", "scaling"), [pair for pair in KINDS if PARTS[pair[0]]])
@pytest.mark.parametrize("size", [30.0, 1e4])
def test_one_large_input_takes_nothing_from_those_of_its_block(kind: PackedKind, scaling: Scaling, size: float) -> None:
    """Some channels of a transformer are hundreds of times as large as others; here one of each block is."""
    weight, x = packed_weight(kind, 64, 256, scaling=scaling), normal(9, 256, seed=1)
    plain = linear_packed(x, weight)
    for at in (0, 5, 15, 16, 27, 31):
        larger = x.clone()
        larger[:, at::32] *= size
        added = (larger - x).double() @ dequantize(weight).double().T
        loss = (linear_packed(larger, weight).double() - added - plain.double()).abs().mean() / plain.abs().mean()
        assert loss < 1e-2


@pytest.mark.parametrize(("kind", "scaling"), [pair for pair in KINDS if PARTS[pair[0]]])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_codes_and_inputs_fit_into_every_sum(kind: PackedKind, scaling: Scaling, sign: float) -> None:
    """Processors without dot products of bytes sum pairs of them in 16 bits."""
    codes, scales = codes_and_scales(kind, 16, 64, 3, scaling)
    weight = empty_packed(16, 64, kind, scaling=scaling)
    zeros, spans = zeros_of(kind, 16, 64, 3, scaling), spans_of(kind, 16, 64, 3, scaling)
    largest = torch.full_like(codes, 7 if kind in TABLES else 15 if kind in FOUR_BITS else 255)
    pack_codes_(weight, 0, largest, scales, factors_of(kind, 16, seed=4), zeros, spans)
    x = torch.full((5, 64), sign)
    assert_close(linear_packed(x, weight), summed_in_double(x, weight), TOLERANCE[kind])


@pytest.mark.parametrize(("kind", "scaling"), KINDS)
def test_large_products_are_cut_without_a_seam(kind: PackedKind, scaling: Scaling) -> None:
    """More rows than stay in a cache and more tiles than an item has."""
    weight, x = packed_weight(kind, 530, 1100, scaling=scaling), normal(300, 1100, seed=1)
    assert_close(linear_packed(x, weight, variant="native"), summed_in_double(x, weight), 2 * TOLERANCE[kind])


@pytest.mark.parametrize(("kind", "scaling"), KINDS)
def test_rows_of_bfloat16_are_taken_and_given_back(kind: PackedKind, scaling: Scaling) -> None:
    weight, x = packed_weight(kind, 40, 70, scaling=scaling), normal(5, 70, seed=1).bfloat16()
    out = linear_packed(x, weight)
    assert_same_bits(out, linear_packed(x.float(), weight).bfloat16())


@pytest.mark.parametrize(("kind", "scaling"), KINDS)
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 17, 34), (5, 40, 70), (400, 530, 384), (30, 64, 65)])
@pytest.mark.parametrize("activation", [None, "silu", "gelu_tanh", "gelu", "relu2", "quick_gelu", "relu"])
def test_what_is_done_to_a_product_in_the_cache_is_what_would_be_done_to_it_behind(
    kind: PackedKind, scaling: Scaling, rows: int, outputs: int, inputs: int, activation: ActivationKind | None
) -> None:
    weight, bias = packed_weight(kind, outputs, inputs, scaling=scaling), normal(outputs, seed=2)
    x = normal(rows, inputs, seed=1)
    expected = linear_packed(x, weight, bias)
    if activation is not None:
        expected = activate_(expected, activation)
    assert_same_bits(linear_packed(x, weight, bias, activation=activation), expected)
    made = linear_packed(x, weight, bias, activation=activation, dtype=torch.bfloat16)
    assert_same_bits(made, expected.bfloat16())
    with force_variant("reference"):
        assert_close(linear_packed(x, weight, bias, activation=activation), expected, 2e-5)


@pytest.mark.parametrize(("kind", "scaling"), KINDS)
@pytest.mark.parametrize("inputs", [33, 70])
def test_rows_of_bfloat16_come_to_a_product_in_single_precision(
    kind: PackedKind, scaling: Scaling, inputs: int
) -> None:
    """Pairs of inputs are taken where they lie, even where rows are strided."""
    weight, x = packed_weight(kind, 40, inputs, scaling=scaling), normal(15, inputs + 5, seed=1).bfloat16()[:, 3:-2]
    assert_same_bits(linear_packed(x, weight, dtype=torch.float32), linear_packed(x.float(), weight))


def test_rows_may_be_strided() -> None:
    weight, wide = packed_weight("q4m", 40, 70), normal(70, 9, seed=1)
    expected = linear_packed(wide.T.contiguous(), weight)
    assert_same_bits(linear_packed(wide.T, weight), expected)
    padded = torch.cat([torch.full((9, 5), torch.nan), wide.T, torch.full((9, 2), torch.nan)], dim=1)
    assert_same_bits(linear_packed(padded[:, 5:75], weight), expected)
    assert_same_bits(linear_packed(wide.T[:1].expand(4, 70), weight), expected[:1].expand(4, 40))
    assert linear_packed(wide.T[:0], weight).shape == (0, 40)


@pytest.mark.parametrize("kind", ZEROS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("group", [64, 128, 0])
def test_scales_kept_once_a_group_give_the_bits_of_scales_in_single_precision_for_each_block(
    kind: PackedKind, dtype: torch.dtype, group: int
) -> None:
    """With a zero for each, and parts of two projections that meet inside a tile."""
    outputs, inputs = 40, 200
    once, apart = Scaling(dtype, group, zeros=True), Scaling(torch.float32, zeros=True)
    short, long = (empty_packed(outputs, inputs, kind, scaling=scaling) for scaling in (once, apart))
    for first, count in ((0, 23), (23, 17)):
        codes, scales = codes_and_scales(kind, count, inputs, first, once)
        scales, zeros = scales.to(dtype).float(), zeros_of(kind, count, inputs, first, once)
        assert zeros is not None
        pack_codes_(short, first, codes, scales, zeros=zeros)
        spread = [each.repeat_interleave((group or 224) // 32, 1)[:, :7] for each in (scales, zeros)]
        pack_codes_(long, first, codes, spread[0], zeros=spread[1])
    assert short.nbytes < long.nbytes
    assert_same_bits(dequantize(short), dequantize(long))
    x = normal(21, inputs, seed=1)
    for count in (1, 4, 21):
        assert_same_bits(linear_packed(x[:count], short), linear_packed(x[:count], long))


# ---- a row by itself


@pytest.mark.parametrize(("kind", "scaling"), KINDS)
@settings(max_examples=examples(12), deadline=None)
@given(
    outputs=st.integers(1, 200),
    inputs=st.integers(1, 300),
    rows=st.integers(1, 60),
    threads=st.sampled_from([1, 2, 3, 5, 16]),
    data=st.data(),
)
def test_a_row_depends_on_nothing_but_itself(
    kind: PackedKind, scaling: Scaling, outputs: int, inputs: int, rows: int, threads: int, data: st.DataObject
) -> None:
    weight = packed_weight(kind, outputs, inputs, scaling=scaling, seed=inputs)
    x, bias = normal(rows, inputs, seed=outputs), normal(outputs, seed=rows)
    x[data.draw(st.integers(0, rows - 1), label="outlier")] *= 1e4
    row = data.draw(st.integers(0, rows - 1), label="row")
    with thread_count(1):
        alone = linear_packed(x[row : row + 1], weight, bias)
    with thread_count(threads):
        assert_same_bits(linear_packed(x, weight, bias)[row : row + 1], alone)


@pytest.mark.parametrize(("kind", "scaling"), KINDS)
def test_sums_over_many_inputs_are_the_same_in_one_go_and_in_stretches(kind: PackedKind, scaling: Scaling) -> None:
    """Many rows meet a part of the inputs after the other; whole tiles, one that has no neighbour, and one cut off."""
    weight, x, bias = packed_weight(kind, 85, 3301, scaling=scaling), normal(21, 3301, seed=1), normal(85, seed=2)
    alone = torch.cat([linear_packed(row[None], weight, bias) for row in x])
    assert_close(alone, linear_packed(x, weight, bias, variant="reference"), 1e-5)
    for count in (2, 3, 7, 9, 21):
        assert_same_bits(linear_packed(x[-count:], weight, bias), alone[-count:])


@pytest.mark.parametrize(("kind", "scaling"), KINDS)
def test_a_row_of_nan_or_infinity_spoils_no_other(kind: PackedKind, scaling: Scaling) -> None:
    weight, x = packed_weight(kind, 33, 65, scaling=scaling), normal(13, 65, seed=1)
    expected = linear_packed(x, weight)
    x[4, 40], x[5, 3], x[6, :2], x[7], x[8] = torch.nan, torch.inf, torch.inf, torch.nan, torch.inf
    made = linear_packed(x, weight)
    kept = [row for row in range(13) if not 4 <= row <= 8]
    assert_same_bits(made[kept], expected[kept])
    assert bool(made[[4, 7]].isnan().all())
    assert not bool(made[[5, 6, 8]].isfinite().any())


# ---- what is refused


def test_without_the_library_the_reference_runs() -> None:
    assert unsupported_reason() is None
    weight, x = packed_weight("q8", 20, 40), normal(3, 40, seed=1)
    with force_variant("reference"):
        assert choose(x) == "reference"
        assert_close(linear_packed(x, weight), linear_packed(x, weight, variant="native"), BYTES)
    with pytest.raises(ValueError, match="takes float32 or bfloat16, not float16"):
        choose(x.half(), "native")


def test_memory_is_given_back() -> None:
    size = 96 << 20
    before = resident()
    weight = empty_packed(size // 2048, 2048, "q8")
    weight.codes.fill_(1)
    assert resident() - before > size * 0.9
    del weight
    gc.collect()
    assert resident() - before < size * 0.1


@pytest.mark.skipif("ASAN_OPTIONS" in os.environ, reason="AddressSanitizer keeps freed memory for a while")
def test_prepared_rows_are_given_back() -> None:
    weight, x = packed_weight("bf16", 16, 2048), normal(256, 2048, seed=1)
    linear_packed(x, weight)
    before = resident()
    for _ in range(64):
        linear_packed(x, weight)  # 1 MiB of prepared rows
    assert resident() - before < 16 << 20


def test_a_weight_without_memory_has_the_size_of_one_with() -> None:
    for kind, scaling in KINDS:
        kept, shape = (empty_packed(37, 95, kind, scaling=scaling, device=device) for device in ("cpu", "meta"))
        assert shape.nbytes == kept.nbytes
        assert shape.codes.is_meta
        assert not kept.codes.any()
