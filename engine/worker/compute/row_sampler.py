"""Samples a step's rows for a runner that waits for its steps: parameters, rules, masks, drafts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain

import msgspec
import torch

from stentor.protocols.ipc.steps import Masks, PromptLogprobs, RowDrafts, RowStep, StepPlan, TokenLogprobs

from ..rows.rows import PromptWork, RowTable
from ..sampling.logprobs import Alternatives
from ..sampling.masks import NO_MASKS, SlotMasks, mask_counts, position_masks
from ..sampling.sampler import Sampler
from ..sampling.token_rules import RuleTable
from ..speculation import Drafting, verify


class SampledTokens(msgspec.Struct, frozen=True):
    """Sampling results, as in :class:`stentor.protocols.ipc.steps.StepResult`."""

    tokens: list[int]
    logprobs: list[TokenLogprobs | None] | None = None
    counts: list[int] | None = None
    drafted: list[int] | None = None
    drafts: list[RowDrafts] = msgspec.field(default_factory=list)


class RowSampler:
    """Rows that are pooled do not sample and are not added here."""

    def __init__(
        self,
        rows: RowTable,
        sampler: Sampler,
        vocab_size: int,
        device: torch.device,
        drafting: Drafting | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """
        Args:
            drafting: gets the tokens that rows gain.
            at_once: sample all positions of rows with drafts before any of them is read, as a device should; else
                those behind a refused draft are not sampled.
        """
        self._rows = rows
        self._at_once = at_once
        self._drafting = drafting
        self._sampler = sampler
        self._rules = RuleTable(vocab_size, device)
        self._vocab_size = vocab_size

    def enter(self, plan: StepPlan) -> None:
        """Add the plan's new rows; freed rows have been removed."""
        for new in plan.new:
            if new.pooling is None:
                self._sampler.add(new.slot, new.params, new.seed, new.tokens, new.prompt_len)
                self._rules.add(new)

    def remove(self, slot: int) -> None:
        self._sampler.remove(slot)
        self._rules.remove(slot)

    def draw(
        self,
        rows: Sequence[RowStep],
        logits: torch.Tensor | None,
        best: list[int] | None,
        plan: StepPlan,
        masks: Masks | None,
    ) -> SampledTokens:
        """Sample each row that samples.

        Log-probabilities are taken after the transcript rules, as Whisper's thresholds expect.

        Args:
            logits: of each row's last token and its drafts; may be mutated.
            best: the argmax of each, if known.
            masks: the step's, if ``plan`` has masked rows.
        """
        if logits is None:
            return SampledTokens([])
        sampled = [row for row in rows if row.sample]
        allowed = [NO_MASKS] if masks is None else position_masks(masks, self._vocab_size) or [NO_MASKS]
        if self._drafting is not None and any(row.num_drafts for row in sampled):
            return self._verify(self._drafting, sampled, logits, best, allowed, _limits(plan, masks))
        slots = [row.slot for row in sampled]
        tokens, logprobs = self._sample(slots, logits, best, allowed[0])
        if self._drafting is None:
            for row, token in zip(sampled, tokens, strict=True):
                self._rows.tokens[row.slot, row.start + row.count] = token
            return SampledTokens(tokens, logprobs)
        for slot, token in zip(slots, tokens, strict=True):
            self._drafting.gained(slot, [token])
        return SampledTokens(tokens, logprobs, drafts=self._drafting.announce(sampled))

    def _verify(
        self,
        drafting: Drafting,
        sampled: Sequence[RowStep],
        logits: torch.Tensor,
        best: list[int] | None,
        allowed: Sequence[SlotMasks],
        limits: Mapping[int, int],
    ) -> SampledTokens:
        """Sample each row with drafts; a row gains at most ``limits`` of its slot tokens."""
        slots = [row.slot for row in sampled]
        firsts = list(accumulate((1 + row.num_drafts for row in sampled), initial=0))
        by_row: list[list[TokenLogprobs | None]] = [[] for _ in sampled]
        ahead = None
        if self._at_once and not any(allowed):
            ahead = self._sampler.ahead(
                logits,
                [row.slot for row in sampled for _ in range(1 + row.num_drafts)],
                [behind for row in sampled for behind in range(1 + row.num_drafts)],
            )

        def draw(behind: int, places: list[int]) -> list[int]:
            at = [firsts[place] + behind for place in places]
            if ahead is not None:
                return self._sampler.take([slots[place] for place in places], [ahead[each] for each in at])
            known = None if best is None else [best[each] for each in at]
            masks = allowed[behind] if behind < len(allowed) else NO_MASKS
            drawing = [slots[place] for place in places]
            own = logits if len(at) == len(logits) or self._is_known(drawing, known, masks) else logits[at]
            tokens, logprobs = self._sample(drawing, own, known, masks)
            for place, entry in zip(places, logprobs or [None] * len(places), strict=True):
                by_row[place].append(entry)
            return tokens

        drafts = [drafting.drafts(slot) for slot in slots]
        tokens = verify(drafts, [limits.get(slot, 1 + len(own)) for slot, own in zip(slots, drafts, strict=True)], draw)
        for slot, gained in zip(slots, tokens, strict=True):
            drafting.gained(slot, gained)
        logprobs = list(chain.from_iterable(by_row))
        return SampledTokens(
            list(chain.from_iterable(tokens)),
            logprobs if any(entry is not None for entry in logprobs) else None,
            [len(gained) for gained in tokens],
            [row.num_drafts for row in sampled],
            drafting.announce(sampled),
        )

    def _is_known(self, slots: Sequence[int], best: list[int] | None, masks: SlotMasks) -> bool:
        """Whether the known argmaxes are all that these rows need."""
        return best is not None and not masks and self._sampler.are_plain(slots)

    def _sample(
        self, slots: Sequence[int], logits: torch.Tensor, best: list[int] | None, masks: SlotMasks
    ) -> tuple[list[int], list[TokenLogprobs | None] | None]:
        self._rules.apply_(logits, slots)
        tokens, logprobs = self._sampler.sample(logits, slots, best, masks)
        for slot, token in zip(slots, tokens, strict=True):
            self._rules.append(slot, token)
        return tokens, logprobs

    def prompt_logprobs(
        self, work: Iterable[PromptWork], logits_of: Callable[[int, int], torch.Tensor]
    ) -> list[PromptLogprobs]:
        """Log-probabilities of prompt tokens.

        ``logits_of(first, count)`` makes the logits of ``count`` positions of the step's batch from ``first`` on.
        """
        found = []
        for each in work:
            positions: list[TokenLogprobs] = []
            for first, tokens in each.pieces():
                logits = logits_of(first, len(tokens))
                positions += self._sampler.prompt_logprobs(logits, tokens, Alternatives(each.top, logits=each.logits))
            found.append(PromptLogprobs(slot=each.slot, start=each.start, positions=positions))
        return found


def _limits(plan: StepPlan, masks: Masks | None) -> Mapping[int, int]:
    """Most tokens that each masked row may gain: as many as it has masks, at least one."""
    counts: Mapping[int, int] = {} if masks is None else mask_counts(masks)
    return {slot: max(1, counts.get(slot, 1)) for slot in plan.masked}
