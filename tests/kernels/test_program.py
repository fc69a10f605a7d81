"""A program is checked while it is built, since the native interpreter follows it without looking."""

import pytest

from stentor.kernels.forward import Forward, Program
from stentor.kernels.linear_packed import empty_packed


def test_a_program_refuses_what_would_lead_outside_its_buffers() -> None:
    weight = empty_packed(32, 16, "f32")
    program = Program()
    x, y = program.buffer(16), program.buffer(16)
    with pytest.raises(ValueError, match="prepared is None"):
        program.linear(y, weight)
    program.prepare(x, "plain")
    with pytest.raises(ValueError, match="32 columns do not fit buffer 1 of 16"):
        program.linear(y, weight)
    with pytest.raises(ValueError, match="takes"):
        program.linear(y, empty_packed(16, 8, "f32"))
    with pytest.raises(ValueError, match="do not fit"):
        program.attend(x, y, 0, (4, 2, 8), scale=1.0, window=0, softcap=0.0)


def test_a_program_that_lacks_what_it_reads_says_so() -> None:
    program = Program()
    program.embed(program.buffer(16), empty_packed(32, 16, "f32"), 1.0)
    with pytest.raises(ValueError, match="needs ids"):
        Forward(program).run(1)
