"""Computes steps and waits for each, for any model: runs the rows, samples and reads."""

import time
from collections.abc import Sequence

import msgspec
import torch

from stentor.protocols.ipc.steps import Masks, RowStep, StepPlan, StepResult

from ...layers.forward_batch import LayerCache
from ...layers.linear.adapters import rows_among
from ...models.decoder import Decoder
from ...models.draft_head import DraftHead
from ..caches import BlockCopier, cache_tensors
from ..passes.model_pass import ModelPass, PassResult, ServedModel
from ..passes.pass_graphs import GraphsOf, PassGraphs
from ..rows.extras import RowExtras, extra_of
from ..rows.rows import RowLimits, RowTable
from ..rows.states import RowStates
from ..sampling.sampler import Sampler
from ..speculation import AnyHeadPass, Drafting, DraftModel, PlainPass, Proposer, ProposingModel, head_pass_of
from .row_sampler import RowSampler
from .runner import ModelRunner


class Forwarded(msgspec.Struct, frozen=True):
    """A step whose forward has run; its tensors are valid until the next one's."""

    plan: StepPlan
    rows: Sequence[RowStep]
    """At their real positions, with drafts."""
    seconds: float
    passed: PassResult = msgspec.field(default_factory=PassResult)


SyncRunner = ModelRunner[Forwarded, StepResult]


class SyncCompute:
    """The caches and the sampler of one model, on a host or a device. A pooling model of whole texts has no caches."""

    def __init__(
        self,
        model: ServedModel,
        caches: Sequence[LayerCache],
        device: torch.device,
        limits: RowLimits,
        *,
        extras: RowExtras | None,
        drafts: Proposer | ProposingModel | None,
        host: torch.Tensor | None,
        graphs: GraphsOf | None,
    ) -> None:
        """
        Args:
            extras: what rows have besides tokens; the runner enters and releases it.
            drafts: what proposes drafts; without it, plans must not have any.
            host: memory of the host tier.
            graphs: makes the graphs of the model's passes.
        """
        self.model = model
        draft, proposer = (drafts, None) if isinstance(drafts, ProposingModel) else (None, drafts)
        shares = draft is not None and isinstance(draft.model, DraftHead) and draft.model.spec.shares_keys
        kept = caches if draft is None or shares else [*caches, *draft.caches]
        self._copier = BlockCopier(cache_tensors(kept), host)
        groups = 1 + max((cache.group for cache in kept), default=0)
        self.rows = RowTable(limits.slots, limits.max_model_len, limits.block_size, groups, limits.chunk)
        ranks = model.context.ranks if isinstance(model, Decoder) else None
        vocab_size = model.config.vocab_size
        sampler = Sampler(vocab_size, limits.slots, device, ranks)
        self.graphs: list[PassGraphs] = []
        """Of the model, and of a model that drafts for it."""
        self._drafting = None if proposer is None else Drafting(proposer, self.rows.tokens)
        self._head: AnyHeadPass | None = None
        self._taps: tuple[int, ...] = ()
        """Layers before which the draft head takes the stream."""
        if draft is not None:
            if isinstance(draft.model, DraftHead):
                self._taps = draft.model.spec.taps
                self._head = head_pass_of(draft.model.spec)(draft.model, draft.caches, self.rows, device)
                drafter = DraftModel(self._head, self.rows, sampler, draft.most, behind=1)
            else:
                own = None if graphs is None else graphs(draft.model, draft.caches, self.rows)
                plain = PlainPass(ModelPass(draft.model, draft.caches, self.rows, device, own))
                drafter = DraftModel(plain, self.rows, sampler, draft.most)
                self.graphs += [own] if own is not None else []
            self._drafting = Drafting(drafter, self.rows.tokens, drafter)
        at_once = device.type != "cpu" or graphs is not None
        self._sampler = RowSampler(self.rows, sampler, vocab_size, device, self._drafting, at_once=at_once)
        self._extras = extras
        replayed: PassGraphs | None = None
        if graphs is not None:
            assert isinstance(model, Decoder)
            states = extra_of(extras, RowStates)
            replayed = graphs(
                model, caches, self.rows, states=states, keeps_hidden=self._head is not None, taps=self._taps
            )
            self.graphs.insert(0, replayed)
        self._pass = ModelPass(model, caches, self.rows, device, replayed)

    @property
    def calls(self) -> list[str]:
        """Operations of a pass outside its program, in words."""
        return self._pass.calls

    def enter(self, plan: StepPlan) -> None:
        self._copier.copy_(plan.copies)
        for graphs in self.graphs:
            graphs.enter(plan.new)
        self._sampler.enter(plan)
        if self._drafting is not None:
            self._drafting.enter(plan)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._sampler.remove(slot)
        if self._drafting is not None:
            self._drafting.release(slots)

    def forward(self, plan: StepPlan, began: float) -> Forwarded:
        if not plan.rows:  # only media
            return Forwarded(plan, plan.rows, time.perf_counter() - began)
        rows: Sequence[RowStep] = plan.rows
        if self._drafting is not None:
            rows = self._drafting.lay(rows)
        elif any(row.num_drafts for row in rows):
            raise ValueError(f"step {plan.step} has drafts, and nobody here proposes any")
        every = self._head is not None or self.rows.want_prompt_logprobs(rows)
        passed = self._pass.run(rows, self._extras, every=every, taps=self._taps)
        if self._head is not None:
            self._head.observed(rows, passed)
        return Forwarded(plan, rows, time.perf_counter() - began, passed)

    def draw(self, forwarded: Forwarded, masks: Masks | None) -> StepResult:
        began = time.perf_counter()
        plan, rows, passed = forwarded.plan, forwarded.rows, forwarded.passed
        drawn = self._sampler.draw(rows, passed.logits, passed.best, plan, masks)
        prompts = []
        if passed.states is not None:
            starts, hidden = passed.states
            adapters, device = passed.adapters, hidden.device

            def logits_of(first: int, count: int) -> torch.Tensor:
                wanted = torch.arange(first, first + count, device=device)
                return self._pass.logits(hidden[first : first + count], rows_among(adapters, wanted, len(hidden)))

            prompts = self._sampler.prompt_logprobs(self.rows.prompt_work(rows, starts), logits_of)
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            tokens=drawn.tokens,
            logprobs=drawn.logprobs,
            prompt_logprobs=prompts,
            seconds=forwarded.seconds + time.perf_counter() - began,
            alignments=passed.findings.alignments,
            pooled=passed.findings.pooled,
            routed=passed.findings.routed,
            faults=passed.findings.faults,
            counts=drawn.counts,
            drafted=drawn.drafted,
            drafts=drawn.drafts,
        )

    def finish(self, pending: StepResult) -> StepResult:
        """The result, which is ready."""
        return pending
