"""Rows that compute several positions at once: chunks of running prefills, and admissions."""

from stentor.protocols.steps import NewRow

from ..request import Choice, Request
from .preemption import Memory
from .step import StepDraft


def plan_chunks(draft: StepDraft, choices: list[Choice]) -> None:
    """Go on with prefills already running, most important first. Their blocks were taken at admission."""
    for choice in choices:
        if not draft.budget:
            return
        draft.add(choice, min(choice.length - choice.computed_len, draft.budget), [])


def admit_waiting(draft: StepDraft, memory: Memory, now: float) -> None:
    """Admit in order of importance while slots, blocks and budget last.

    Nobody overtakes the head of the queue, however large it is: that is what keeps it from
    starving. Since an admission needs budget left after every running row had a share, the rows
    with work never outnumber the budget, and each of them moves in each step or waits for a more
    important prefill.
    """
    while draft.budget and memory.rows.has_free_slot:
        choice = memory.queue.peek()
        if choice is None:
            return
        prefix = _find_room(choice, memory)
        if prefix is None:
            return
        memory.queue.pop()
        _admit(choice, prefix, memory, now)
        request = choice.request
        draft.new.append(
            NewRow(
                choice.slot,
                choice.tokens(0, choice.length),
                request.prompt_len,
                request.plain_params if request.prompt_done else request.params,
                choice.seed,
                choice.blocks.copy(),
            )
        )
        draft.add(choice, min(choice.length - choice.computed_len, draft.budget), [])


def _find_room(choice: Choice, memory: Memory) -> list[int] | None:
    """The prefix blocks that the choice can start from, if the rest it needs is free now; otherwise None."""
    pool = memory.pool
    request = choice.request
    prefix = _find_prefix(choice, memory)
    total = -(-choice.length // memory.block_size)
    # A block for every other running row: those admitted should not be the next to be preempted.
    reserve = (len(memory.rows.running) + 1) // 2
    keep: Request | None = request if prefix is request.held_blocks else None
    while True:
        revived = sum(1 for block in prefix if not pool.refs(block))
        if pool.free_count >= total - len(prefix) + revived + reserve:
            return prefix
        if not memory.reclaim_hold(keep):
            return None


def _find_prefix(choice: Choice, memory: Memory) -> list[int]:
    """The longest prefix whose KV exists, at most up to the block of the last known token."""
    request = choice.request
    if choice.forked and request.held_blocks:
        return request.held_blocks
    found: list[int] = []
    if _reads_cache(choice, memory):
        usable = (choice.length - 1) // memory.block_size
        found = memory.prefix.match(choice.block_digests(usable, memory.block_size)[:usable])
    return found if len(found) >= len(request.held_blocks) else request.held_blocks


def _reads_cache(choice: Choice, memory: Memory) -> bool:
    """Log-probabilities of the prompt need its logits, so all of it is computed until they are known."""
    request = choice.request
    return memory.prefix.enabled and (request.prompt_done or request.params.prompt_logprobs is None)


def _admit(choice: Choice, prefix: list[int], memory: Memory, now: float) -> None:
    request = choice.request
    prefix_len = len(prefix) * memory.block_size
    from_hold = prefix is request.held_blocks
    cached_len = 0 if from_hold else prefix_len
    if not from_hold and _reads_cache(choice, memory):
        memory.prefix.count(choice.length, cached_len)
    if request.cached_len is None:
        request.cached_len = cached_len
        request.first_scheduled = now
    # Referenced before anything is allocated, so that it cannot be evicted for the rest.
    for block in prefix:
        memory.pool.ref(block)
    fresh = memory.pool.allocate_many(-(-choice.length // memory.block_size) - len(prefix))
    choice.blocks = prefix + fresh
    choice.computed_len = choice.written_len = prefix_len
    choice.labelled_blocks = len(prefix)
    memory.rows.enter(choice)
    memory.settle_fork(choice)
