"""A whole step as one call: the body over its rows, the head over those that sample."""

import dataclasses
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest
import torch

from stentor.kernels import native
from stentor.kernels.forward import Forward, Program, Step
from stentor.tests.kernels.forward_shapes import SHAPES
from stentor.tests.kernels.helpers import assert_same_bits, normal, thread_count
from stentor.tests.kernels.programs import (
    EPS,
    VOCAB,
    Sequences,
    embedding_of,
    shuffled,
)

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native library")

LENGTHS = (37, 20, 1, 9)


def step_over(sequences: Sequences) -> tuple[Step, Forward, int, int]:
    """A step with a head of logits behind the decoder; the head, its input and its output."""
    return step_of(sequences, *slots_of(sequences))


def step_of(
    sequences: Sequences, tokens: npt.NDArray[np.int64], blocks: npt.NDArray[np.int32]
) -> tuple[Step, Forward, int, int]:
    """The same, over these tables."""
    program = Program()
    hidden, logits = program.buffer(sequences.shape.hidden), program.buffer(VOCAB)
    program.norm_and_quantize(
        hidden, sequences.shape.activation_format, norm=1 + 0.1 * normal(sequences.shape.hidden, seed=1), eps=EPS
    )
    program.linear(logits, embedding_of(sequences.shape))
    head = Forward(program)
    step = Step(
        sequences.forward,
        sequences.hidden,
        head,
        hidden,
        logits,
        tokens=tokens,
        blocks=blocks,
        block_size=sequences.shape.block_size,
    )
    return step, head, hidden, logits


def slots_of(sequences: Sequences) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Tokens and block tables of all sequences, as a worker keeps them."""
    tokens = np.zeros((len(sequences.ids), max(map(len, sequences.ids))), np.int64)
    for line, ids in zip(tokens, sequences.ids, strict=True):
        line[: len(ids)] = ids.numpy()
    return tokens, sequences.tables.numpy()[None]


@pytest.mark.parametrize("name", ["plain", "windowed", "mixed"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_step_is_the_body_and_then_the_head_over_rows_that_sample(name: str, threads: int) -> None:
    shape = SHAPES[name]
    apart, together = Sequences(shape, LENGTHS), Sequences(shape, LENGTHS)
    step, head, at_hidden, at_logits = step_over(together)
    with thread_count(threads):
        for number, spans in enumerate(shuffled(LENGTHS, 9, 12)):
            pieces = apart.step(*spans)
            samples = [(number + place) % 3 != 0 for place in range(len(spans))]
            found = step.run([(*span, wanted, -1) for span, wanted in zip(spans, samples, strict=True)], every=True)
            hidden = together.forward.buffer(together.hidden, sum(count for _, _, count in spans))
            assert_same_bits(hidden, torch.cat(pieces))
            last = [piece[-1:] for piece, wanted in zip(pieces, samples, strict=True) if wanted]
            assert (found is None) == (not last)
            if found is not None:
                logits, best = found[0].clone(), found[1].tolist()
                head.buffer(at_hidden, len(last)).copy_(torch.cat(last))
                head.run(len(last))
                assert_same_bits(logits, head.buffer(at_logits, len(last)))
                assert best == logits.argmax(1).tolist()
    assert step.run([]) is None


@pytest.mark.parametrize("name", [*SHAPES])
@pytest.mark.parametrize("threads", [1, 3])
def test_logits_and_caches_are_the_same_where_the_last_layer_ends_for_rows_that_sample_alone(
    name: str, threads: int
) -> None:
    sides = [Sequences(SHAPES[name], LENGTHS) for _ in range(2)]
    steps = [step_over(side)[0] for side in sides]
    with thread_count(threads):
        for number, spans in enumerate(shuffled(LENGTHS, 9, 12)):
            work = [(*span, (number + place) % 3 != 0, -1) for place, span in enumerate(spans)]
            found, expected = steps[0].run(work), steps[1].run(work, every=True)
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                assert_same_bits(found[0], expected[0])
                assert found[1].tolist() == expected[1].tolist()
    for mine, theirs in zip(sides[0].caches, sides[1].caches, strict=True):
        for part, other in zip(mine, theirs, strict=True):
            assert_same_bits(part, other)


@pytest.mark.parametrize(
    "row",
    [
        (3, 0, 1, True),
        (-1, 0, 1, True),
        (0, -1, 2, True),
        (0, 0, 0, True),
        (0, 0, -3, True),
        (0, 20, 11, True),
        (1, 16, 5, False),
        (0, 2**63 - 8, 16, True),
    ],
)
def test_work_that_leads_outside_is_refused_and_nothing_is_written(row: tuple[int, int, int, bool]) -> None:
    """A slot, a position before the first, no tokens, more than a slot or a number has, a block it does not have."""
    sequences = Sequences(SHAPES["plain"], [30, 16, 30])
    step, *_ = step_over(sequences)
    residual = sequences.forward.buffer(sequences.hidden, 40).fill_(3.0)
    with pytest.raises(IndexError, match="forward: the step has"):
        step.run([(2, 0, 4, True, -1), (*row, -1)])
    assert bool((residual == 3.0).all())
    assert all(bool(k.isnan().all()) and bool(v.isnan().all()) for k, v in sequences.caches)


def test_more_rows_than_there_are_slots_are_refused() -> None:
    step, *_ = step_over(Sequences(SHAPES["plain"], [30, 16]))
    with pytest.raises(IndexError, match="3 rows and 2 slots"):
        step.run([(slot, at, 1, True, -1) for slot, at in ((0, 0), (1, 0), (0, 1))])


@pytest.mark.parametrize(
    ("tokens", "blocks"),
    [
        (np.zeros((2, 30), np.int32), np.zeros((1, 2, 2), np.int32)),
        (np.zeros((2, 30), np.int64), np.zeros((1, 2, 2), np.int64)),
        (np.zeros((2, 60), np.int64)[:, ::2], np.zeros((1, 2, 2), np.int32)),
        (np.zeros((2, 30), np.int64), np.zeros((1, 1, 2), np.int32)),
        (np.zeros(30, np.int64), np.zeros((1, 30, 2), np.int32)),
        (np.zeros((2, 30), np.int64), np.zeros((2, 2), np.int32)),
    ],
)
def test_tables_that_a_step_cannot_read_are_refused(
    tokens: npt.NDArray[np.int64], blocks: npt.NDArray[np.int32]
) -> None:
    forward = Sequences(SHAPES["plain"], [5]).forward
    with pytest.raises(ValueError, match=r"forward: (tokens|blocks) .* must be contiguous"):
        Step(forward, 0, Forward(Program([], [40, 8])), 0, 1, tokens=tokens, blocks=blocks, block_size=16)


def test_a_head_that_does_not_follow_its_body_is_refused() -> None:
    forward, tables = (
        Sequences(SHAPES["plain"], [5]).forward,
        (np.zeros((1, 5), np.int64), np.zeros((1, 1, 1), np.int32)),
    )
    with pytest.raises(ValueError, match="a head over 41 columns does not follow a body that leaves 40"):
        Step(forward, 0, Forward(Program([], [41, 8])), 0, 1, tokens=tables[0], blocks=tables[1], block_size=16)


@pytest.mark.proof  # a process that imports torch
def test_a_step_that_has_no_memory_is_refused_and_the_process_lives() -> None:
    """A row that sees many keys is planned in parts, whose sums need memory."""
    code = """
import os, resource, torch
from pathlib import Path
from stentor.kernels.attention import AttentionBatch
from stentor.kernels.forward import CachedHeads, Forward, Program, Scores
from stentor.kernels.kv_cache import make_kv_cache
torch.set_num_threads(2)
heads, length = 512, 80_000
program = Program()
src, dst = program.buffer(heads * 8), program.buffer(heads * 8)
program.attend(src, dst, CachedHeads(0, heads, 1, 8), Scores(1.0))
forward = Forward(program, [make_kv_cache(length // 16, 1, 8, 16, torch.bfloat16, "cpu")])
forward.buffer(src, 1).zero_()
table = torch.arange(length // 16).int()[None]
starts, lengths = torch.tensor([0, 1]).int(), torch.tensor([length]).int()
batch = AttentionBatch(starts, lengths, table, torch.zeros(1).long(), 1, length)
short = AttentionBatch(starts, torch.tensor([5]).int(), table, torch.zeros(1).long(), 1, 5)
forward.run(1, batches=[short])
mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (4 << 20),) * 2)
try:
    forward.run(1, batches=[batch])
except MemoryError as error:
    assert str(error) == "forward: no room to plan a step of 1 rows", error
    forward.run(1, batches=[short])
    raise SystemExit(7)
"""
    assert subprocess.run([sys.executable, "-P", "-c", code], timeout=60, check=False).returncode == 7


@pytest.mark.parametrize("threads", [1, 3])
def test_layers_of_two_groups_find_their_blocks_by_their_own_tables(threads: int) -> None:
    """The same sequences, where every second layer's blocks lie elsewhere: in one call a step, and pass by pass."""
    one, two = (Sequences(SHAPES["mixed"], LENGTHS) for _ in range(2))
    blocks, size = len(two.caches[0][0]), two.shape.block_size
    moved = torch.randperm(blocks, generator=torch.Generator().manual_seed(3)).int()
    tables = torch.stack([two.tables, torch.where(two.tables < 0, -9, moved[two.tables.clamp(min=0).long()])])
    program = two.forward.program
    for at, instruction in enumerate(program.instructions):
        if instruction.layer >= 0:
            program.instructions[at] = dataclasses.replace(instruction, group=instruction.layer % 2)
    two.forward = Forward(program, two.caches)
    expected, *_ = step_over(one)
    step, *_ = step_of(two, slots_of(two)[0], tables.numpy())
    with thread_count(threads):
        prompts = [(s, 0, n - 1, False, -1) for s, n in enumerate(LENGTHS) if n > 1]
        for work in (prompts, [(s, n - 1, 1, True, -1) for s, n in enumerate(LENGTHS)]):
            found, wanted = step.run(work), expected.run(work)
            if found is not None and wanted is not None:
                assert_same_bits(found[0], wanted[0])
    spans = [(s, n - 1, 1) for s, n in enumerate(LENGTHS)]
    ids_of, positions, batch = two.inputs(spans)
    other = dataclasses.replace(
        batch,
        block_tables=tables[1][:, : batch.block_tables.shape[1]].contiguous(),
        slots=moved.long()[batch.slots // size] * size + batch.slots % size,
    )
    two.forward.run(len(ids_of), ids_of, positions, [batch, other])
    (hidden,) = [two.forward.buffer(two.hidden, len(ids_of)).clone()]
    assert_same_bits(hidden, torch.cat(one.step(*spans)))
    with pytest.raises(ValueError, match="1 groups of layers have block tables, 2 need them"):
        two.forward.run(len(ids_of), ids_of, positions, [batch])
