"""Plans rows that need one position each, and their drafts."""

from ..sequence import Sequence
from .draft_control import DraftControl
from .kv_cache_manager import KVCacheManager
from .step import StepBuilder


def plan_decodes(step: StepBuilder, kv_cache: KVCacheManager, *, drafting: bool = False) -> list[Sequence]:
    """Plan every running row that has one position left to compute; returns those that have more.

    A row's last token may still be in flight: only its position is needed, since the worker has the token. Rows come
    most important first. If blocks run out, rows at the end of that order are preempted, which are not planned yet, so
    no plan is taken back.

    Args:
        drafting: steps in flight may gain a row several tokens. A row that they may bring to its last token waits for
            their results.
    """
    running = kv_cache.rows.running
    block_size = kv_cache.block_size
    streams, states = step.streams, kv_cache.states
    longer: list[Sequence] = []
    visited = 0
    while visited < len(running):
        sequence = running[visited]
        visited += 1
        if sequence.length_capped:
            continue
        if streams and sequence.num_scheduled_tokens + sequence.num_drafts_in_flight >= sequence.ready_len:
            step.waiting += 1  # its next audio has not come
            continue
        if sequence.length - sequence.num_scheduled_tokens > 1 or (sequence.spans and _may_encode(sequence, kv_cache)):
            longer.append(sequence)
            continue
        at = sequence.num_scheduled_tokens
        new_blocks: list[int] = []
        if drafting and sequence.num_drafts_in_flight:
            at += sequence.num_drafts_in_flight
            if at + 1 >= sequence.limit_len:
                step.waiting += 1
                continue
        if at == sequence.num_blocks * block_size:
            if not kv_cache.preempt_for(sequence):
                break
            new_blocks = kv_cache.cover(sequence, at + 1)
        step.add(sequence, 1, new_blocks, -1 if states is None else states.next_slot(sequence))
    return longer


def _may_encode(sequence: Sequence, kv_cache: KVCacheManager) -> bool:
    """Whether a medium that the next position reads may have to be encoded first: the last position of a prompt may be
    a medium's, or attend to one."""
    if sequence.spans[0].start < 0:
        return False
    lasting = kv_cache.cross is not None and kv_cache.cross.lasting
    return not lasting or not all(kv_cache.encoder_cache.is_encoded(span.digest) for span in sequence.spans)


def plan_drafts(step: StepBuilder, kv_cache: KVCacheManager, control: DraftControl) -> None:
    """Add draft tokens to rows that decode, as many as pay, most important row first.

    Drafts use the rest of the step and the pool: they delay no prompt, and no row is preempted for them. They do not go
    beyond a row's last token or its streamed input. A row that has not sampled a token has none.
    """
    decoding = sum(row.sample and row.count == 1 for row in step.rows)
    if (limit := control.limit(decoding)) <= 0:
        return
    for place, (sequence, _, end, max_gained) in enumerate(step.owners):
        row = step.rows[place]
        if not max_gained or row.count > 1 or row.start < sequence.request.prompt_len:
            continue
        furthest = end + sequence.num_drafts_in_flight
        wanted = min(step.room, sequence.limit_len - furthest - 1, sequence.ready_len - furthest)
        if (asked := sequence.request.params.num_drafts) is not None:
            wanted = min(wanted, asked)
        if wanted <= 0 or (wanted := min(wanted, control.wanted(sequence, decoding, limit))) <= 0:
            continue
        if kv_cache.states is not None:
            wanted = kv_cache.states.draftable(row.start, furthest, wanted)
        if kv_cache.windowed:
            kv_cache.leave_behind(sequence, row.start)
        count = kv_cache.affordable_from(sequence, furthest, wanted)
        if count <= 0:
            continue
        known = sequence.num_blocks - len(row.new_blocks) // kv_cache.groups
        kv_cache.cover(sequence, furthest + count)
        step.add_drafts(place, count, [block for table in sequence.tables for block in table[known:]])
