"""The model runner: a model's rows, their extras, and their steps."""

import time
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import torch

from stentor.protocols.ipc.steps import (
    Masks,
    StepPlan,
    StepResult,
)

from ..rows.extras import RowExtras
from ..rows.rows import RowTable

F = TypeVar("F")
P = TypeVar("P")


class StepCompute(Protocol[F, P]):
    """Computes steps: at once (:class:`.sync_compute.SyncCompute`), or queued on a device
    (:class:`.async_compute.AsyncCompute`).

    ``F`` is a step between its halves, ``P`` one whose tokens are sampled but may not be read.
    """

    rows: RowTable
    """The rows' state; the runner adds and removes rows."""

    def enter(self, plan: StepPlan) -> None:
        """Apply a plan's changes. ``rows`` has them already; freed rows are released."""

    def release(self, slots: Sequence[int]) -> None:
        """Forget the rows of these slots."""

    def forward(self, plan: StepPlan, began: float) -> F:
        """``began``: ``time.perf_counter()`` when the step came."""

    def draw(self, forwarded: F, masks: Masks | None) -> P: ...

    def finish(self, pending: P) -> StepResult: ...


class ModelRunner(Generic[F, P]):
    """Runs the steps of one model, each in two halves, and reads their results.

    Steps must come in order: a decode row's input is the token that the previous step sampled.
    """

    def __init__(self, compute: StepCompute[F, P], extras: RowExtras | None = None) -> None:
        self.compute = compute
        self.extras = extras

    def step(self, plan: StepPlan) -> StepResult:
        """Run one step and wait for it."""
        return self.finish(self.launch(plan))

    def launch(self, plan: StepPlan) -> P:
        """Run both halves of a step without masks."""
        return self.draw(self.forward(plan))

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> F:
        """Run the first half of a step; :meth:`draw` must follow before anything else."""
        began = time.perf_counter()
        self.release(plan.freed)
        self.compute.rows.enter(plan)
        self.compute.enter(plan)
        if self.extras is not None:
            self.extras.enter(plan)
        return self.compute.forward(plan, began)

    @torch.inference_mode()
    def draw(self, forwarded: F, masks: Masks | None = None) -> P:
        """Run the second half: sample. ``masks`` are the step's, if it has masked rows."""
        return self.compute.draw(forwarded, masks)

    def finish(self, pending: P) -> StepResult:
        """Wait for a step's result. May be called from another thread, in order."""
        result = self.compute.finish(pending)
        return result if self.extras is None else self.extras.ended(result)

    @torch.inference_mode()
    def release(self, slots: Sequence[int]) -> None:
        """Forget the rows of these slots; encoded media stay. A draft model may compute what it is behind with."""
        for slot in slots:
            self.compute.rows.remove(slot)
        self.compute.release(slots)
        if self.extras is not None:
            self.extras.release(slots)
