"""Rows that need one position each."""

from ..request import Sequence
from .kv_cache_manager import KVCacheManager
from .step import StepBuilder


def plan_decodes(draft: StepBuilder, memory: KVCacheManager) -> list[Sequence]:
    """Plan every running row that has one position left to compute; returns those that have more.

    A row's next token may still be in flight: only its position is needed, the worker has the
    token. Rows come most important first, and when blocks run out it is the tail of that order, not
    visited yet, that is preempted; so nothing planned is ever taken back.
    """
    running = memory.rows.running
    block_size = memory.block_size
    streams = draft.streams
    longer: list[Sequence] = []
    visited = 0
    while visited < len(running):
        sequence = running[visited]
        visited += 1
        if sequence.length_capped:
            continue
        if streams and sequence.num_scheduled_tokens >= sequence.ready_len:
            draft.waiting += 1  # what it hears next has not come
            continue
        if sequence.length - sequence.num_scheduled_tokens > 1:
            longer.append(sequence)
            continue
        new_blocks: list[int] = []
        at = sequence.num_scheduled_tokens
        if at == sequence.num_blocks * block_size:
            if not memory.preempt_for(sequence):
                break
            new_blocks = memory.cover(sequence, at + 1)
        draft.add(sequence, 1, new_blocks)
    return longer
