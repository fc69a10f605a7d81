# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""How Triton kernels load and store the states of :class:`.state_rows.StateRows`.

A program has a row and a head, the first two numbers of its grid. It takes a tile of the head's matrix: the offsets
``at``, masked by ``inside``.
"""

import triton
import triton.language as tl


@triton.jit
def load_state(state, reads, at, inside, HEADS: tl.constexpr, SIZE: tl.constexpr):
    """Loads the tile as float32 from the slot that the row reads; zeros if it reads none."""
    read = tl.load(reads + tl.program_id(0))
    head = state + (read * HEADS + tl.program_id(1)) * SIZE  # int64, as slots are
    return tl.load(head + at, mask=inside & (read >= 0), other=0.0).to(tl.float32)


@triton.jit
def store_state(memory, state, writes, at, inside, HEADS: tl.constexpr, SIZE: tl.constexpr):
    """Stores the tile into the slot that the row writes, if any."""
    write = tl.load(writes + tl.program_id(0))
    head = state + (write * HEADS + tl.program_id(1)) * SIZE
    tl.store(head + at, memory.to(state.dtype.element_ty), mask=inside & (write >= 0))
