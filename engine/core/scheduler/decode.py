"""Rows that need one position each."""

from ..request import Choice
from .preemption import Memory
from .step import StepDraft


def plan_decodes(draft: StepDraft, memory: Memory) -> list[Choice]:
    """Plan every running row that has one position left to compute; returns those that have more.

    A row's next token may still be in flight: only its position is needed, the worker has the
    token. Rows come most important first, and when blocks run out it is the tail of that order, not
    visited yet, that is preempted; so nothing planned is ever taken back.
    """
    pool = memory.pool
    running = memory.rows.running
    block_size = memory.block_size
    streams = draft.streams
    longer: list[Choice] = []
    visited = 0
    while visited < len(running):
        choice = running[visited]
        visited += 1
        if choice.exhausted:
            continue
        if streams and choice.computed_len >= choice.ready_len:
            draft.waiting += 1  # what it hears next has not come
            continue
        if choice.length - choice.computed_len > 1:
            longer.append(choice)
            continue
        new_blocks: list[int] = []
        if choice.computed_len == len(choice.blocks) * block_size:
            if not pool.free_count and not memory.make_room(choice):
                break
            new_blocks.append(pool.allocate())
            choice.blocks.extend(new_blocks)
        draft.add(choice, 1, new_blocks)
    return longer
