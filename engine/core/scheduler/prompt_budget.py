"""Bounds the prompt tokens of a step beside rows that decode, except in a burst of prompts."""

import math

from ..sequence import Sequence
from .kv_cache_manager import KVCacheManager
from .limits import Limits
from .prefill import waits_for_media
from .step import StepBuilder

_BURST = 4
"""Prompts that make a burst, if they are also at least half as many as the rows that decode."""
_YIELDING_SECONDS = 1.0
"""From the beginning of a burst, its rows wait this long with their second tokens for the first tokens of the rest."""


class PromptBudget:
    """Bounds the prompts' part of each step, and keeps the state for it between steps."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._burst = 0
        """Prompts of the burst that have not begun or are not computed to their end."""
        self._burst_since = 0.0
        self._media_room = 0
        """Tokens of prompts with media that a step may compute beside decoding rows of text, from the worker; 0 if
        unknown."""

    def yielding_from(self, now: float) -> float:
        """Rows of requests that began at or after this time do not decode yet; infinity if all do.

        A row costs as much in a step with prompts as in one without, and the first tokens of the rest of the burst
        would wait for it. Rows that decoded before the burst are not delayed.
        """
        return self._burst_since if self._burst and now < self._burst_since + _YIELDING_SECONDS else math.inf

    def bound(
        self, step: StepBuilder, memory: KVCacheManager, unfinished: list[Sequence], now: float, *, crowded: bool
    ) -> None:
        """Set the budgets for prompts of a step that has its decodes already; mutates the step.

        ``unfinished``: running prefills. ``crowded``: other engines wait for the device.
        """
        limits = self._limits
        self._note_burst(len(step.rows), memory, unfinished, now)
        if crowded or (step.rows and not self._burst):
            step.budget = min(step.budget, limits.max_mixed_prefill_tokens)
        if limits.sees_all:
            step.budget = min(step.budget, limits.max_prefill_chunk)
        step.max_encodings = limits.max_mixed_encodings if crowded or step.rows else limits.max_encodings
        if memory.cross is not None:
            step.whole_spans, step.sliced = memory.cross.whole > 0, memory.cross.sliced
            step.whole_prompts = memory.cross.whole_prompts
            bounded = step.sliced and not step.whole_spans and self._media_room
            if bounded and (crowded or any(not sequence.request.inputs for sequence, *_ in step.owners)):
                step.media_budget = self._media_room

    def begun(self, prompts: int) -> None:
        """Count the prompts that begin with the step."""
        self._burst = max(0, self._burst - prompts)

    def told(self, media_room: int) -> None:
        """Record the worker's bound on tokens of prompts with media; 0: no news."""
        self._media_room = media_room or self._media_room

    def _note_burst(self, decoding: int, memory: KVCacheManager, unfinished: list[Sequence], now: float) -> None:
        """Count the prompts that could begin, and note whether they are a burst, in which decoding rows are not spared.

        Small chunks would not shorten the total wait of those rows, only spread it, and the burst would wait longer for
        its first tokens. The burst lasts to its last prompt, however many of it decode by then. Prompts that wait for
        media do not count, nor do prompts with media where their tokens beside decoding rows are bounded.
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
