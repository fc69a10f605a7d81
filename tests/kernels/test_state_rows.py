"""What the operations that keep a state promise of rows and slots, each of them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stentor.kernels import StateRows
from stentor.kernels.variants import Choice
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, thread_count
from stentor.tests.kernels.mixers import Conv, Delta, Mamba, Mixer, Scan, part

MIXERS = [
    Conv(70, 4),
    Conv(600, 3, bias=False, activation="none"),
    Conv(5, 2),
    Delta(2, 4, 128, 128),
    Delta(1, 3, 20, 41, l2norm=False),
    Delta(2, 2, 16, 152),
    Delta(2, 2, 128, 128, by_channel=True),
    Delta(1, 3, 20, 41, l2norm=False, by_channel=True),
    Mamba(4, 2, 64, 128),
    Mamba(3, 1, 7, 20),
    Scan(200, 16),
    Scan(41, 5),
]
ROUNDED = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""How far states may be from the reference's: where sums differ in their last bit, what is kept may by some units."""
KEPT = [
    pytest.param(torch.float32, None, id="float32"),
    pytest.param(torch.bfloat16, None, id="bfloat16"),
    pytest.param(torch.float32, torch.bfloat16, id="float32, kept in bfloat16"),
    pytest.param(torch.float32, torch.float16, id="float32, kept in float16"),
    pytest.param(torch.bfloat16, torch.float16, id="bfloat16, kept in float16"),
    pytest.param(torch.bfloat16, torch.float32, id="bfloat16, kept in float32"),
]
"""What models compute in, and what they keep states in; None: as they do by themselves."""
ALL = [pytest.param(mixer, id=repr(mixer)) for mixer in MIXERS]
SMALL = [pytest.param(mixer, id=type(mixer).__name__) for mixer in (MIXERS[0], MIXERS[4], MIXERS[9], MIXERS[11])]

LENGTHS = [1, 40, 3, 0, 1, 70, 2]
READS = [3, -1, 5, 3, -1, 8, 3]
WRITES = [0, 1, 5, 2, 4, 6, -1]
"""Begin with zeros and with a state; one slot read by several rows, one read and written; slot 7 is nobody's."""
SLOTS = 9


def kept_state(mixer: Mixer, slots: int, dtype: torch.dtype, kept: torch.dtype | None) -> Tensor:
    state = mixer.state(slots, seed=5, dtype=dtype)
    return state if kept is None else state.to(kept)


@pytest.mark.parametrize(("dtype", "kept"), KEPT)
@pytest.mark.parametrize("mixer", ALL)
def test_ragged_rows_are_the_references(mixer: Mixer, dtype: torch.dtype, kept: torch.dtype | None) -> None:
    rows = StateRows.of(LENGTHS, READS, WRITES)
    tokens = mixer.tokens(sum(LENGTHS), seed=1, dtype=dtype)
    mine, expected = (kept_state(mixer, SLOTS, dtype, kept) for _ in range(2))
    assert mixer.choose(tokens, "native") == "native"
    found = mixer.run(tokens, mine, rows, "native")
    exact = 1e-5 if isinstance(mixer, Conv) else ROUNDED[mine.dtype]  # a convolution rounds what it was given alone
    assert_close(found, mixer.run(tokens, expected, rows, "reference"), exact if dtype == torch.float32 else 1.6e-2)
    assert_close(mine, expected, 0.0 if isinstance(mixer, Conv) else ROUNDED[mine.dtype])


def in_chunks(mixer: Mixer, lengths: list[int], dtype: torch.dtype, kept: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """One sequence, cut into chunks of ``lengths``, whose state moves between slots: its output and the state."""
    tokens, state = mixer.tokens(sum(lengths), seed=1, dtype=dtype), kept_state(mixer, 3, dtype, kept)
    outs, begin, slot = [], 0, 2
    for i, length in enumerate(lengths):
        rows = StateRows.of([length], [slot], [i % 2])
        outs.append(mixer.run(part(tokens, slice(begin, begin + length)), state, rows, "native"))
        begin, slot = begin + length, i % 2
    return torch.cat(outs), state[slot]


@pytest.mark.parametrize(("dtype", "kept"), KEPT)
@pytest.mark.parametrize("mixer", ALL)
def test_a_prompt_is_bitwise_the_same_however_it_is_cut(
    mixer: Mixer, dtype: torch.dtype, kept: torch.dtype | None
) -> None:
    whole = in_chunks(mixer, [75], dtype, kept)
    for lengths in ([1] * 75, [5, 70], [1, 2, 71, 1]):
        for mine, expected in zip(in_chunks(mixer, lengths, dtype, kept), whole, strict=True):
            assert_same_bits(mine, expected)


@pytest.mark.parametrize(("dtype", "kept"), KEPT)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("mixer", ALL)
def test_a_row_is_bitwise_the_same_in_any_batch(
    mixer: Mixer, threads: int, dtype: torch.dtype, kept: torch.dtype | None
) -> None:
    tokens, state = mixer.tokens(sum(LENGTHS), seed=1, dtype=dtype), kept_state(mixer, SLOTS, dtype, kept)
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
