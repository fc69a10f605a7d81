"""Rows and their tokens, for runners whose steps are waited for: what enters, what is drawn."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from stentor.protocols.ipc.steps import Masks, PromptLogprobs, RowAlignment, RowPooled, RowStep, StepPlan, StepResult

from .masks import NO_MASKS, slot_masks
from .rows import RowTable
from .sampler import Sampler
from .token_rules import RuleTable

_LOGIT_ROWS = 64
"""Prompt positions whose logits are held at once: a vocabulary of 128k in float32 is then 32 MiB."""


@dataclass(frozen=True)
class Forwarded:
    """A step whose forward has run; its logits stay what they are until the next one's."""

    plan: StepPlan
    logits: torch.Tensor | None
    """Of the rows that draw a token."""
    best: list[int] | None
    """The index of the largest of each, where it is known already."""
    seconds: float
    alignments: list[RowAlignment] = field(default_factory=list)
    """What rows have brought of their audio."""
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    """Those that were read as soon as the forward had run."""
    pooled: list[RowPooled] = field(default_factory=list)
    """What was made of prompts."""


class RowSampler:
    """The rows of one worker and what they draw: by their parameters, their rules and the masks of a step."""

    def __init__(
        self,
        vocab_size: int,
        *,
        slots: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
        groups: int = 1,
    ) -> None:
        self.rows = RowTable(slots, max_model_len, block_size, groups)
        self.sampler = Sampler(vocab_size, slots, device)
        self._rules = RuleTable(vocab_size, device)
        self._vocab_size = vocab_size

    def enter(self, plan: StepPlan) -> None:
        """Takes over what the plan changes; rows that it frees have been released."""
        for new in plan.new:
            self.rows.add(new)
            self.sampler.add(new.slot, new.params, new.seed, new.tokens, new.prompt_len)
            self._rules.add(new)
        for row in plan.rows:
            if row.new_blocks:
                self.rows.extend(row.slot, row.new_blocks)

    def release(self, slots: list[int]) -> None:
        """Forgets the rows of these slots."""
        for slot in slots:
            self.rows.remove(slot)
            self.sampler.remove(slot)
            self._rules.remove(slot)

    def draw(self, forwarded: Forwarded, masks: Masks | None) -> StepResult:
        """The result of a step whose forward has run. ``masks`` are the step's, where it has masked rows.

        Log-probabilities are those that the rules of transcripts leave, as Whisper's thresholds expect them.
        """
        began = time.perf_counter()
        plan, logits = forwarded.plan, forwarded.logits
        tokens: list[int] = []
        logprobs = None
        if logits is not None:
            sampled = [row for row in plan.rows if row.sample]
            slots = [row.slot for row in sampled]
            self._rules.apply_(logits, slots)
            allowed = NO_MASKS if masks is None else slot_masks(masks, self._vocab_size)
            tokens, logprobs = self.sampler.sample(logits, slots, forwarded.best, allowed)
            for row, token in zip(sampled, tokens, strict=True):
                self.rows.tokens[row.slot, row.start + row.count] = token
                self._rules.append(row.slot, token)
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            tokens=tokens,
            logprobs=logprobs,
            prompt_logprobs=forwarded.prompt_logprobs,
            seconds=forwarded.seconds + time.perf_counter() - began,
            alignments=forwarded.alignments,
        )

    def prompt_logprobs(
        self,
        rows: Sequence[RowStep],
        starts: Sequence[int],
        hidden: torch.Tensor,
        logits_of: Callable[[torch.Tensor], torch.Tensor],
    ) -> list[PromptLogprobs]:
        """What a step says about prompt tokens, for the rows that asked.

        ``starts`` is where each row begins in ``hidden`` [tokens, hidden], which ``logits_of`` turns into logits.
        """
        found = []
        for row, start in zip(rows, starts, strict=True):
            top, prompt_len = self.rows.prompt_logprobs[row.slot], self.rows.prompt_len(row.slot)
            if top is None or row.start + 1 >= prompt_len:
                continue
            end = min(row.start + row.count + 1, prompt_len)
            following: list[int] = self.rows.tokens[row.slot, row.start + 1 : end].tolist()
            positions = []
            for offset in range(0, len(following), _LOGIT_ROWS):
                piece = following[offset : offset + _LOGIT_ROWS]
                logits = logits_of(hidden[start + offset : start + offset + len(piece)])
                positions += self.sampler.prompt_logprobs(logits, piece, top)
            found.append(PromptLogprobs(slot=row.slot, start=row.start + 1, positions=positions))
        return found
