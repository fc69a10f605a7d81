"""What rows draw, for a runner whose steps are waited for: by their parameters, their rules and the masks of a step."""

from collections.abc import Callable, Iterable, Sequence

import torch

from stentor.protocols.ipc.steps import Masks, PromptLogprobs, RowStep, StepPlan, TokenLogprobs

from ..layers.rank_group import RankGroup
from .masks import NO_MASKS, slot_masks
from .rows import PromptWork, RowTable
from .sampler import Sampler
from .token_rules import RuleTable


class RowSampler:
    """Rows that are pooled draw nothing, and take no place here."""

    def __init__(
        self, rows: RowTable, vocab_size: int, slots: int, device: torch.device, ranks: RankGroup | None = None
    ) -> None:
        """``ranks``: see :class:`.sampler.Sampler`."""
        self._rows = rows
        self._sampler = Sampler(vocab_size, slots, device, ranks)
        self._rules = RuleTable(vocab_size, device)
        self._vocab_size = vocab_size

    def enter(self, plan: StepPlan) -> None:
        """Takes over the rows that come; those that the plan frees have been removed."""
        for new in plan.new:
            if new.pooling is None:
                self._sampler.add(new.slot, new.params, new.seed, new.tokens, new.prompt_len)
                self._rules.add(new)

    def remove(self, slot: int) -> None:
        self._sampler.remove(slot)
        self._rules.remove(slot)

    def draw(
        self, rows: Sequence[RowStep], logits: torch.Tensor | None, best: list[int] | None, masks: Masks | None
    ) -> tuple[list[int], list[TokenLogprobs | None] | None]:
        """A token for each row that draws one, from its ``logits``, which may be mutated; and log-probabilities where
        any asks. ``best`` are the indices of the largest, where they are known; ``masks`` are the step's, where it has
        masked rows.

        Log-probabilities are those that the rules of transcripts leave, as Whisper's thresholds expect them.
        """
        if logits is None:
            return [], None
        sampled = [row for row in rows if row.sample]
        slots = [row.slot for row in sampled]
        self._rules.apply_(logits, slots)
        allowed = NO_MASKS if masks is None else slot_masks(masks, self._vocab_size)
        tokens, logprobs = self._sampler.sample(logits, slots, best, allowed)
        for row, token in zip(sampled, tokens, strict=True):
            self._rows.tokens[row.slot, row.start + row.count] = token
            self._rules.append(row.slot, token)
        return tokens, logprobs

    def prompt_logprobs(
        self, work: Iterable[PromptWork], hidden: torch.Tensor, logits_of: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[PromptLogprobs]:
        """What a step says about prompt tokens, of ``hidden`` [tokens, hidden], which ``logits_of`` turns into
        logits."""
        found = []
        for each in work:
            positions: list[TokenLogprobs] = []
            for first, tokens in each.pieces():
                logits = logits_of(hidden[first : first + len(tokens)])
                positions += self._sampler.prompt_logprobs(logits, tokens, each.top)
            found.append(PromptLogprobs(slot=each.slot, start=each.start, positions=positions))
        return found
