"""Rows that need one position each."""

from ..request import Choice
from .kv_cache_manager import KVCacheManager
from .step import StepBuilder


def plan_decodes(draft: StepBuilder, memory: KVCacheManager) -> list[Choice]:
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
        if choice.length_capped:
            continue
        if streams and choice.num_scheduled_tokens >= choice.ready_len:
            draft.waiting += 1  # what it hears next has not come
            continue
        if choice.length - choice.num_scheduled_tokens > 1:
            longer.append(choice)
            continue
        new_blocks: list[int] = []
        if choice.num_scheduled_tokens == len(choice.blocks) * block_size:
            if not pool.free_count and not memory.preempt_for(choice):
                break
            new_blocks.append(pool.allocate())
            choice.blocks.extend(new_blocks)
        draft.add(choice, 1, new_blocks)
    return longer
