"""The one runner of a worker: the rows of a model, what they bring, and the steps that they run in."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch

from stentor.protocols.ipc.inputs import ArenaRef
from stentor.protocols.ipc.steps import (
    Masks,
    RowAlignment,
    RowExperts,
    RowFault,
    RowPooled,
    RowStep,
    StepPlan,
    StepResult,
)

from ..layers.forward_batch import ForwardBatch
from .batch import Batch
from .rows import RowTable


@dataclass(frozen=True)
class Findings:
    """What a pass has brought besides tokens."""

    alignments: list[RowAlignment] = field(default_factory=list)
    pooled: list[RowPooled] = field(default_factory=list)
    routed: list[RowExperts] = field(default_factory=list)
    faults: list[RowFault] = field(default_factory=list)


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

    def concerns(self, rows: Sequence[RowStep]) -> bool:
        """Whether a pass over these rows is any other than it would be without."""

    def extend(self, batch: ForwardBatch, rows: Sequence[RowStep]) -> ForwardBatch:
        """The batch with what its rows bring."""

    def read(self, batch: Batch, rows: Sequence[RowStep], hidden: torch.Tensor) -> Findings:
        """What the rows ask of a pass that has returned ``hidden``."""

    def ended(self, result: StepResult) -> StepResult:
        """A step has ended. Returns its result, with what slices of media have completed in it."""


def no_media(ref: ArenaRef) -> bytes | memoryview:
    """Of a model that is being set up: nothing has been brought. Raises ValueError for anything else."""
    if ref.length:
        raise ValueError(f"{ref.length} bytes of media came, and the worker was given no arena to read them from")
    return b""


F = TypeVar("F")
P = TypeVar("P")


class StepCompute(Protocol[F, P]):
    """How steps are computed: at once (:class:`.sync_compute.SyncCompute`), or queued on a device that nobody waits for
    (:class:`.async_compute.AsyncCompute`).

    ``F`` is a step between its two halves, ``P`` one that has been drawn and whose result may still be on its way.
    """

    rows: RowTable
    """What is known of each row; the runner enters and removes them."""

    def enter(self, plan: StepPlan) -> None:
        """Takes over what the plan changes. The table of rows has it already; rows that it frees are released."""

    def release(self, slots: Sequence[int]) -> None:
        """Forgets the rows of these slots."""

    def forward(self, plan: StepPlan, began: float) -> F:
        """``began``: ``time.perf_counter()`` when the step came."""

    def draw(self, forwarded: F, masks: Masks | None) -> P: ...

    def finish(self, pending: P) -> StepResult: ...


class ModelRunner(Generic[F, P]):
    """Runs the steps of one model, each in two halves, and reads their results.

    Steps must come in order: a decode row's input is the token that the step before drew.
    """

    def __init__(self, compute: StepCompute[F, P], extras: RowExtras | None = None) -> None:
        self.compute = compute
        self.extras = extras

    def step(self, plan: StepPlan) -> StepResult:
        """Runs one step and waits for it."""
        return self.finish(self.launch(plan))

    def launch(self, plan: StepPlan) -> P:
        """Both halves of a step that has no masks."""
        return self.draw(self.forward(plan))

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> F:
        """The first half of a step; :meth:`draw` must follow before anything else."""
        began = time.perf_counter()
        self.release(plan.freed)
        self.compute.rows.enter(plan)
        self.compute.enter(plan)
        if self.extras is not None:
            self.extras.enter(plan)
        return self.compute.forward(plan, began)

    @torch.inference_mode()
    def draw(self, forwarded: F, masks: Masks | None = None) -> P:
        """The second half: draws the tokens. ``masks`` are the step's, where it has masked rows."""
        return self.compute.draw(forwarded, masks)

    def finish(self, pending: P) -> StepResult:
        """Waits for a step, not for any after it. May be called from another thread than all the rest, in order too."""
        result = self.compute.finish(pending)
        return result if self.extras is None else self.extras.ended(result)

    def release(self, slots: Sequence[int]) -> None:
        """Forgets the rows of these slots; what is encoded stays where it is."""
        for slot in slots:
            self.compute.rows.remove(slot)
        self.compute.release(slots)
        if self.extras is not None:
            self.extras.release(slots)
