"""Adapters in a program: products of rows that have some are added to, those of others are left as they are."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from stentor.kernels import native
from stentor.kernels.forward import Forward, Program, Step, activation_format_of
from stentor.kernels.linear_packed import PackedKind
from stentor.kernels.low_rank import AdapterRows, AdapterSlots, LowRank, PackedSum
from stentor.kernels.variants import Variant
from stentor.tests.kernels.forward_shapes import SHAPES
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal, thread_count
from stentor.tests.kernels.packed_weights import packed_weight
from stentor.tests.kernels.programs import EPS, VOCAB, Sequences, Shape, embedding_of

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native library")

HIDDEN, INNER = 64, 96
CPU = torch.device("cpu")
TOLERANCE: dict[PackedKind, float] = {"f32": 1e-5, "bf16": 2e-2, "q4": 2e-2}


def adapters(
    seed: int, inputs: int, parts: tuple[int, ...], dtype: torch.dtype, ranks: tuple[int, ...]
) -> AdapterSlots:
    """Slots 0, 1 and so on, each with an adapter of its rank for all parts of a product."""
    slots = AdapterSlots(inputs, sum(parts))
    for slot, rank in enumerate(ranks):
        columns = [sum(parts[:number]) for number in range(len(parts))]
        slots.put(
            slot,
            PackedSum(
                [
                    LowRank(
                        0.3 * normal(rank, inputs, seed=seed + slot),
                        0.3 * normal(outputs, rank, seed=seed + slot + 100),
                        0.5,
                        column,
                    )
                    for outputs, column in zip(parts, columns, strict=True)
                ],
                dtype,
            ),
        )
    return slots


def network(kind: PackedKind, ranks: tuple[int, ...]) -> tuple[Program, int]:
    """Three products from x [rows, HIDDEN], the second of them gated; the buffer that x is in, and the result is."""
    program = Program()
    dtype = torch.float32 if kind == "f32" else torch.bfloat16
    x, both = program.buffer(HIDDEN), program.buffer(2 * INNER)

    def multiply(dst: int, seed: int, inputs: int, parts: tuple[int, ...]) -> None:
        column = 0
        for number, outputs in enumerate(parts):
            program.linear(dst, packed_weight(kind, outputs, inputs, seed=seed + number), column=column)
            column += outputs
        program.add_low_rank(dst, adapters(seed, inputs, parts, dtype, ranks))

    program.norm_and_quantize(x, activation_format_of(kind), norm=1 + 0.1 * normal(HIDDEN, seed=1), eps=EPS)
    multiply(x, 10, HIDDEN, (40, 24))
    program.norm_and_quantize(x, activation_format_of(kind), norm=1 + 0.1 * normal(HIDDEN, seed=2), eps=EPS)
    multiply(both, 20, HIDDEN, (INNER, INNER))
    program.activate(both, "silu", activation_format_of(kind))
    multiply(x, 30, INNER, (HIDDEN,))
    return program, x


@pytest.mark.parametrize("kind", [*TOLERANCE])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_program_adds_what_the_definition_says(kind: PackedKind, threads: int) -> None:
    program, x = network(kind, (4, 9, 1))
    assert [each.op for each in program.instructions if each.adapters] == [
        "add_low_rank",
        "gate_up_activate",
        "add_low_rank",
    ]
    of_row = [1, -1, 0, 2, 5, *[0] * 30, *[1] * 30, 2, 0]  # nothing is in slot 5
    rows = AdapterRows.of(of_row, [1] * len(of_row), CPU)
    given, found = normal(len(of_row), HIDDEN, seed=5), {}
    variants: tuple[Variant, ...] = ("native", "reference")
    for variant in variants:
        forward = Forward(program, variant=variant)
        for adapted in (rows, None):
            forward.buffer(x, len(given)).copy_(given)
            with thread_count(threads):
                forward.run(len(given), adapted=adapted)
            found[variant, adapted is None] = forward.buffer(x, len(given)).clone()
    assert_close(found["native", False], found["reference", False], TOLERANCE[kind])
    for row, slot in enumerate(of_row):
        with_, without = found["native", False][row], found["native", True][row]
        if slot in (0, 1, 2):
            assert (with_ - without).abs().max() > 0.02 * without.abs().max()
        else:
            assert_same_bits(with_, without)


@pytest.mark.parametrize(
    "of_row",
    [[row % 3 - 1 for row in range(40)], [row // 45 - 1 for row in range(127)]],
    ids=["in turn", "one after another"],
)
@pytest.mark.parametrize("kind", [*TOLERANCE])
def test_a_row_with_an_adapter_has_the_same_bits_alone_and_beside_others(kind: PackedKind, of_row: list[int]) -> None:
    program, x = network(kind, (8, 3))
    forward, given = Forward(program), normal(len(of_row), HIDDEN, seed=6)

    def run(rows: torch.Tensor, of_row: list[int]) -> torch.Tensor:
        forward.buffer(x, len(rows)).copy_(rows)
        with thread_count(1):  # for many rows of one adapter to be computed together
            forward.run(len(rows), adapted=AdapterRows.of(of_row, [1] * len(of_row), CPU))
        return forward.buffer(x, len(rows)).clone()

    whole = run(given, of_row)
    for row in (1, 2, 29, 38, len(of_row) - 1):
        assert_same_bits(whole[row : row + 1], run(given[row : row + 1], of_row[row : row + 1]))


def test_rows_that_the_batch_has_not_are_refused_and_nothing_is_written() -> None:
    program, x = network("f32", (2,))
    forward = Forward(program, variant="native")
    forward.buffer(x, 3).fill_(2.0)
    with pytest.raises(IndexError, match="a row with an adapter that is not among its rows"):
        forward.run(3, adapted=AdapterRows.of([0], [4], CPU))
    assert bool((forward.buffer(x, 3) == 2.0).all())


def test_adapters_of_another_product_are_refused_when_the_program_is_built() -> None:
    program = Program()
    x, y = program.buffer(HIDDEN), program.buffer(INNER)
    with pytest.raises(ValueError, match="prepared is None"):
        program.add_low_rank(y, AdapterSlots(HIDDEN, INNER))
    program.norm_and_quantize(x, "f32")
    for slots in (AdapterSlots(HIDDEN, HIDDEN), AdapterSlots(INNER, INNER)):
        with pytest.raises(ValueError, match="do not fit buffer 1 of 96"):
            program.add_low_rank(y, slots)


def test_a_step_takes_the_adapters_of_its_rows_for_its_body_and_for_those_that_sample() -> None:
    """The head has adapters too; in one call for all tokens, in one for those alone that sample, and pass by pass."""
    shape = SHAPES["plain"]
    lengths, of_slot = (20, 9, 1, 14), (1, -1, 0, 1)
    head, hidden, logits = _adapted_head(shape)
    found = []
    for every in (True, False):
        step = _adapted_step(shape, lengths)
        work = [
            (slot, 0, length, 1, adapter) for slot, (length, adapter) in enumerate(zip(lengths, of_slot, strict=True))
        ]
        result = step.run(work, every=every)
        assert result is not None
        found.append(result[0].clone())
    assert_same_bits(*found)
    sequences, last = Sequences(shape, lengths), []
    _adapt(sequences)
    ids, positions, batch = sequences.inputs([(slot, 0, length) for slot, length in enumerate(lengths)])
    sequences.forward.run(len(ids), ids, positions, [batch], adapted=AdapterRows.of(of_slot, lengths, CPU))
    at = 0
    for length in lengths:
        at += length
        last.append(at - 1)
    ends = Forward(head)
    ends.buffer(hidden, len(last)).copy_(sequences.forward.buffer(sequences.hidden, at)[last])
    ends.run(len(last), adapted=AdapterRows.of(of_slot, [1] * len(last), CPU))
    assert_same_bits(found[0], ends.buffer(logits, len(last)))


@pytest.mark.parametrize("every", [True, False])
def test_a_step_of_whose_rows_with_adapters_none_samples_draws_for_the_others(every: bool) -> None:
    """Prompts with adapters are in their middle while others decode."""
    shape, lengths, of_slot = SHAPES["plain"], (20, 9, 1, 14), (1, -1, 0, 1)
    work = [(slot, 0, length, 1, of_slot[slot]) for slot, length in enumerate(lengths)]
    all_of_them = _adapted_step(shape, lengths).run(work, every=every)
    assert all_of_them is not None
    one = all_of_them[0][1:2].clone()
    alone = _adapted_step(shape, lengths).run([(*row[:3], int(row[4] < 0), row[4]) for row in work], every=every)
    assert alone is not None
    assert_same_bits(alone[0], one)


def _adapted_head(shape: Shape) -> tuple[Program, int, int]:
    head = Program()
    hidden, logits = head.buffer(shape.hidden), head.buffer(VOCAB)
    head.norm_and_quantize(hidden, shape.activation_format, norm=1 + 0.1 * normal(shape.hidden, seed=1), eps=EPS)
    head.linear(logits, embedding_of(shape))
    head.add_low_rank(logits, adapters(50, shape.hidden, (VOCAB,), torch.float32, (2, 5)))
    return head, hidden, logits


def _adapted_step(shape: Shape, lengths: Sequence[int]) -> Step:
    sequences = Sequences(shape, lengths)
    _adapt(sequences)
    tokens = np.zeros((len(lengths), max(lengths)), np.int64)
    for line, ids in zip(tokens, sequences.ids, strict=True):
        line[: len(ids)] = ids.numpy()
    head, hidden, logits = _adapted_head(shape)
    return Step(
        *(sequences.forward, sequences.hidden, Forward(head), hidden, logits),
        tokens=tokens,
        blocks=sequences.tables.numpy()[None],
        block_size=shape.block_size,
    )


def _adapt(sequences: Sequences) -> None:
    """Puts adapters behind every product that writes a whole buffer."""
    program, recorded = sequences.forward.program, sequences.forward.program.instructions
    program.instructions = []
    for at, each in enumerate(recorded):
        program._append(each)
        following = recorded[at + 1] if at + 1 < len(recorded) else None
        if each.op == "linear" and (following is None or following.op != "linear" or following.dst != each.dst):
            assert each.weight is not None
            slots = adapters(at, each.weight.shape[1], (program.widths[each.dst],), torch.float32, (3, 2))
            program.add_low_rank(each.dst, slots)
    sequences.forward = Forward(program, sequences.caches)
