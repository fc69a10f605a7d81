"""Plans rows that compute several positions at once: chunks of running prefills, and admissions.

The section "Blocks, step by step" of ``docs/design/kv-cache.md`` follows three requests through a small pool, with the
numbers that :func:`_find_room` adds up.
"""

from stentor.protocols.ipc.actors import Resource

from ..cache.prefix import Prefix
from ..request import Request
from ..sequence import Sequence
from .kv_cache_manager import KVCacheManager
from .media_encoding import encode_media, lacks_encoder, lacks_media, waits_for_media, within_media_budget
from .step import StepBuilder


def plan_prompts(
    step: StepBuilder, kv_cache: KVCacheManager, unfinished: list[Sequence], most_admitted: int, now: float
) -> list[Resource]:
    """Continue running prefills, and admit at most ``most_admitted`` tokens of waiting sequences; returns the resources
    that these lacked at the end.

    In a step that is shared, a most important prompt of text that the step cannot complete comes last: half of the
    budget is kept for it, and it gets what the others leave. So a long prompt does not hold up short ones, and is not
    held up by them.
    """
    first: list[Sequence] = []
    kept = 0
    most = next((each for each in unfinished if not each.request.media.spans), None) if step.is_shared else None
    if most is not None and most.plannable > step.budget:
        first, kept = [most], -(-step.budget // 2)
        unfinished = [sequence for sequence in unfinished if sequence is not most]
    step.budget -= kept
    _plan_chunks(step, kv_cache, unfinished)
    withheld = max(0, step.budget - most_admitted)
    step.budget -= withheld
    lacked = _admit_waiting(step, kv_cache, now)
    step.budget += withheld + kept
    _plan_chunks(step, kv_cache, first, alone=True)
    return lacked


def _plan_chunks(
    step: StepBuilder, kv_cache: KVCacheManager, sequences: list[Sequence], *, alone: bool = False
) -> None:
    """Continue running prefills while the budget lasts, most important first.

    Their blocks were promised at admission. ``alone``: nobody else can use the rest of the budget.
    """
    for sequence in sequences:
        if not step.budget:
            return
        share = step.share_of(sequence, alone=alone)
        count = kv_cache.affordable(sequence, share)
        # blocks that it left behind are held by others too: it waits for them while another row has work
        if count <= 0:
            if step.works or not kv_cache.preempt_for(sequence):
                continue
            count = kv_cache.affordable(sequence, share)
        if kv_cache.states is not None:
            count = kv_cache.states.cut(sequence, count)
        if parts := sequence.request.media.whole_parts:
            count = _within_parts(step, parts, sequence.num_scheduled_tokens, count)
            count = count if _preempt_to_fit(step, kv_cache, sequence, count) else 0
        count = within_media_budget(step, sequence, encode_media(step, kv_cache, sequence, count))
        if (sequence.request.media.spans and count <= 0) or waits_for_media(kv_cache, sequence):
            step.waiting += 1
        if count > 0:
            state = -1 if kv_cache.states is None else kv_cache.states.next_slot(sequence)
            step.add(sequence, count, kv_cache.cover(sequence, sequence.num_scheduled_tokens + count), state)
            step.budget = max(step.budget, 0)


def _admit_waiting(step: StepBuilder, kv_cache: KVCacheManager, now: float) -> list[Resource]:
    """Admit waiting sequences in order of importance; returns the resources that were lacking at the end.

    A resource that a sequence lacks is kept for it: no sequence behind it that needs it is admitted, however small. All
    need a row, blocks and space in the step, so a sequence that lacks one of these is not overtaken and cannot starve.
    One that lacks encoder space is overtaken only by those without media. An admission needs budget after every running
    row had its share, so the rows with work never outnumber the budget, and each advances in every step.
    """
    lacked: list[Resource] = []
    while step.budget and kv_cache.rows.has_free_slot and (not step.waiting or step.room > step.waiting):
        sequence = kv_cache.queue.peek(lacked)
        if sequence is None:
            return lacked
        found = _lacks(sequence, step, kv_cache)
        if found == "media":  # no other sequence lacks these
            kv_cache.queue.stand_aside(sequence.request, found)
            step.wanted.append(sequence.request.rid)
        elif isinstance(found, str):
            lacked.append(found)
        else:
            _admit(sequence, found, step, kv_cache, now)
    return [*lacked, "step" if kv_cache.rows.has_free_slot else "row"]


def _lacks(sequence: Sequence, step: StepBuilder, kv_cache: KVCacheManager) -> Resource | Prefix:
    """The first resource that the sequence lacks, or the prefix to start from if it lacks none."""
    request = sequence.request
    if request.no_chunking and step.room < sequence.length:
        return "step"
    if request.sees_all and step.rows and step.budget < sequence.length:
        return "step"  # only a prompt that has the step for itself may exceed its budget
    if not step.takes(sequence):
        return "step"
    if request.adapter is not None and not kv_cache.adapters.has_room(request.adapter.number):
        return "adapter_slot"
    prefix = _find_room(sequence, kv_cache)
    if prefix is None:
        return "blocks"
    start, spans = prefix.length, request.media.behind(prefix.length)
    if request.media.spans and lacks_media(request, kv_cache, start):
        return "media"
    if not _within_parts(step, request.media.whole_parts, start, 1):
        return "step"
    if request.media.spans and lacks_encoder(step, kv_cache, sequence, spans, start):
        return "encoder"
    return prefix


def _find_room(sequence: Sequence, kv_cache: KVCacheManager) -> Prefix | None:
    """The prefix to start from if the blocks for the rest are free; otherwise None.

    A tail is used only if its source and its copy are both free; otherwise that part is computed. Pinned prompts of
    less important requests are freed if need be. With nothing running and no such prompt left, an accepted request
    always fits: its own pinned prompt, if any, is its prefix.
    """
    # Keep blocks for every second running row, so that new rows are not preempted at once.
    reserve = (len(kv_cache.rows.running) + 1) // 2 * kv_cache.groups
    tails = True
    while True:
        prefix = find_prefix(sequence, kv_cache, tails=tails)
        needed = kv_cache.needed_behind(prefix.tables, sequence.length)
        spare = kv_cache.free - needed - kv_cache.revived(prefix.tables) - reserve
        if spare >= kv_cache.unheld(prefix.tail):
            return prefix
        tails = spare < 0
        if tails and not kv_cache.reclaim_hold(keep=sequence.request):
            return None


def _within_parts(step: StepBuilder, parts: list[tuple[int, int]], start: int, count: int) -> int:
    """How many of the ``count`` positions from ``start`` on can be computed without cutting a part.

    Stops before a part, or takes all of one that comes next, which may exceed the budget; 0 if the step has no space
    for it. ``parts`` are those of the prompt, in order.
    """
    end = start + count
    for first, last in parts:
        if first < end < last:
            if first > start:
                return first - start
            return last - start if last - start <= step.room else 0
    return count


def _preempt_to_fit(step: StepBuilder, kv_cache: KVCacheManager, sequence: Sequence, count: int) -> bool:
    """Whether there are blocks for ``count`` positions; if no other row has work, preempts less important rows."""
    while kv_cache.affordable(sequence, count) < count:
        if step.works or kv_cache.rows.running[-1] is sequence:
            return False
        kv_cache.preempt(kv_cache.rows.running[-1])
    return True


def find_prefix(sequence: Sequence, kv_cache: KVCacheManager, *, tails: bool = True) -> Prefix:
    """The longest known prefix of a sequence behind which a row may begin, not referenced yet, without its last token.

    ``tails``: whether it may end within a block.
    """
    end = min(sequence.length - 1, sequence.cacheable_len)
    prefix = _known(sequence, kv_cache, end, tails=tails)
    while (end := sequence.request.media.uncut(prefix.length)) < prefix.length:
        prefix = _known(sequence, kv_cache, end, tails=tails)
    return prefix


def _known(sequence: Sequence, kv_cache: KVCacheManager, end: int, *, tails: bool) -> Prefix:
    """The longest known prefix of at most ``end`` tokens."""
    tables, size = sequence.request.held_tables, kv_cache.block_size
    if not tables:
        if not _reads_cache(sequence.request, kv_cache):
            return Prefix([[] for _ in range(kv_cache.groups)], 0)
        usable = end // size
        tables, known = kv_cache.prefix.match(sequence.block_digests(usable, size)[:usable])
        sequence.recurrent.branch = known * size
    return kv_cache.with_tail(sequence, tables, end) if tails else Prefix(tables, len(tables[0]) * size)


def _reads_cache(request: Request, kv_cache: KVCacheManager) -> bool:
    """Whether the request may use cached prefixes.

    Prompt log-probabilities need the prompt's logits, so all of it is computed until they are known. Streamed input is
    not part of a block's hash.
    """
    if request.input is not None:
        return False
    return kv_cache.prefix.enabled and (request.prompt_done or request.params.prompt_logprobs is None)


def _admit(sequence: Sequence, prefix: Prefix, step: StepBuilder, kv_cache: KVCacheManager, now: float) -> None:
    """Give a row to a sequence that lacks nothing; it begins with this step."""
    request = sequence.request
    kv_cache.queue.take_out(sequence)
    # A sequence that returns finds its own blocks. Counting them would flatter a cache that preempts.
    returns = sequence.row_generation > 0 or bool(sequence.outputs)
    if not returns and prefix.tables is not request.held_tables:
        reads_cache = _reads_cache(request, kv_cache)
        kv_cache.prefix.count(
            sequence.length, prefix.length, kv_cache.from_host(sequence, prefix), looked_up=reads_cache
        )
    if request.cached_len is None:
        request.cached_len = prefix.length
        request.first_scheduled = now
    kv_cache.enter(sequence, prefix)
    if request.media.spans:
        sequence.spans = request.media.behind(prefix.length)
        for span in sequence.spans:
            kv_cache.encoder_cache.hold(span)
    sequence.num_scheduled_tokens = sequence.num_computed_tokens = prefix.length
    sequence.num_hashed_blocks = len(prefix.tables[0])
    kv_cache.rows.enter(sequence)
    kv_cache.settle_fork(sequence)
    count = sequence.length if request.no_chunking else step.share_of(sequence, alone=not kv_cache.queue)
    if kv_cache.states is not None:
        count = kv_cache.states.cut(sequence, count)
    count = _within_parts(step, request.media.whole_parts, sequence.num_scheduled_tokens, count)
    count = within_media_budget(step, sequence, encode_media(step, kv_cache, sequence, count, enters=True))
    kv_cache.cover(sequence, sequence.num_scheduled_tokens + count)
    step.enter(sequence)
    if not count:
        step.waiting += 1
        return
    step.add(sequence, count, [], sequence.recurrent.slot)
    step.budget = max(step.budget, 0)
