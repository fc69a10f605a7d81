"""A program is checked while it is built, since the native interpreter follows it without looking."""

import pytest
import torch

from stentor.kernels.attention import AttentionBatch
from stentor.kernels.forward import CachedHeads, Forward, Program, Rotation, Scores
from stentor.kernels.forward.instruction import MAX_PHASES, Instruction
from stentor.kernels.kv_cache import make_kv_cache
from stentor.kernels.linear_packed import empty_packed


def test_a_program_refuses_what_would_lead_outside_its_buffers() -> None:
    weight = empty_packed(32, 16, "f32")
    program = Program()
    x, y = program.buffer(16), program.buffer(16)
    with pytest.raises(ValueError, match="prepared is None"):
        program.linear(y, weight)
    program.norm_and_quantize(x, "f32")
    with pytest.raises(ValueError, match="32 columns do not fit buffer 1 of 16"):
        program.linear(y, weight)
    with pytest.raises(ValueError, match="takes"):
        program.linear(y, empty_packed(16, 8, "f32"))
    with pytest.raises(ValueError, match="do not fit"):
        program.attend(x, y, CachedHeads(0, 4, 2, 8), Scores(1.0))


def test_a_program_refuses_what_does_not_fit_beside_what_it_reads() -> None:
    program = Program()
    wide, narrow = program.buffer(48), program.buffer(16)
    table = torch.ones(4, 8)
    with pytest.raises(ValueError, match="48 columns do not fit buffer 1 of 16"):
        program.norm_and_quantize(wide, "f32", add=narrow)
    with pytest.raises(ValueError, match="48 columns do not fit buffer 1 of 16"):
        program.add(wide, narrow)
    with pytest.raises(ValueError, match=r"a norm's weight \(16,\) does not fit 48 columns"):
        program.norm_and_quantize(wide, "f32", norm=torch.ones(16))
    with pytest.raises(ValueError, match=r"rotary tables \(4, 8\) and \(4, 8\) do not fit heads of 12 dims"):
        program.rotate(wide, CachedHeads(0, 2, 1, 12), Rotation(table, table))
    with pytest.raises(ValueError, match=r"a norm's weight \(8,\) does not fit 16 columns"):
        program.rotate(wide, CachedHeads(0, 1, 1, 16), Rotation(table, table, norms=(torch.ones(16), torch.ones(8))))
    with pytest.raises(ValueError, match=r"a norm's weight \(16,\) does not fit 48 columns"):
        program.norm_and_quantize(wide, "f32", norm=torch.ones(48), centred=True, bias=torch.ones(16))
    with pytest.raises(ValueError, match=r"a norm's weight \(8,\) does not fit 16 columns"):
        program.norm(wide, torch.ones(16), 1e-5, centred=True, bias=torch.ones(8))
    with pytest.raises(ValueError, match=r"scales of queries \(3,\) do not fit 4 positions"):
        program.rotate(wide, CachedHeads(0, 1, 1, 16), Rotation(table, table, query_scales=torch.ones(3)))
    with pytest.raises(ValueError, match="3 query heads are no multiple of 2 kv heads"):
        program.attend(wide, wide, CachedHeads(0, 3, 2, 16), Scores(1.0))
    with pytest.raises(ValueError, match="1 heads of 16 dims do not fill buffer 0 of 48"):
        program.attend(wide, wide, CachedHeads(0, 1, 1, 16), Scores(1.0))
    with pytest.raises(ValueError, match=r"sinks \(2,\) do not fit 3 query heads"):
        program.attend(wide, wide, CachedHeads(0, 3, 1, 16), Scores(1.0, sinks=torch.ones(2)))
    with pytest.raises(ValueError, match=r"slopes \(2,\) do not fit 3 query heads"):
        program.attend(wide, wide, CachedHeads(0, 3, 1, 16), Scores(1.0, slopes=torch.ones(2)))
    assert program.instructions == []


def test_rotary_tables_are_kept_as_the_interpreter_reads_them() -> None:
    program = Program()
    angles = torch.arange(32.0).view(8, 4)
    rotation = Rotation(angles.T.bfloat16().T, angles.T.contiguous().T)
    program.rotate(program.buffer(24), CachedHeads(0, 1, 1, 8), rotation)
    assert program.instructions[0].rotary is not None
    for table in program.instructions[0].rotary:
        assert table.dtype == torch.float32
        assert table.is_contiguous()
        assert torch.equal(table, angles)


@pytest.mark.parametrize("heads", [(2, 1, 8), (2, 2, 16)])
def test_caches_of_other_heads_than_the_program_writes_are_refused(heads: tuple[int, int, int]) -> None:
    program = Program()
    src, dst = program.buffer(96), program.buffer(heads[0] * heads[2])
    program.attend(src, dst, CachedHeads(0, *heads), Scores(1.0))
    cache = make_kv_cache(2, 1, 16, 16, torch.float32, "cpu")
    with pytest.raises(ValueError, match=f"layer 0 needs a cache of {heads[1]} heads of {heads[2]} dims"):
        Forward(program, [cache])
    with pytest.raises(ValueError, match="there is none"):
        Forward(program)


def test_a_program_that_lacks_what_it_reads_says_so() -> None:
    program = Program()
    program.embed(program.buffer(16), empty_packed(32, 16, "f32"), 1.0)
    with pytest.raises(ValueError, match="needs ids"):
        Forward(program).run(1)


@pytest.mark.parametrize("phases", [0, MAX_PHASES + 1])
def test_an_instruction_of_more_phases_than_can_be_run_is_refused_when_the_program_is_built(phases: int) -> None:
    program = Program()
    src = program.buffer(16)
    with pytest.raises(ValueError, match=f"add declares {phases} phases; 1 to {MAX_PHASES} can be run"):
        program._append(Instruction("add", src=src, add=src, width=16, phases=phases))
    assert program.instructions == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("phases", 1), ("phases", 0), ("phases", MAX_PHASES + 1), ("phases", 1 << 62), ("kind", 9), ("kind", -1)],
)
def test_the_interpreter_refuses_an_instruction_whose_phases_it_has_no_memory_for(field: str, value: int) -> None:
    """Three threads, and a row that is cut, so that the second phase would be run."""
    program = Program()
    rows, out = program.buffer(24), program.buffer(8)
    program.attend(rows, out, CachedHeads(0, 1, 1, 8), Scores(1.0))
    length = 1024
    cache = make_kv_cache(length // 16, 1, 8, 16, torch.float32, "cpu")
    for part in cache:
        part.fill_(1.0)
    forward = Forward(program, [cache], variant="native")
    starts, lengths = torch.tensor([0, 1]).int(), torch.tensor([length]).int()
    table = torch.arange(length // 16).int()[None]
    batch = AttentionBatch(starts, lengths, table, torch.zeros(1).long(), 1, length)
    forward.buffer(rows, 1).fill_(1.0)
    forward.buffer(out, 1).fill_(-1.0)
    as_built = getattr(forward._structs[0], field)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        setattr(forward._structs[0], field, value)
        with pytest.raises(ValueError, match="declares other phases than it runs"):
            forward.run(1, batches=[batch])
        assert bool((forward.buffer(out, 1) == -1.0).all())
        setattr(forward._structs[0], field, as_built)
        forward.run(1, batches=[batch])
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(forward.buffer(out, 1), torch.ones(1, 8))
