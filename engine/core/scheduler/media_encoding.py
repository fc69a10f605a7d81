"""The media that a step encodes, and how far their rows get in it."""

from stentor.protocols.ipc.inputs import InputSpan
from stentor.protocols.ipc.steps import EncodeJob

from ..request import Request
from ..sequence import Sequence
from .kv_cache_manager import KVCacheManager
from .step import StepBuilder


def lacks_encoder(
    step: StepBuilder, kv_cache: KVCacheManager, sequence: Sequence, spans: list[InputSpan], start: int
) -> bool:
    """Whether a sequence that enters at ``start`` lacks encoded media, ``spans``, or room for them."""
    request = sequence.request
    if not kv_cache.encoder_cache.has_room(spans):
        return True
    if _encodes_at_once(step, request):  # no part of it can wait for a later step
        wanted = (sequence.length if request.sees_all else request.prompt_len) - start
        return _encodable(step, kv_cache, spans, start, wanted, at_once=True) < wanted
    return not _has_work(step, kv_cache, request, spans, start)


def _encodable(
    step: StepBuilder,
    kv_cache: KVCacheManager,
    spans: list[InputSpan],
    start: int,
    count: int,
    *,
    sliced: bool = False,
    at_once: bool = False,
) -> int:
    """How many of the ``count`` positions from ``start`` on the step can encode the media for.

    Args:
        spans: the media that they read, in order.
        sliced: whether no medium is encoded whole.
        at_once: whether a step without encodings may encode any number.
    """
    left = 0 if sliced else step.max_encodings - len(step.encode)
    if at_once and not step.encode:
        left = len(spans)
    for span in spans:
        if span.start >= start + count:
            break
        if not kv_cache.encoder_cache.is_encoded(span.digest):
            if left <= 0:
                return max(0, span.start - start)
            left -= 1
    return count


def lacks_media(request: Request, kv_cache: KVCacheManager, start: int) -> bool:
    """Whether media read from ``start`` on have to be encoded, but are not written to shared memory.

    All must be written then, since encoded media without a holder may be evicted for the others.
    """
    spans = request.media.behind(start)
    written = all(span.written for span in spans)
    return not written and not all(kv_cache.encoder_cache.is_encoded(span.digest) for span in spans)


def waits_for_media(kv_cache: KVCacheManager, sequence: Sequence) -> bool:
    """Whether a running sequence can compute nothing before an encoding is complete."""
    at = sequence.num_scheduled_tokens
    return any(span.start <= at and not kv_cache.encoder_cache.is_encoded(span.digest) for span in sequence.spans)


def _waits_with_row(step: StepBuilder, kv_cache: KVCacheManager) -> bool:
    """Whether a row may enter before its media are encoded, with nothing to compute.

    Not with recurrent states, which a row reads in its first step.
    """
    return step.sliced and kv_cache.states is None


def _has_work(
    step: StepBuilder, kv_cache: KVCacheManager, request: Request, spans: list[InputSpan], start: int
) -> bool:
    """Whether a row that enters at ``start`` has positions to compute in this step, or an encoding to wait for."""
    if (step.media_budget or request.no_chunking) and _encodable(step, kv_cache, spans, start, 1):
        return True
    return _waits_with_row(step, kv_cache) and not all(kv_cache.encoder_cache.is_encoded(span.digest) for span in spans)


def _encodes_at_once(step: StepBuilder, request: Request) -> bool:
    """Whether the step that computes a prompt encodes all its media."""
    return request.sees_all or (step.whole_prompts and not step.sliced)


def encode_media(
    step: StepBuilder, kv_cache: KVCacheManager, sequence: Sequence, count: int, *, enters: bool = False
) -> int:
    """How many of the next ``count`` positions of a running sequence the step can compute, as :func:`_encodable`.

    Mutates the step: adds the encodings of the media, or slices of them.
    """
    if not sequence.spans or count <= 0:
        return count
    start = sequence.num_scheduled_tokens
    wanted = start + count
    at_once = _encodes_at_once(step, sequence.request)
    sliced = step.sliced and not at_once
    if enters and not _waits_with_row(step, kv_cache):
        sliced &= sequence.spans[0].start > start
    count = _encodable(step, kv_cache, sequence.spans, start, count, sliced=sliced, at_once=at_once)
    if sliced and start + count < wanted:
        _encode_slices(step, kv_cache, sequence)
    if step.whole_prompts and start + count < wanted:
        return 0  # it waits for the rest of its media
    for span in sequence.spans:
        if count and span.start < start + count and kv_cache.encoder_cache.encode(span):
            adapter = sequence.request.adapter if span.start < 0 else None
            own = -1 if adapter is None else kv_cache.adapters.slot_of(adapter.number)
            step.encode.append(EncodeJob(kv_cache.encoder_cache.slots[span.digest], span.data, adapter=own))
            step.readers.add(sequence.request.rid)
    return count


def within_media_budget(step: StepBuilder, sequence: Sequence, count: int) -> int:
    """How many of ``count`` positions fit into the budget for media beside rows that decode; mutates that budget."""
    if not sequence.request.media.spans or sequence.request.no_chunking:
        return count
    count = min(count, step.media_budget)
    step.media_budget -= max(0, count)
    return count


def _encode_slices(step: StepBuilder, kv_cache: KVCacheManager, sequence: Sequence) -> None:
    """Add slices of the media that a row waits for, up to the step's limit."""
    cache = kv_cache.encoder_cache
    for span in sequence.spans:
        if len(step.encode) >= step.max_encodings:
            return
        slot = cache.slots[span.digest]
        if cache.is_encoded(span.digest) or any(job.encoder_slot == slot for job in step.encode):
            continue
        step.slices.append((slot, span.digest, cache.encode_slice(span)))
        step.encode.append(EncodeJob(slot, span.data, sliced=True))
        step.readers.add(sequence.request.rid)
