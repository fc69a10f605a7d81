"""A forward pass as one call: the reference's result, and bit for bit one's own however the work is cut."""

import dataclasses
import threading
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stentor.kernels import native
from stentor.kernels.activation import ActivationKind
from stentor.kernels.attention import AttentionBatch
from stentor.kernels.forward import CachedHeads, Forward, Program, Rotation, Scores, choose
from stentor.kernels.kv_cache import make_kv_cache
from stentor.kernels.linear_packed import PackedKind, Scaling, activation_format_of
from stentor.kernels.variants import Variant
from stentor.tests.examples import examples
from stentor.tests.kernels.forward_shapes import KINDS, SHAPES
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal, thread_count
from stentor.tests.kernels.packed_weights import USUAL, packed_weight
from stentor.tests.kernels.programs import (
    EPS,
    VOCAB,
    Sequences,
    Shape,
    Span,
    make_program,
    one_by_one,
    rotary_of,
    shuffled,
    whole,
)

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native library")

LENGTHS = (37, 20, 1, 9)


def same(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for mine, theirs in zip(actual, expected, strict=True):
        assert_same_bits(mine, theirs)


def assert_agrees(shape: Shape, actual: Tensor, expected: Tensor) -> None:
    """To float32's rounding; where inputs are rounded to fewer bits, a value next to a boundary may fall to its other
    side, and what follows differs by a little."""
    if shape.activation_format == "f32" and shape.cache == torch.float32:
        return assert_close(actual, expected, 2e-5)
    error = (actual - expected).abs() / expected.std()
    assert float(error.mean()) < 4e-3
    assert float(error.max()) < 0.15
    return None


# ---- the reference's result


@pytest.mark.parametrize("name", SHAPES)
def test_a_program_gives_what_the_reference_defines(name: str) -> None:
    shape = SHAPES[name]
    steps = shuffled(LENGTHS, 1, 20)
    expected = Sequences(shape, LENGTHS, "reference").run(steps)
    found = Sequences(shape, LENGTHS).run(steps)
    assert torch.cat(expected).std() > 0.1
    for mine, theirs in zip(found, expected, strict=True):
        assert_agrees(shape, mine, theirs)


def in_both_variants(program: Program, inputs: dict[int, Tensor], out: int) -> tuple[Tensor, Tensor]:
    """What buffer ``out`` holds after the program ran over these contents of others: native, reference."""
    found = []
    variants: tuple[Variant, ...] = ("native", "reference")
    for variant in variants:
        forward = Forward(program, variant=variant)
        rows = len(next(iter(inputs.values())))
        for number, content in inputs.items():
            forward.buffer(number, rows).copy_(content)
        forward.run(rows)
        found.append(forward.buffer(out, rows).clone())
    return found[0], found[1]


@pytest.mark.parametrize("kinds", KINDS)
def test_parts_of_several_kinds_stand_beside_each_other(kinds: tuple[tuple[PackedKind, Scaling], ...]) -> None:
    """Inputs as they are, so that both variants round them alike."""
    shape = Shape(kinds=kinds)
    program = Program()
    src, delta, dst = program.buffer(75), program.buffer(75), program.buffer(70)
    program.norm_and_quantize(src, shape.activation_format, add=delta, scale=0.5)
    column = 0
    for number, outputs in enumerate((33, 16, 21)):
        kind, scaling = kinds[number % len(kinds)]
        weight = packed_weight(kind, outputs, 75, scaling=scaling, seed=number)
        program.linear(dst, weight, column=column, bias=normal(outputs, seed=number) if number else None)
        column += outputs
    inputs = {src: normal(37, 75, seed=1), delta: normal(37, 75, seed=2)}
    actual, expected = in_both_variants(program, inputs, dst)
    assert_close(actual, expected, 4e-6)
    for summed in in_both_variants(program, inputs, src):
        assert_same_bits(summed, inputs[src] + inputs[delta] * 0.5)


@pytest.mark.parametrize("kinds", KINDS)
def test_what_was_prepared_before_leaves_no_trace(kinds: tuple[tuple[PackedKind, Scaling], ...]) -> None:
    """Also beside the end of a row, where a pair or a block is not whole."""
    shape = Shape(kinds=kinds)
    kind, scaling = kinds[0]
    results: list[Tensor] = []
    for before in (0.0, torch.nan):
        program = Program()
        first, src, dst = program.buffer(80), program.buffer(33), program.buffer(16)
        program.norm_and_quantize(first, shape.activation_format)
        program.norm_and_quantize(src, shape.activation_format)
        program.linear(dst, packed_weight(kind, 16, 33, scaling=scaling))
        inputs = {first: torch.full((5, 80), before), src: normal(5, 33, seed=1)}
        results += in_both_variants(program, inputs, dst)
    assert_same_bits(results[2], results[0])
    assert_close(results[2], results[3], 4e-6)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu", "relu2", "quick_gelu", "relu"])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("width", [1, 15, 64, 75])
def test_activations_of_any_width_are_the_references(activation: ActivationKind, gated: bool, width: int) -> None:
    program = Program()
    columns = 2 * width if gated else width
    gate_up, dst = program.buffer(columns), program.buffer(8)
    program.activate(gate_up, activation, "f32", gated=gated)
    program.linear(dst, packed_weight("f32", 8, width))
    actual, expected = in_both_variants(program, {gate_up: 4 * normal(5, columns, seed=3)}, dst)
    assert_close(actual, expected, 4e-6)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("rows", [1, 13, 100])
def test_products_that_are_gated_on_their_way_give_the_same_bits(
    activation: ActivationKind, kinds: tuple[tuple[PackedKind, Scaling], ...], parts: int, rows: int
) -> None:
    width, activation_format = 64, activation_format_of(kinds[0][0])

    def run(apart: bool) -> tuple[Tensor, Tensor]:
        program = Program()
        src, gate_up, dst = program.buffer(40), program.buffer(2 * width), program.buffer(24)
        program.norm_and_quantize(src, activation_format)
        outputs = 2 * width // parts
        for part in range(parts):
            kind, scaling = kinds[-part]
            weight = packed_weight(kind, outputs, 40, scaling=scaling, seed=part)
            program.linear(gate_up, weight, column=part * outputs, bias=0.1 * normal(outputs, seed=part + 2))
        if apart:
            program.add(src, src, 0.0)  # changes nothing
        program.activate(gate_up, activation, activation_format)
        program.linear(dst, packed_weight(kinds[0][0], 24, width, scaling=kinds[0][1], seed=5))
        assert any(i.op == "gate_up_activate" for i in program.instructions) is not apart
        return in_both_variants(program, {src: normal(rows, 40, seed=3)}, dst)

    (gated, gated_reference), (apart, _) = run(apart=False), run(apart=True)
    assert_same_bits(gated, apart)
    assert_close(gated, gated_reference, 4e-6 if activation_format == "f32" else 1e-2)


@pytest.mark.parametrize("kind", ["rms", "layer", "layer with a bias"])
@pytest.mark.parametrize(("width", "groups", "column"), [(40, 1, 0), (7, 3, 2), (16, 4, 5), (130, 1, 1)])
def test_stretches_are_normed_in_place_and_nothing_beside_them(width: int, groups: int, column: int, kind: str) -> None:
    program = Program()
    src = program.buffer(column + width * groups + 3)
    bias = normal(width, seed=4) if kind == "layer with a bias" else None
    program.norm(src, 1 + normal(width, seed=1), EPS, column=column, groups=groups, centred=kind != "rms", bias=bias)
    x = normal(11, program.widths[src], seed=2)
    actual, expected = in_both_variants(program, {src: x}, src)
    assert_close(actual, expected, 2e-6)
    assert torch.equal(actual[:, :column], x[:, :column])
    assert torch.equal(actual[:, -3:], x[:, -3:])


# ---- bit for bit one's own


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_threads_chunks_and_neighbours_change_nothing(name: str, threads: int) -> None:
    shape = SHAPES[name]
    with thread_count(1):
        expected = Sequences(shape, LENGTHS).run(whole(LENGTHS))
    with thread_count(threads):
        same(Sequences(shape, LENGTHS).run(one_by_one(LENGTHS)), expected)
        same(Sequences(shape, LENGTHS).run(shuffled(LENGTHS, threads, 12)), expected)
        same(Sequences(shape, LENGTHS).run([[(s, 0, length) for s, length in enumerate(LENGTHS)]]), expected)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    kv_heads, dim = draw(st.integers(1, 3)), 2 * draw(st.integers(1, 20))
    return Shape(
        hidden=draw(st.integers(1, 70)),
        inner=draw(st.integers(1, 70)),
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        dim=dim,
        turned=2 * draw(st.integers(1, dim // 2)),
        windows=tuple(draw(st.lists(st.sampled_from([0, 1, 7, 33]), min_size=1, max_size=3))),
        norms=draw(st.sampled_from(["pre", "post", "sandwich"])),
        qk_norm=draw(st.sampled_from(["none", "head", "full"])),
        biased=draw(st.booleans()),
        softcap=draw(st.sampled_from([0.0, 8.0])),
        sunk=draw(st.booleans()),
        residual_scale=draw(st.sampled_from([1.0, 0.4])),
        centred=draw(st.booleans()),
        gated=draw(st.booleans()),
        interleaved=draw(st.booleans()),
        rotated_first=draw(st.booleans()),
        scaled_queries=draw(st.booleans()),
        activation=draw(st.sampled_from(["silu", "gelu_tanh", "gelu", "relu2", "quick_gelu", "relu"])),
        cache=draw(st.sampled_from([torch.float32, torch.bfloat16])),
        kinds=draw(st.sampled_from(KINDS)),
        block_size=draw(st.sampled_from([16, 48])),
    )


@settings(max_examples=examples(40), deadline=None)
@given(
    shape=shapes(),
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=5),
    threads=st.sampled_from([1, 2, 3, 5]),
    seed=st.integers(0, 1000),
)
def test_any_decoder_gives_one_result_and_it_is_the_references(
    shape: Shape, lengths: list[int], threads: int, seed: int
) -> None:
    with thread_count(1):
        expected = Sequences(shape, lengths).run(whole(lengths))
    with thread_count(threads):
        same(Sequences(shape, lengths).run(shuffled(lengths, seed, 25)), expected)
    if shape.activation_format == "f32" and shape.cache == torch.float32:
        reference = Sequences(shape, lengths, "reference").run(whole(lengths))
        for mine, theirs in zip(expected, reference, strict=True):
            assert_close(mine, theirs, 5e-5)


LONG = 1100


def long_shape(cache: torch.dtype, window: int, *, sunk: bool = False) -> Shape:
    kinds: tuple[tuple[PackedKind, Scaling], ...] = (("f32" if cache == torch.float32 else "bf16", USUAL),)
    return Shape(
        hidden=24, inner=16, windows=(window,), sunk=sunk, cache=cache, positions=LONG, block_size=32, kinds=kinds
    )


@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("window", "sunk"), [(0, False), (600, False), (0, True)])
def test_long_rows_are_summed_in_the_same_parts_however_they_are_cut(
    cache: torch.dtype, window: int, sunk: bool
) -> None:
    """A single row over 512 keys is cut among threads, one of many is not; a chunk holds rows on both sides."""
    shape, lengths = long_shape(cache, window, sunk=sunk), [LONG, *range(1, 41)]
    with thread_count(1):
        alone = Sequences(shape, lengths[:1])
        (expected,) = alone.run(whole(lengths[:1]))
    (reference,) = Sequences(shape, lengths[:1], "reference").run(whole(lengths[:1]))
    assert_agrees(shape, expected, reference)
    with thread_count(3):
        same(Sequences(shape, lengths[:1]).run(one_by_one(lengths[:1], start=500)), [expected])
    with thread_count(2):
        same(Sequences(shape, lengths[:1]).run(shuffled(lengths[:1], 3, 300)), [expected])
        crowded = Sequences(shape, lengths)
        others: list[Span] = [(s, 0, s) for s in range(1, 41)]
        crowded.step((0, 0, LONG - 40), *others)
        for at in range(LONG - 40, LONG):
            (hidden, *_) = crowded.step((0, at, 1), *((s, s - 1, 1) for s in range(1, 41)))
            assert_same_bits(hidden, expected[at : at + 1])


def test_keys_that_a_window_hides_need_no_block() -> None:
    shape = dataclasses.replace(long_shape(torch.float32, 40), positions=200)
    expected = Sequences(shape, [200]).run(whole([200]))[0]
    freed = Sequences(shape, [200])
    freed.step((0, 0, 150))
    freed.tables[0, :3] = -1
    for at in range(150, 200):
        assert_same_bits(freed.step((0, at, 1))[0], expected[at : at + 1])


def test_more_threads_than_cores_give_the_same() -> None:
    shape = SHAPES["mixed"]
    expected = Sequences(shape, LENGTHS).run(whole(LENGTHS))
    with thread_count(16):
        same(Sequences(shape, LENGTHS).run(shuffled(LENGTHS, 4, 10)), expected)


def test_passes_in_two_python_threads_do_not_disturb_each_other() -> None:
    shape = SHAPES["gemma"]
    expected = Sequences(shape, LENGTHS).run(whole(LENGTHS))
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for _ in range(4):
                same(Sequences(shape, LENGTHS).run(shuffled(LENGTHS, seed, 10)), expected)
        except BaseException as error:  # the test's thread raises it
            wrong.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


# ---- buffers


def test_buffers_grow_and_what_they_gave_before_stays() -> None:
    shape = SHAPES["plain"]
    long = [100]
    sequences = Sequences(shape, long)
    expected = sequences.run(whole(long))[0]
    growing = Sequences(shape, long)
    small = growing.forward.buffer(growing.hidden, 3)
    assert small.shape == (3, shape.hidden)
    pieces = growing.run([[(0, 0, 3)], [(0, 3, 17)], [(0, 20, 80)]])[0]
    assert_same_bits(pieces, expected)
    assert growing.forward.buffer(growing.hidden, 80).shape == (80, shape.hidden)


def test_no_rows_are_no_work() -> None:
    sequences = Sequences(SHAPES["plain"], [3])
    sequences.forward.run(0)
    assert all(bool(k.isnan().all()) for k, _ in sequences.caches)


# ---- faults


def broken(sequences: Sequences, fault: str) -> tuple[Tensor, Tensor, AttentionBatch]:
    ids, positions, batch = sequences.inputs([(0, 0, 5), (1, 0, 20), (2, 0, 3)])
    match fault:
        case "id":
            ids[-1] = VOCAB
        case "negative id":
            ids[0] = -1
        case "position":
            positions[7] = sequences.shape.positions
        case "negative position":
            positions[27] = -1
        case "slot":
            batch.slots[27] = sequences.caches[0][0].shape[0] * sequences.shape.block_size
        case "negative slot":
            batch.slots[0] = -1
        case "block":
            batch.block_tables[2, 0] = len(sequences.caches[0][0])
        case "negative block":
            batch.block_tables[1, 0] = -9
        case "length":
            batch.seq_lens[0] = 1000
        case "short":
            batch.seq_lens[1] = 19
        case "start":
            batch.query_start[-1] = 29
        case "order":
            batch.query_start[1] = 26
    return ids, positions, batch


FAULTS = {
    "id": "a token id",
    "negative id": "a token id",
    "position": "a position",
    "negative position": "a position",
    "slot": "a slot",
    "negative slot": "a slot",
    "block": "a block table",
    "negative block": "a block table",
    "length": "lengths",
    "short": "lengths",
    "start": "lengths",
    "order": "lengths",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_that_leads_outside_is_refused_and_nothing_is_written(fault: str) -> None:
    sequences = Sequences(SHAPES["windowed"], [30, 30, 30])
    forward = sequences.forward
    widths = range(len(forward.program.widths))
    for number in widths:
        forward.buffer(number, 28).fill_(number)
    ids, positions, batch = broken(sequences, fault)
    with pytest.raises(IndexError, match=f"forward: the step has .*{FAULTS[fault]}"):
        forward.run(28, ids, positions, [batch])
    for number in widths:
        assert bool((forward.buffer(number, 28) == number).all())
    for k, v in sequences.caches:
        assert bool(k.isnan().all())
        assert bool(v.isnan().all())
    expected = Sequences(SHAPES["windowed"], [30, 30, 30]).step((1, 0, 20))
    same(sequences.step((1, 0, 20)), expected)


def test_each_layer_is_checked_against_its_own_table_and_cache() -> None:
    shape = Shape()
    table = rotary_of(shape, 40)
    short = table[0][:20].contiguous(), table[1][:20].contiguous()
    for tables, counts in (((table, short), (4, 4)), ((table, table), (4, 1))):
        program = Program()
        qkv, out = program.buffer(8 * 16), program.buffer(4 * 16)
        for layer, rotary in enumerate(tables):
            cache = CachedHeads(layer, *shape.sizes)
            program.rotate(qkv, cache, Rotation(*rotary))
            program.attend(qkv, out, cache, Scores(0.25))
        caches = [make_kv_cache(count, 2, 16, 16, torch.float32, "cpu") for count in counts]
        forward = Forward(program, caches)
        sequences = Sequences(shape, [30])
        sequences.tables[:, :2] = torch.tensor([0, 1])
        _, positions, batch = sequences.inputs([(0, 0, 30)])
        with pytest.raises(IndexError, match=r"forward: the step has a (position|slot)"):
            forward.run(30, None, positions, [batch])
        assert not any(bool(k.any()) for k, _ in caches)
        _, positions, batch = sequences.inputs([(0, 0, 16)])
        forward.buffer(qkv, 16).copy_(normal(16, 128, seed=0))
        forward.run(16, None, positions, [batch])


# ---- what is refused


def test_wrong_tensors_are_refused() -> None:
    sequences = Sequences(SHAPES["plain"], [5])
    ids, positions, batch = sequences.inputs([(0, 0, 5)])
    for wrong in (ids.int(), ids[:4], ids.repeat(2)[::2], ids[None]):
        with pytest.raises(ValueError, match="forward: ids"):
            sequences.forward.run(5, wrong, positions, [batch])
        with pytest.raises(ValueError, match="forward: positions"):
            sequences.forward.run(5, ids, wrong, [batch])
    with pytest.raises(ValueError, match="the batch has 5 tokens, expected 4"):
        sequences.forward.run(4, ids[:4].contiguous(), positions[:4].contiguous(), [batch])


def test_caches_of_another_layout_or_dtype_are_refused() -> None:
    program, _ = make_program(Shape(windows=(0,)))
    transposed = make_kv_cache(2, 2, 16, 16, torch.float32, "cpu", keys_transposed=False)
    with pytest.raises(ValueError, match="forward: it takes keys that are contiguous"):
        Forward(program, [transposed])
    with pytest.raises(ValueError, match="caches are float32, bfloat16, int8 or float8"):
        Forward(program, [make_kv_cache(2, 2, 16, 16, torch.float16, "cpu")])


def test_the_choice_is_native_where_there_is_a_library() -> None:
    assert choose() == "native"
    assert choose("reference") == "reference"
    with pytest.raises(ValueError, match="the triton variant cannot run"):
        choose("triton")
