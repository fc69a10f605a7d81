"""Steps that are waited for, whatever the model: builds the batch, runs the model, draws and reads."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from stentor.protocols.ipc.steps import Masks, RowStep, StepPlan, StepResult

from ..layers.forward_batch import LayerCache
from ..models.decoder import Decoder
from ..models.pooling_model import PoolingModel
from ..models.transformers_decoder import TransformersDecoder
from ..models.voxtral_realtime import VoxtralRealtime
from ..models.whisper import Whisper
from .batch import build_batch
from .caches import BlockCopier
from .row_sampler import RowSampler
from .rows import RowTable
from .runner import Findings, ModelRunner, RowExtras
from .speculation import Drafting, Proposer

ServedModel = Decoder | TransformersDecoder | Whisper | VoxtralRealtime | PoolingModel


@dataclass(frozen=True)
class Forwarded:
    """A step whose forward has run; its tensors stay what they are until the next one's."""

    plan: StepPlan
    rows: Sequence[RowStep]
    """Where they really were, with their drafts."""
    seconds: float
    logits: torch.Tensor | None = None
    """Of the last token of each row that draws, and of its drafts."""
    best: list[int] | None = None
    """The index of the largest of each, where it is known already."""
    states: tuple[Sequence[int], torch.Tensor] | None = None
    """Where each row begins in the hidden states, and these, where rows ask for log-probabilities of their prompts."""
    findings: Findings = field(default_factory=Findings)


SyncRunner = ModelRunner[Forwarded, StepResult]


class SyncCompute:
    """The caches and the sampler of one model, on a host or a device. A model without caches sees whole texts."""

    def __init__(
        self,
        model: ServedModel,
        caches: Sequence[LayerCache],
        *,
        slots: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
        extras: RowExtras | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        """``proposer`` proposes the drafts of rows; without one no plan may have any."""
        self.model = model
        self._caches = caches
        self._copier = BlockCopier(caches)
        self._device = device
        self.rows = RowTable(slots, max_model_len, block_size, 1 + max((cache.group for cache in caches), default=0))
        ranks = model.context.ranks if isinstance(model, Decoder) else None
        self._drafting = None if proposer is None else Drafting(proposer, self.rows.tokens)
        self._sampler = RowSampler(self.rows, model.config.vocab_size, slots, device, ranks, self._drafting)
        self._extras = extras
        self._programs = model.programs(caches) if isinstance(model, Decoder) else None
        self._step = (
            None if self._programs is None else self._programs.step_over(self.rows.tokens, self.rows.blocks, block_size)
        )

    @property
    def calls(self) -> list[str]:
        """What a pass does outside its program, in words; nothing where there is none."""
        return [] if self._programs is None else self._programs.calls

    def enter(self, plan: StepPlan) -> None:
        self._copier.copy_(plan.copies)
        self._sampler.enter(plan)
        if self._drafting is not None:
            self._drafting.enter(plan)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._sampler.remove(slot)
        if self._drafting is not None:
            self._drafting.release(slots)

    def forward(self, plan: StepPlan, began: float) -> Forwarded:
        if not plan.rows:  # media alone
            return Forwarded(plan, plan.rows, time.perf_counter() - began)
        rows: Sequence[RowStep] = plan.rows
        if self._drafting is not None:
            rows = self._drafting.lay(rows)
        elif any(row.num_drafts for row in rows):
            raise ValueError(f"step {plan.step} has drafts, and nobody here proposes any")
        alone = self._step is not None and (self._extras is None or not self._extras.concerns(rows))
        if alone and self._programs is not None and not self._programs.adapts:
            alone = not self.rows.any_adapted(rows)
        forwarded = self._run_program(plan, rows) if alone else self._run(plan, rows)
        return replace(forwarded, seconds=time.perf_counter() - began)

    def draw(self, forwarded: Forwarded, masks: Masks | None) -> StepResult:
        began = time.perf_counter()
        plan, rows = forwarded.plan, forwarded.rows
        drawn = self._sampler.draw(rows, forwarded.logits, forwarded.best, plan, masks)
        prompts = []
        if forwarded.states is not None:
            starts, hidden = forwarded.states
            prompts = self._sampler.prompt_logprobs(self.rows.prompt_work(rows, starts), hidden, self._logits)
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            tokens=drawn.tokens,
            logprobs=drawn.logprobs,
            prompt_logprobs=prompts,
            seconds=forwarded.seconds + time.perf_counter() - began,
            alignments=forwarded.findings.alignments,
            pooled=forwarded.findings.pooled,
            routed=forwarded.findings.routed,
            faults=forwarded.findings.faults,
            counts=drawn.counts,
            drafted=drawn.drafted,
            drafts=drawn.drafts,
        )

    def finish(self, pending: StepResult) -> StepResult:
        """It is there."""
        return pending

    def _run(self, plan: StepPlan, rows: Sequence[RowStep]) -> Forwarded:
        batch = build_batch(rows, self.rows, self._caches, self._device)
        if self._extras is not None:
            batch = replace(batch, forward=self._extras.extend(batch.forward, rows))
        hidden = self.model.forward(batch.forward)
        return Forwarded(
            plan,
            rows,
            0.0,
            logits=self._logits(hidden[batch.last]) if len(batch.last) else None,
            states=(batch.starts, hidden) if self.rows.want_prompt_logprobs(rows) else None,
            findings=Findings() if self._extras is None else self._extras.read(batch, rows, hidden),
        )

    def _run_program(self, plan: StepPlan, rows: Sequence[RowStep]) -> Forwarded:
        """The whole pass, from the tables of the rows to logits, as one call."""
        assert self._step is not None
        assert self._programs is not None
        assert isinstance(self.model, Decoder)
        every = self.rows.want_prompt_logprobs(rows)
        adapters = self.rows.adapters
        work = [
            (row.slot, row.start, row.count, 1 + row.num_drafts if row.sample else 0, adapters[row.slot])
            for row in rows
        ]
        found = self._step.run(work, every=every)
        states = None
        if every:
            starts = list(itertools.accumulate((row.count for row in rows[:-1]), initial=0))
            states = starts, self._programs.last_hidden(sum(row.count for row in rows))
        if found is None:
            return Forwarded(plan, rows, 0.0, states=states)
        logits, best = found
        if self.model.finishes:
            return Forwarded(plan, rows, 0.0, self.model.finished(logits), states=states)
        return Forwarded(plan, rows, 0.0, logits, best.tolist(), states)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        assert not isinstance(self.model, PoolingModel), "a model that pools draws no tokens"
        return self.model.logits(hidden)
