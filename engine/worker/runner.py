"""Runs steps: applies a plan's changes, builds the batch, runs the model, samples."""

import itertools
import time

import msgspec
import torch

from stentor.protocols.ipc.steps import Masks, RowStep, StepPlan, StepResult

from ..layers.forward_batch import LayerCache
from ..models.decoder import Decoder
from .batch import build_batch
from .row_sampler import Forwarded, RowSampler


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
        self._row_sampler = RowSampler(
            model.config.vocab_size,
            slots=slots,
            max_model_len=max_model_len,
            block_size=block_size,
            groups=1 + max(cache.group for cache in caches),
            device=device,
        )
        self._rows = self._row_sampler.rows
        self._programs = model.programs(caches)
        self._step = (
            None
            if self._programs is None
            else self._programs.step_over(self._rows.tokens, self._rows.blocks, block_size)
        )
        self._hidden = torch.empty(0)
        """Of the last step, where it was not run by programs."""

    @property
    def calls(self) -> list[str]:
        """What a pass does outside its program, in words; nothing where there is none."""
        return [] if self._programs is None else self._programs.calls

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        """Runs one step and keeps the drawn tokens for the next."""
        return self.draw(self.forward(plan))

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Forwarded:
        """The first half of a step; :meth:`draw` must follow before anything else."""
        began = time.perf_counter()
        self.release(plan.freed)
        self._row_sampler.enter(plan)
        logits, best = self._forward(plan.rows)
        return Forwarded(plan, logits, best, time.perf_counter() - began)

    @torch.inference_mode()
    def draw(self, forwarded: Forwarded, masks: Masks | None = None) -> StepResult:
        """The second half: draws the tokens. ``masks`` are the step's, where it has masked rows."""
        began = time.perf_counter()
        result = self._row_sampler.draw(forwarded, masks)
        rows = forwarded.plan.rows
        if not self._wants_prompt_logprobs(rows):
            return result
        hidden = self._hidden
        if self._programs is not None and self._step is not None:
            hidden = self._programs.last_hidden(sum(row.count for row in rows))
        starts = list(itertools.accumulate((row.count for row in rows[:-1]), initial=0))
        found = self._row_sampler.prompt_logprobs(rows, starts, hidden, self._model.logits)
        seconds = forwarded.seconds + time.perf_counter() - began
        return msgspec.structs.replace(result, prompt_logprobs=found, seconds=seconds)

    def release(self, slots: list[int]) -> None:
        """Forgets the rows of these slots."""
        self._row_sampler.release(slots)

    def _forward(self, rows: list[RowStep]) -> tuple[torch.Tensor | None, list[int] | None]:
        """The logits of rows that draw a token, and the index of the largest of each where it is known already."""
        if self._step is None:
            batch = build_batch(rows, self._rows, self._caches, self._device)
            self._hidden = self._model.forward(batch.forward)
            return (self._model.logits(self._hidden[batch.last]) if len(batch.last) else None), None
        every = self._wants_prompt_logprobs(rows)
        found = self._step.run([(row.slot, row.start, row.count, row.sample) for row in rows], every=every)
        if found is None:
            return None, None
        logits, best = found
        if self._model.finishes:
            return self._model.finished(logits), None
        return logits, best.tolist()

    def _wants_prompt_logprobs(self, rows: list[RowStep]) -> bool:
        top_logprobs = self._rows.prompt_logprobs
        return any(top_logprobs[row.slot] is not None for row in rows)
