"""What the operations that keep a state promise of rows and slots, each of them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stentor.kernels import StateRows
from stentor.kernels.variants import Choice
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, thread_count
from stentor.tests.kernels.mixers import Conv, Delta, Mamba, Mixer, part

MIXERS = [
    Conv(70, 4),
    Conv(600, 3, bias=False, activation="none"),
    Conv(5, 2),
    Delta(2, 4, 128, 128),
    Delta(1, 3, 20, 41, l2norm=False),
    Delta(2, 2, 16, 152),
    Mamba(4, 2, 64, 128),
    Mamba(3, 1, 7, 20),
]
DTYPES = (torch.float32, torch.bfloat16)
ALL = [pytest.param(mixer, id=repr(mixer)) for mixer in MIXERS]
SMALL = [pytest.param(mixer, id=type(mixer).__name__) for mixer in (MIXERS[0], MIXERS[4], MIXERS[7])]

LENGTHS = [1, 40, 3, 0, 1, 70, 2]
READS = [3, -1, 5, 3, -1, 8, 3]
WRITES = [0, 1, 5, 2, 4, 6, -1]
"""Begin with zeros and with a state; one slot read by several rows, one read and written; slot 7 is nobody's."""
SLOTS = 9


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mixer", ALL)
def test_ragged_rows_are_the_references(mixer: Mixer, dtype: torch.dtype) -> None:
    rows = StateRows.of(LENGTHS, READS, WRITES)
    tokens = mixer.tokens(sum(LENGTHS), seed=1, dtype=dtype)
    mine, expected = (mixer.state(SLOTS, seed=5, dtype=dtype) for _ in range(2))
    assert mixer.choose(tokens, "native") == "native"
    found = mixer.run(tokens, mine, rows, "native")
    assert_close(found, mixer.run(tokens, expected, rows, "reference"), 1e-5 if dtype == torch.float32 else None)
    assert_close(mine, expected, 1e-5 if mine.dtype == torch.float32 else 0.0)


def in_chunks(mixer: Mixer, lengths: list[int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """One sequence, cut into chunks of ``lengths``, whose state moves between slots: its output and the state."""
    tokens, state = mixer.tokens(sum(lengths), seed=1, dtype=dtype), mixer.state(3, seed=5, dtype=dtype)
    outs, begin, slot = [], 0, 2
    for i, length in enumerate(lengths):
        rows = StateRows.of([length], [slot], [i % 2])
        outs.append(mixer.run(part(tokens, slice(begin, begin + length)), state, rows, "native"))
        begin, slot = begin + length, i % 2
    return torch.cat(outs), state[slot]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mixer", ALL)
def test_a_prompt_is_bitwise_the_same_however_it_is_cut(mixer: Mixer, dtype: torch.dtype) -> None:
    whole = in_chunks(mixer, [75], dtype)
    for lengths in ([1] * 75, [5, 70], [1, 2, 71, 1]):
        for mine, expected in zip(in_chunks(mixer, lengths, dtype), whole, strict=True):
            assert_same_bits(mine, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("mixer", ALL)
def test_a_row_is_bitwise_the_same_in_any_batch(mixer: Mixer, threads: int, dtype: torch.dtype) -> None:
    tokens, state = mixer.tokens(sum(LENGTHS), seed=1, dtype=dtype), mixer.state(SLOTS, seed=5, dtype=dtype)
    before = state.clone()
    rows = StateRows.of(LENGTHS, READS, WRITES)
    with thread_count(threads):
        found = mixer.run(tokens, state, rows, "native")
    starts = rows.cu_seqlens.tolist()
    for row, (read, write) in enumerate(zip(READS, WRITES, strict=True)):
        own, alone = slice(starts[row], starts[row + 1]), before.clone()
        out = mixer.run(part(tokens, own), alone, StateRows.of([LENGTHS[row]], [read], [write]), "native")
        assert_same_bits(found[own], out)
        if write >= 0:
            assert_same_bits(state[write], alone[write])


@pytest.mark.parametrize("variant", ["native", "reference"])
@pytest.mark.parametrize("mixer", SMALL)
def test_only_slots_that_a_row_writes_change(mixer: Mixer, variant: Choice) -> None:
    tokens = mixer.tokens(sum(LENGTHS), seed=1, dtype=torch.float32)
    state = mixer.state(SLOTS, seed=5, dtype=torch.float32)
    before = state.clone()
    mixer.run(tokens, state, StateRows.of(LENGTHS, READS, WRITES), variant)
    changed = [slot for slot in range(SLOTS) if not torch.equal(state[slot], before[slot])]
    assert changed == sorted(write for write in WRITES if write >= 0)


@pytest.mark.parametrize("variant", ["native", "reference"])
@pytest.mark.parametrize("mixer", SMALL)
def test_a_row_without_tokens_carries_its_state(mixer: Mixer, variant: Choice) -> None:
    tokens, state = mixer.tokens(0, seed=1, dtype=torch.float32), mixer.state(4, seed=5, dtype=torch.float32)
    before = state.clone()
    mixer.run(tokens, state, StateRows.of([0, 0, 0], [3, -1, 2], [0, 1, 2]), variant)
    assert_same_bits(state, torch.stack([before[3], torch.zeros_like(before[1]), before[2], before[3]]))


@pytest.mark.parametrize("variant", ["native", "reference"])
@pytest.mark.parametrize("mixer", SMALL)
def test_tokens_and_slots_that_are_not_there_are_refused_before_anything_is_written(
    mixer: Mixer, variant: Choice
) -> None:
    tokens, state = mixer.tokens(3, seed=1, dtype=torch.float32), mixer.state(4, seed=5, dtype=torch.float32)
    before = state.clone()
    fine = StateRows.of([1, 2], [0, 1], [0, 1])
    for rows in (
        replace(fine, reads=torch.tensor([0, 4])),
        replace(fine, writes=torch.tensor([0, 4])),
        replace(fine, reads=torch.tensor([0, -2])),
        replace(fine, writes=torch.tensor([0, -2])),
        replace(fine, cu_seqlens=torch.tensor([0, 1, 4], dtype=torch.int32)),
        replace(fine, cu_seqlens=torch.tensor([0, 2, 1], dtype=torch.int32)),
    ):
        with pytest.raises(IndexError, match=r"row 1 has the tokens .* of 4"):
            mixer.run(tokens, state, rows, variant)
    assert_same_bits(state, before)


@pytest.mark.parametrize("mixer", SMALL)
def test_rows_of_other_dtypes_and_shapes_are_refused(mixer: Mixer) -> None:
    tokens, state = mixer.tokens(3, seed=1, dtype=torch.float32), mixer.state(4, seed=5, dtype=torch.float32)
    fine = StateRows.of([1, 2], [0, 1], [0, 1])
    with pytest.raises(ValueError, match=r"cu_seqlens .* must be contiguous int32 \[3\]"):
        mixer.run(tokens, state, replace(fine, cu_seqlens=torch.tensor([0, 1, 3])), "auto")
    with pytest.raises(ValueError, match=r"reads .* must be contiguous int64 \[2\]"):
        mixer.run(tokens, state, replace(fine, reads=fine.reads.int()), "auto")
    with pytest.raises(ValueError, match=r"writes .* must be contiguous int64 \[2\]"):
        mixer.run(tokens, state, replace(fine, writes=torch.zeros(3, dtype=torch.int64)), "auto")
    with pytest.raises(ValueError, match="are on cpu, meta and cpu, the state is on cpu"):
        mixer.run(tokens, state, replace(fine, reads=fine.reads.to("meta")), "auto")
