"""Runs steps: applies a plan's changes, builds the batch, runs the model, samples."""

import itertools
import time
from dataclasses import dataclass, field

import torch

from stentor.protocols.ipc.steps import Masks, PromptLogprobs, RowAlignment, RowPooled, RowStep, StepPlan, StepResult

from ..layers.attention import LayerCache
from ..models.decoder import Decoder
from .batch import build_batch
from .masks import NO_MASKS, slot_masks
from .prompt_logprobs import read_prompt_logprobs
from .rows import RowTable
from .sampler import Sampler


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


class ModelRunner:
    """Owns the rows, the KV cache and the sampler of one model on one device.

    Steps must come in order: a decode row's input is the token that the step before drew.
    """

    def __init__(
        self,
        model: Decoder,
        caches: list[LayerCache],
        *,
        slots: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._caches = caches
        self._device = device
        self._rows = RowTable(slots, max_model_len, block_size)
        self._sampler = Sampler(model.config.vocab_size, slots, device)
        self._programs = model.programs(caches)
        self._step = (
            None
            if self._programs is None
            else self._programs.step_over(self._rows.tokens, self._rows.blocks, block_size)
        )
        self._hidden = torch.empty(0)
        """Of the last step, where it was not run by programs."""

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        """Runs one step and keeps the drawn tokens for the next."""
        return self.draw(self.forward(plan))

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Forwarded:
        """The first half of a step; :meth:`draw` must follow before anything else."""
        began = time.perf_counter()
        self._apply(plan)
        logits, best = self._forward(plan.rows)
        return Forwarded(plan, logits, best, time.perf_counter() - began)

    @torch.inference_mode()
    def draw(self, forwarded: Forwarded, masks: Masks | None = None) -> StepResult:
        """The second half: draws the tokens. ``masks`` are the step's, where it has masked rows."""
        began = time.perf_counter()
        plan = forwarded.plan
        rows = plan.rows
        tokens: list[int] = []
        logprobs = None
        if forwarded.logits is not None:
            sampled = [row for row in rows if row.sample]
            allowed = NO_MASKS if masks is None else slot_masks(masks, self._model.config.vocab_size)
            tokens, logprobs = self._sampler.sample(
                forwarded.logits, [row.slot for row in sampled], forwarded.best, allowed
            )
            known = self._rows.tokens
            for row, token in zip(sampled, tokens, strict=True):
                known[row.slot, row.start + row.count] = token
        prompt_logprobs = self._prompt_logprobs(rows) if self._wants_prompt_logprobs(rows) else []
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            tokens=tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            seconds=forwarded.seconds + time.perf_counter() - began,
        )

    def release(self, slots: list[int]) -> None:
        """Forgets the rows of these slots."""
        for slot in slots:
            self._rows.remove(slot)
            self._sampler.remove(slot)

    def _forward(self, rows: list[RowStep]) -> tuple[torch.Tensor | None, list[int] | None]:
        """The logits of rows that draw a token, and the index of the largest of each where it is known already."""
        if self._step is None:
            batch = build_batch(rows, self._rows, self._device)
            self._hidden = self._model.forward(batch.tokens, batch.positions, self._caches, batch.attention)
            return (self._model.logits(self._hidden[batch.last]) if len(batch.last) else None), None
        every = self._wants_prompt_logprobs(rows)
        found = self._step.run([(row.slot, row.start, row.count, row.sample) for row in rows], every=every)
        if found is None:
            return None, None
        logits, best = found
        if self._model.finishes:
            return self._model.finished(logits), None
        return logits, best.tolist()

    def _apply(self, plan: StepPlan) -> None:
        self.release(plan.freed)
        for new in plan.new:
            self._rows.add(new)
            self._sampler.add(new.slot, new.params, new.seed, new.tokens, new.prompt_len)
        for row in plan.rows:
            if row.new_blocks:
                self._rows.extend(row.slot, row.new_blocks)

    def _wants_prompt_logprobs(self, rows: list[RowStep]) -> bool:
        top_logprobs = self._rows.prompt_logprobs
        return any(top_logprobs[row.slot] is not None for row in rows)

    def _prompt_logprobs(self, rows: list[RowStep]) -> list[PromptLogprobs]:
        """What the step says about prompt tokens, for the rows that asked."""
        hidden = self._hidden
        if self._programs is not None:
            hidden = self._programs.last_hidden(sum(row.count for row in rows))
        starts = itertools.accumulate((row.count for row in rows[:-1]), initial=0)
        return read_prompt_logprobs(rows, list(starts), self._rows, hidden, self._model.logits, self._sampler)
