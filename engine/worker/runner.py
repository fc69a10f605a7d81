"""Runs steps, whatever the model: applies a plan's changes, builds the batch, runs the model, draws and reads."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from stentor.protocols.ipc.inputs import ArenaRef
from stentor.protocols.ipc.steps import Masks, RowAlignment, RowPooled, RowStep, StepPlan, StepResult

from ..layers.forward_batch import ForwardBatch, LayerCache
from ..models.decoder import Decoder
from ..models.pooling_model import PoolingModel
from ..models.transformers_decoder import TransformersDecoder
from ..models.voxtral_realtime import VoxtralRealtime
from ..models.whisper import Whisper
from .batch import Batch, build_batch
from .row_sampler import RowSampler
from .rows import RowTable

ServedModel = Decoder | TransformersDecoder | Whisper | VoxtralRealtime | PoolingModel


@dataclass(frozen=True)
class Findings:
    """What a pass has brought besides tokens."""

    alignments: list[RowAlignment] = field(default_factory=list)
    pooled: list[RowPooled] = field(default_factory=list)


MediaReader = Callable[[ArenaRef], bytes | memoryview]
"""Reads what a request has brought, for as long as it is not released."""


class RowExtras(Protocol):
    """What the rows of a model bring besides tokens, and what they ask for besides tokens."""

    yield_device: Callable[[], None] | None
    """Called between the parts of a step that takes long, where others compute on the device as well."""
    media: MediaReader

    def enter(self, plan: StepPlan) -> None:
        """Takes over what the plan changes; rows that it frees have been released."""

    def release(self, slots: Sequence[int]) -> None:
        """Forgets the rows of these slots."""

    def extend(self, batch: ForwardBatch, rows: Sequence[RowStep]) -> ForwardBatch:
        """The batch with what its rows bring."""

    def read(self, batch: Batch, rows: Sequence[RowStep], hidden: torch.Tensor) -> Findings:
        """What the rows ask of a pass that has returned ``hidden``."""


def no_media(ref: ArenaRef) -> bytes | memoryview:
    """Of a model that is being set up: nothing has been brought. Raises ValueError for anything else."""
    if ref.length:
        raise ValueError(f"{ref.length} bytes of media came, and the worker was given no arena to read them from")
    return b""


@dataclass(frozen=True)
class Forwarded:
    """A step whose forward has run; its tensors stay what they are until the next one's."""

    plan: StepPlan
    seconds: float
    logits: torch.Tensor | None = None
    """Of the rows that draw a token."""
    best: list[int] | None = None
    """The index of the largest of each, where it is known already."""
    states: tuple[Sequence[int], torch.Tensor] | None = None
    """Where each row begins in the hidden states, and these, where rows ask for log-probabilities of their prompts."""
    findings: Findings = field(default_factory=Findings)


class ModelRunner:
    """Owns the rows, the KV cache and the sampler of one model, on a host or a device.

    Steps must come in order: a decode row's input is the token that the step before drew. Each is waited for, also on a
    device. A model without caches sees whole texts.
    """

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
    ) -> None:
        self.model = model
        self._caches = caches
        self.device = device
        groups = 1 + max((cache.group for cache in caches), default=0)
        self._rows = RowTable(slots, max_model_len, block_size, groups)
        self._sampler = RowSampler(self._rows, model.config.vocab_size, slots, device)
        self.extras = extras
        self._programs = model.programs(caches) if isinstance(model, Decoder) else None
        self._step = (
            None
            if self._programs is None
            else self._programs.step_over(self._rows.tokens, self._rows.blocks, block_size)
        )

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
        self._rows.enter(plan)
        self._sampler.enter(plan)
        if self.extras is not None:
            self.extras.enter(plan)
        forwarded = self._run(plan) if self._step is None else self._run_program(plan)
        return replace(forwarded, seconds=time.perf_counter() - began)

    @torch.inference_mode()
    def draw(self, forwarded: Forwarded, masks: Masks | None = None) -> StepResult:
        """The second half: draws the tokens. ``masks`` are the step's, where it has masked rows."""
        began = time.perf_counter()
        plan = forwarded.plan
        tokens, logprobs = self._sampler.draw(plan.rows, forwarded.logits, forwarded.best, masks)
        prompts = []
        if forwarded.states is not None:
            starts, hidden = forwarded.states
            prompts = self._sampler.prompt_logprobs(self._rows.prompt_work(plan.rows, starts), hidden, self._logits)
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            tokens=tokens,
            logprobs=logprobs,
            prompt_logprobs=prompts,
            seconds=forwarded.seconds + time.perf_counter() - began,
            alignments=forwarded.findings.alignments,
            pooled=forwarded.findings.pooled,
        )

    def release(self, slots: list[int]) -> None:
        """Forgets the rows of these slots; what is encoded stays where it is."""
        for slot in slots:
            self._rows.remove(slot)
            self._sampler.remove(slot)
        if self.extras is not None:
            self.extras.release(slots)

    def _run(self, plan: StepPlan) -> Forwarded:
        rows = plan.rows
        batch = build_batch(rows, self._rows, self._caches, self.device)
        if self.extras is not None:
            batch = replace(batch, forward=self.extras.extend(batch.forward, rows))
        hidden = self.model.forward(batch.forward)
        return Forwarded(
            plan,
            0.0,
            logits=self._logits(hidden[batch.last]) if len(batch.last) else None,
            states=(batch.starts, hidden) if self._rows.want_prompt_logprobs(rows) else None,
            findings=Findings() if self.extras is None else self.extras.read(batch, rows, hidden),
        )

    def _run_program(self, plan: StepPlan) -> Forwarded:
        """The whole pass, from the tables of the rows to logits, as one call."""
        assert self._step is not None
        assert self._programs is not None
        assert isinstance(self.model, Decoder)
        rows = plan.rows
        every = self._rows.want_prompt_logprobs(rows)
        found = self._step.run([(row.slot, row.start, row.count, row.sample) for row in rows], every=every)
        states = None
        if every:
            starts = list(itertools.accumulate((row.count for row in rows[:-1]), initial=0))
            states = starts, self._programs.last_hidden(sum(row.count for row in rows))
        if found is None:
            return Forwarded(plan, 0.0, states=states)
        logits, best = found
        if self.model.finishes:
            return Forwarded(plan, 0.0, self.model.finished(logits), states=states)
        return Forwarded(plan, 0.0, logits, best.tolist(), states)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        assert not isinstance(self.model, PoolingModel), "a model that pools draws no tokens"
        return self.model.logits(hidden)
