"""What a step has for prompts: less beside rows that decode, unless the prompts are a burst."""

import math

from ..sequence import Sequence
from .kv_cache_manager import KVCacheManager
from .limits import Limits
from .prefill import waits_for_media
from .step import StepBuilder

_BURST = 4
"""Prompts that make a burst, if they are half as many as the rows that decode."""
_YIELDING_SECONDS = 1.0
"""From the beginning of a burst on, so long its rows wait with their second tokens for the first tokens of the rest."""


class PromptBudget:
    """Bounds the prompts' part of each step, and remembers what bounds it from one step to the next."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._burst = 0
        """Prompts of a burst that are yet to begin, or to be computed to their end."""
        self._burst_since = 0.0
        self._media_room = 0
        """Tokens of prompts with media beside rows of text that decode, as the worker has told; 0 before it has."""

    def yielding_from(self, now: float) -> float:
        """Rows of requests that began then or later do not decode yet; infinity where all do.

        A row costs a step with prompts what it costs one without, which the first tokens of the rest of the crowd would
        wait for. Who decoded before the crowd came is not held up.
        """
        return self._burst_since if self._burst and now < self._burst_since + _YIELDING_SECONDS else math.inf

    def bound(
        self, draft: StepBuilder, memory: KVCacheManager, unfinished: list[Sequence], now: float, *, crowded: bool
    ) -> None:
        """Mutates the step, which has its decodes: what is left in it for prompts. ``unfinished`` have begun;
        ``crowded``: others wait for the device."""
        limits = self._limits
        self._note_burst(len(draft.rows), memory, unfinished, now)
        if crowded or (draft.rows and not self._burst):
            draft.budget = min(draft.budget, limits.max_mixed_prefill_tokens)
        if limits.sees_all:
            draft.budget = min(draft.budget, limits.max_prefill_chunk)
        draft.max_encodings = limits.max_mixed_encodings if crowded or draft.rows else limits.max_encodings
        if memory.cross is not None:
            draft.whole_spans, draft.sliced = memory.cross.whole > 0, memory.cross.sliced
            bounded = draft.sliced and not draft.whole_spans and self._media_room
            if bounded and (crowded or any(not sequence.request.inputs for sequence, *_ in draft.owners)):
                draft.media_budget = self._media_room

    def begun(self, prompts: int) -> None:
        """So many prompts begin with the step."""
        self._burst = max(0, self._burst - prompts)

    def told(self, media_room: int) -> None:
        """The worker's word on the tokens of prompts with media beside rows that decode; 0 where it says nothing."""
        self._media_room = media_room or self._media_room

    def _note_burst(self, decoding: int, memory: KVCacheManager, unfinished: list[Sequence], now: float) -> None:
        """Counts those who could begin, where they are so many that those who decode are not spared.

        Small chunks do not make these wait less in all, only evenly; and a crowd would wait longer for its first
        tokens than they are spared. That holds to the last of the crowd, however many of it decode by then. Who waits
        for media begins no sooner, nor does who brings some where their tokens beside rows that decode are bounded.
        """
        free = memory.rows.max_rows - len(memory.rows.running)
        if memory.cross is not None and not memory.cross.window:
            bounded = self._media_room > 0 and memory.cross.sliced
            begin = sum(
                not (sequence.request.inputs if bounded else waits_for_media(memory, sequence))
                for sequence in unfinished
            )
            queued = sum(count for needs, count in memory.queue.waiting.items() if "encoder" not in needs)
        else:
            begin, queued = len(unfinished), len(memory.queue)
        waiting = begin + (free and min(queued, free))
        is_burst = waiting >= _BURST and 2 * waiting >= decoding
        if is_burst and not self._burst:
            self._burst_since = now
        self._burst = waiting if is_burst else min(self._burst, waiting)
