"""Rows that compute several positions at once: chunks of running prefills, and admissions."""

from stentor.protocols.ipc.actors import Resource
from stentor.protocols.ipc.steps import Encoding

from ..cache.prefix import Tables
from ..request import Request, Sequence
from .kv_cache_manager import KVCacheManager
from .step import StepBuilder


def plan_chunks(draft: StepBuilder, memory: KVCacheManager, sequences: list[Sequence]) -> None:
    """Go on with what has been admitted and not been prefilled, while the budget lasts; most important first.

    Its blocks were promised at admission.
    """
    for sequence in sequences:
        if not draft.budget:
            return
        count = memory.affordable(sequence, min(sequence.plannable, draft.budget, draft.chunk))
        if count <= 0:  # what it left behind others hold as well; while some row has work, it waits for theirs
            if draft.rows or not memory.preempt_for(sequence):
                continue
            count = memory.affordable(sequence, min(sequence.plannable, draft.budget, draft.chunk))
        draft.add(sequence, count, memory.cover(sequence, sequence.num_scheduled_tokens + count))


def admit_waiting(draft: StepBuilder, memory: KVCacheManager, now: float) -> list[Resource]:
    """Admit in order of importance, and return what was lacked at the end.

    What a sequence lacks is kept for it: nobody behind it is admitted who needs any of that, however small. Everyone
    needs a row, blocks and room in the step, so who lacks these is overtaken by nobody, and that is what keeps it from
    starving; who lacks an encoder slot is overtaken by those who need none. Since an admission needs budget left
    after every running row had its share, the rows with work never outnumber the budget, and each of them moves in
    every step.
    """
    lacked: list[Resource] = []
    while draft.budget and memory.rows.has_free_slot and (not draft.waiting or draft.room > draft.waiting):
        sequence = memory.queue.peek(lacked)
        if sequence is None:
            return lacked
        found = _lacks(sequence, draft, memory)
        if isinstance(found, str):
            lacked.append(found)
        else:
            _admit(sequence, found, draft, memory, now)
    return [*lacked, "step" if memory.rows.has_free_slot else "row"]


def _lacks(sequence: Sequence, draft: StepBuilder, memory: KVCacheManager) -> Resource | Tables:
    """The first thing that the sequence lacks where all others can be admitted; the prefix that it starts from if it
    lacks nothing."""
    request = sequence.request
    if request.no_chunking and draft.room < sequence.length:
        return "step"
    if request.attention_scope == "all" and draft.rows and draft.budget < sequence.length:
        return "step"  # one goes beyond its budget only for a prompt that has it for itself
    if not draft.takes(sequence, memory.block_size, _audio_bytes(sequence, memory)):
        return "step"
    prefix = _find_room(sequence, memory)
    if prefix is None:
        return "pages"
    return prefix if _finds_encoder_slot(request, draft, memory) else "encoder_slot"


def _find_room(sequence: Sequence, memory: KVCacheManager) -> Tables | None:
    """The prefix that the sequence can start from, if the rest it needs is free now; otherwise None.

    Prompts held for less important requests give way. With nothing running and no such hold left,
    an accepted request always fits: its own hold, if any, is what it starts from.
    """
    prefix = _find_prefix(sequence, memory)
    needed = memory.needed_behind(prefix, sequence.length)
    # Blocks for every other running row: those admitted should not be the next to be preempted.
    reserve = (len(memory.rows.running) + 1) // 2 * memory.groups
    while True:
        if memory.free >= needed + memory.revived(prefix) + reserve:
            return prefix
        if not memory.reclaim_hold(keep=sequence.request):
            return None


def _audio_bytes(sequence: Sequence, memory: KVCacheManager) -> int:
    """Of what it hears, that a step has to bring because it is not encoded yet."""
    audio = sequence.request.audio
    return 0 if audio is None or memory.encoder_cache.find(audio.digest) is not None else len(audio.pcm)


def _finds_encoder_slot(request: Request, draft: StepBuilder, memory: KVCacheManager) -> bool:
    """Whether what it hears is encoded, or has a slot to be encoded into in this step. True without audio."""
    if request.audio is None or memory.encoder_cache.find(request.audio.digest) is not None:
        return True
    return len(draft.encodings) < draft.max_encodings and memory.encoder_cache.free_count > 0


def _find_prefix(sequence: Sequence, memory: KVCacheManager) -> Tables:
    """The longest prefix to start from, not referenced yet, at most up to the block of the last known token."""
    request = sequence.request
    if request.held_tables:
        return request.held_tables
    if not _reads_cache(request, memory):
        return [[] for _ in range(memory.groups)]
    usable = min(sequence.length - 1, request.cacheable_len) // memory.block_size
    return memory.prefix.match(sequence.block_digests(usable, memory.block_size)[:usable])


def _reads_cache(request: Request, memory: KVCacheManager) -> bool:
    """Log-probabilities of the prompt need its logits, so all of it is computed until they are known.

    What is heard on the way is no part of a block's name.
    """
    if request.input is not None:
        return False
    return memory.prefix.enabled and (request.prompt_done or request.params.prompt_logprobs is None)


def _admit(sequence: Sequence, prefix: Tables, draft: StepBuilder, memory: KVCacheManager, now: float) -> None:
    """A sequence that lacks nothing gets its row and begins with this step."""
    request = sequence.request
    memory.queue.take_out(sequence)
    audio_bytes = _audio_bytes(sequence, memory)
    if request.audio is not None:
        held = memory.encoder_cache.hold(request.audio.digest)
        assert held is not None, "an encoder slot was free"
        sequence.encoder_slot = held.slot
        if not held.encoded:
            draft.encodings.append(Encoding(held.slot, request.audio.pcm))
    blocks = len(prefix[0])
    prefix_len = blocks * memory.block_size
    # what returns finds what it wrote itself: counted, that would make a cache look good that preempts
    returns = sequence.row_generation > 0 or bool(sequence.outputs)
    if not returns and prefix is not request.held_tables and _reads_cache(request, memory):
        memory.prefix.count(sequence.length, prefix_len)
    if request.cached_len is None:
        request.cached_len = prefix_len
        request.first_scheduled = now
    memory.enter(sequence, prefix)
    sequence.num_scheduled_tokens = sequence.num_computed_tokens = prefix_len
    sequence.num_hashed_blocks = blocks
    memory.rows.enter(sequence)
    memory.settle_fork(sequence)
    count = sequence.length if request.no_chunking else min(sequence.plannable, draft.budget, draft.chunk)
    memory.cover(sequence, sequence.num_scheduled_tokens + count)
    draft.enter(sequence, memory.block_size, audio_bytes)
    draft.add(sequence, count, [])
    draft.budget = max(draft.budget, 0)
