"""Rows that need one position each, and drafts behind it."""

import math

from ..sequence import Sequence
from .draft_control import DraftControl
from .kv_cache_manager import KVCacheManager
from .step import StepBuilder


def plan_decodes(
    draft: StepBuilder, memory: KVCacheManager, *, drafting: bool = False, yielding_from: float = math.inf
) -> list[Sequence]:
    """Plan every running row that has one position left to compute; returns those that have more.

    Rows of text that began at ``yielding_from`` or later (seconds of ``time.monotonic()``) wait once they have drawn.

    A row's next token may still be in flight: only its position is needed, the worker has the
    token. Rows come most important first, and when blocks run out it is the tail of that order, not
    visited yet, that is preempted; so nothing planned is ever taken back.

    ``drafting`` says that steps in flight may gain a row more than a token. One that they may bring to its last token
    is not planned before their results have come.
    """
    running = memory.rows.running
    block_size = memory.block_size
    streams, states, yielding = draft.streams, memory.states, yielding_from < math.inf
    longer: list[Sequence] = []
    visited = 0
    while visited < len(running):
        sequence = running[visited]
        visited += 1
        if sequence.length_capped:
            continue
        if streams and sequence.num_scheduled_tokens + sequence.num_drafts_in_flight >= sequence.ready_len:
            draft.waiting += 1  # its next audio has not come
            continue
        # the last of a prompt may be media, which has to be encoded first
        if sequence.length - sequence.num_scheduled_tokens > 1 or (sequence.spans and sequence.spans[0].start >= 0):
            longer.append(sequence)
            continue
        at = sequence.num_scheduled_tokens
        if yielding and _yields_to_burst(sequence, yielding_from):
            draft.waiting += 1
            continue
        new_blocks: list[int] = []
        if drafting and sequence.num_drafts_in_flight:
            at += sequence.num_drafts_in_flight
            if at + 1 >= sequence.limit_len:
                draft.waiting += 1
                continue
        if at == sequence.num_blocks * block_size:
            if not memory.preempt_for(sequence):
                break
            new_blocks = memory.cover(sequence, at + 1)
        draft.add(sequence, 1, new_blocks, -1 if states is None else states.next_slot(sequence))
    return longer


def _yields_to_burst(sequence: Sequence, yielding_from: float) -> bool:
    request = sequence.request
    if request.inputs or request.first_scheduled is None:
        return False
    return request.first_scheduled >= yielding_from and sequence.num_scheduled_tokens >= request.prompt_len


def plan_drafts(draft: StepBuilder, memory: KVCacheManager, control: DraftControl) -> None:
    """Let rows that decode compute draft tokens behind their own, as many as pay, most important first.

    Drafts have what the step and the pool have left: no prompt waits for them, and no row gives up blocks. None go
    beyond a row's last token, or beyond what it can hear; a row that has not drawn a token yet has none.
    """
    decoding = sum(row.sample and row.count == 1 for row in draft.rows)
    if (limit := control.limit(decoding)) <= 0:
        return
    for place, (sequence, _, end, most) in enumerate(draft.owners):
        row = draft.rows[place]
        if not most or row.count > 1 or row.start < sequence.request.prompt_len:
            continue
        furthest = end + sequence.num_drafts_in_flight
        wanted = min(draft.room, sequence.limit_len - furthest - 1, sequence.ready_len - furthest)
        if (asked := sequence.request.params.num_drafts) is not None:
            wanted = min(wanted, asked)
        if wanted <= 0 or (wanted := min(wanted, control.wanted(sequence, decoding, limit))) <= 0:
            continue
        if memory.states is not None:
            wanted = memory.states.draftable(row.start, furthest, wanted)
        if memory.windowed:
            memory.leave_behind(sequence, row.start)
        count = memory.affordable_from(sequence, furthest, wanted)
        if count <= 0:
            continue
        known = sequence.num_blocks - len(row.new_blocks) // memory.groups
        memory.cover(sequence, furthest + count)
        draft.add_drafts(place, count, [block for table in sequence.tables for block in table[known:]])
