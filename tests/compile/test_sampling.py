"""The sampler's kernels at real vocabularies, compiled for Hopper and Ampere."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels import sampling
from stentor.kernels.launching.dry_run import CompiledKernel, dry_run
from stentor.kernels.sampling.tables import MAX_BIAS, PARAMS, SamplerTables

pytestmark = pytest.mark.compiles

DRAW = ["scan_tiles", "bracket_limits", "gather_members", "choose_tokens"]


def empty(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def make_tables(slots: int, vocabulary: int) -> SamplerTables:
    words, int32 = -(-vocabulary // 32), torch.int32
    return SamplerTables(
        vocab_size=vocabulary,
        params=empty(slots, PARAMS),
        seen=empty(slots, vocabulary, dtype=int32),
        mask=empty(slots, words, dtype=int32),
        early_mask=empty(slots, words, dtype=int32),
        bias_ids=empty(slots, MAX_BIAS, dtype=int32),
        bias_values=empty(slots, MAX_BIAS, dtype=torch.float32),
    )


def assert_nothing_spills(compiled: list[CompiledKernel]) -> None:
    for kernel in compiled:
        assert kernel.stack_bytes == 0, kernel.name
        assert kernel.shared_bytes <= 48 * 1024, kernel.name


def assert_separately_rounded(compiled: list[CompiledKernel]) -> None:
    for kernel in compiled:
        assert "fma.rn.f64" not in kernel.ptx, kernel.name
        assert "fma.rn.f32" not in kernel.ptx, kernel.name


@pytest.mark.parametrize(
    ("rows", "vocabulary", "dtype", "capability"),
    [
        (1, 128256, torch.float32, 90),
        (64, 128256, torch.float32, 90),
        (256, 151936, torch.float32, 90),
        (256, 128256, torch.bfloat16, 90),
        (256, 128256, torch.float32, 80),
    ],
    ids=str,
)
def test_a_step_is_four_kernels_that_spill_nothing(
    rows: int, vocabulary: int, dtype: torch.dtype, capability: int
) -> None:
    with FakeTensorMode(), dry_run(capability) as compiled:
        logits = empty(rows, vocabulary, dtype=dtype)
        sampling.step_(logits, empty(rows), make_tables(rows, vocabulary), empty(rows))
    assert [kernel.name for kernel in compiled] == DRAW
    assert_nothing_spills(compiled)
    assert_separately_rounded(compiled)
    for kernel in (compiled[0], compiled[2]):
        assert "ld.global.v4.b32" in kernel.ptx, f"{kernel.name} does not load 16 bytes at a time"
    assert "0d3FE62E42FEFA39EF" in compiled[3].ptx, "the noise's ln 2 is not that of float64"


@pytest.mark.parametrize("probable", [False, True])
def test_judging_drafts_spills_nothing(probable: bool) -> None:
    sequences, drafted, vocabulary = 8, 3, 128256
    with FakeTensorMode(), dry_run() as compiled:
        logits = empty(sequences, drafted + 1, vocabulary, dtype=torch.bfloat16)
        q = empty(sequences, drafted, vocabulary, dtype=torch.float32) if probable else None
        tables, tokens = make_tables(sequences, vocabulary), empty(sequences, drafted + 1)
        sampling.verify_(logits, empty(sequences, drafted), q, empty(sequences), tables, tokens, empty(sequences))
    judged = ["sum_weights", "rejection_sample", "gumbel_max_residual", "take_tokens"]
    assert [kernel.name for kernel in compiled] == DRAW + (judged if probable else judged[1::2])
    assert_nothing_spills(compiled)
    assert_separately_rounded(compiled)


def test_edits_and_log_probabilities_spill_nothing() -> None:
    with FakeTensorMode(), dry_run() as compiled:
        logits = empty(64, 151936, dtype=torch.float32)
        rows, offsets, ids, values = empty(3), empty(4), empty(900), empty(900, dtype=torch.float32)
        sampling.penalise_(logits, empty(3, 3, dtype=torch.float32), rows, offsets, ids, ids)
        sampling.add_bias_(logits, rows, offsets, ids, values)
        assert_separately_rounded(compiled)
        sampling.restrict_(logits, rows, offsets, ids)
        sampling.logprobs(logits, rows, rows, 20, empty(3, 128))
        sampling.write_params_(make_tables(4, 32), rows, empty(3, PARAMS))
    assert [kernel.name for kernel in compiled] == [
        *["edit_listed"] * 2,
        *["move_listed", "forbid_rows", "move_listed"],
        *["sum_tiles", "merge_tiles", "write_rows"],
    ]
    assert_nothing_spills(compiled)
