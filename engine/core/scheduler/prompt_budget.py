"""Bounds the prompt tokens of a step beside rows that decode, so that no row waits long for its next token."""

from typing import Final

from stentor.protocols.ipc.steps import StepResult

from .kv_cache_manager import KVCacheManager
from .limits import Limits
from .step import InFlightStep, StepBuilder
from .step_times import StepTimes

_GRAIN: Final = 16
"""Prompt tokens beside decoding rows are a multiple of this, and at least as many: products of fewer are slower."""
_CROWDED: Final = 0.5
"""Share of the target time that a step may take while other engines wait for the device: rows wait for theirs too."""


class PromptBudget:
    """Bounds the prompts' part of each step, and keeps the state for it between steps."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._times = StepTimes()
        self._media_room = 0
        """Tokens of prompts with media that a step may compute beside decoding rows of text, from the worker; 0 if
        unknown."""

    def bound(self, step: StepBuilder, kv_cache: KVCacheManager, *, waiting: bool, crowded: bool) -> None:
        """Set the budgets for prompts of a step that has its decodes already; mutates the step.

        ``waiting``: there are prompts. ``crowded``: other engines wait for the device.
        """
        limits = self._limits
        step.decoding = len(step.rows)
        if waiting and (crowded or step.rows):
            step.budget = min(step.budget, self._beside(step.decoding, crowded=crowded))
            step.is_shared = not limits.is_pooling
        if limits.sees_all:
            step.budget = min(step.budget, limits.max_prefill_chunk)
        step.max_encodings = limits.max_mixed_encodings if crowded or step.rows else limits.max_encodings
        if kv_cache.cross is not None:
            step.sliced = kv_cache.cross.sliced
            step.whole_prompts = kv_cache.cross.whole_prompts or kv_cache.cross.joined
            bounded = step.sliced and not kv_cache.cross.whole and self._media_room
            if bounded and (crowded or any(not sequence.request.media.spans for sequence, *_ in step.owners)):
                step.media_budget = self._media_room

    def learn(self, flight: InFlightStep, result: StepResult) -> None:
        """Record how long a step took, and the worker's bound on tokens of prompts with media."""
        self._media_room = result.media_room or self._media_room
        if not flight.readers:  # the time of encodings is none of tokens
            prompts = sum([row.count for row in flight.rows[flight.decoding :]])
            self._times.learn(flight.decoding, prompts, result.seconds)

    def _beside(self, decoding: int, *, crowded: bool) -> int:
        """Prompt tokens of a step with so many decoding rows.

        As many as keep the step within the target time, but prompts get at least half of the time, also where decoding
        alone takes longer than that. Pooling models have a bound in tokens only: others wait for a layer of them, or
        their worker has chosen the tokens by the time of a whole pass.
        """
        most, target = self._limits.max_mixed_prefill_tokens, self._limits.target_itl
        if not target or self._limits.is_pooling:
            return most
        tokens = min(most, self._times.prompt_tokens(decoding, target * (_CROWDED if crowded else 1)))
        return min(most, max(_GRAIN, int(tokens) // _GRAIN * _GRAIN))
