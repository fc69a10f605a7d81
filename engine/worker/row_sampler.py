"""Rows and their tokens, for runners that call the operations of a model one by one: what enters, what is drawn."""

import time

import torch

from stentor.protocols.ipc.steps import Masks, StepPlan, StepResult

from .masks import NO_MASKS, slot_masks
from .rows import RowTable
from .runner import Forwarded
from .sampler import Sampler
from .token_rules import RuleTable


class RowSampler:
    """The rows of one worker and what they draw: by their parameters, their rules and the masks of a step."""

    def __init__(
        self, vocab_size: int, *, slots: int, max_model_len: int, block_size: int, device: torch.device
    ) -> None:
        self.rows = RowTable(slots, max_model_len, block_size)
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
            tokens, logprobs = self.sampler.sample(logits, slots, None, allowed)
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
