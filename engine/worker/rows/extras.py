"""What a model's rows have or want besides tokens: media, recurrent states, adapters, experts, pooled states."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import torch

from stentor.protocols.ipc.inputs import ArenaRef
from stentor.protocols.ipc.steps import RowAlignment, RowExperts, RowFault, RowPooled, RowStep, StepPlan, StepResult

from ...layers.forward_batch import ForwardBatch
from .batch import Batch


class ExtraResults(msgspec.Struct, frozen=True):
    """Results of a pass besides tokens."""

    alignments: list[RowAlignment] = msgspec.field(default_factory=list)
    pooled: list[RowPooled] = msgspec.field(default_factory=list)
    routed: list[RowExperts] = msgspec.field(default_factory=list)
    faults: list[RowFault] = msgspec.field(default_factory=list)


MediaReader = Callable[[ArenaRef], bytes | memoryview]
"""Reads media of a request that has not been released."""


def no_media(ref: ArenaRef) -> bytes | memoryview:
    """The reader of a model in set-up. Raises ValueError unless the media are empty."""
    if ref.length:
        raise ValueError(f"{ref.length} bytes of media came, and the worker was given no arena to read them from")
    return b""


class RowExtras:
    """Inputs and outputs of a model's rows besides tokens. The runner calls these in each step; by default, rows have
    nothing to add and nothing to read."""

    def __init__(self) -> None:
        self.yield_device: Callable[[], None] | None = None
        """Called between the parts of a long step, if other models share the device."""
        self.media: MediaReader = no_media

    def enter(self, plan: StepPlan) -> None:
        """Apply a plan's changes; freed rows have been released."""

    def release(self, slots: Sequence[int]) -> None:
        """Forget the rows of these slots."""

    def concerns(self, rows: Sequence[RowStep]) -> bool:
        """Whether these rows need anything beyond tokens in a pass."""
        return True

    def extend(self, batch: ForwardBatch, rows: Sequence[RowStep]) -> ForwardBatch:
        """Add the rows' inputs to the batch."""
        return batch

    def read(self, batch: Batch, rows: Sequence[RowStep], hidden: torch.Tensor) -> ExtraResults:
        """The rows' results of a pass with output ``hidden``."""
        return ExtraResults()

    def ended(self, result: StepResult) -> StepResult:
        """End a step; returns its result, with the media completed in it."""
        return result


class JoinedExtras(RowExtras):
    """Several :class:`RowExtras` as one."""

    def __init__(self, parts: Sequence[RowExtras]) -> None:
        self.parts = parts

    @property
    def yield_device(self) -> Callable[[], None] | None:
        return self.parts[0].yield_device

    @yield_device.setter
    def yield_device(self, given: Callable[[], None] | None) -> None:
        for part in self.parts:
            part.yield_device = given

    @property
    def media(self) -> MediaReader:
        return self.parts[0].media

    @media.setter
    def media(self, given: MediaReader) -> None:
        for part in self.parts:
            part.media = given

    def concerns(self, rows: Sequence[RowStep]) -> bool:
        return any(part.concerns(rows) for part in self.parts)

    def enter(self, plan: StepPlan) -> None:
        for part in self.parts:
            part.enter(plan)

    def release(self, slots: Sequence[int]) -> None:
        for part in self.parts:
            part.release(slots)

    def extend(self, batch: ForwardBatch, rows: Sequence[RowStep]) -> ForwardBatch:
        for part in self.parts:
            batch = part.extend(batch, rows)
        return batch

    def read(self, batch: Batch, rows: Sequence[RowStep], hidden: torch.Tensor) -> ExtraResults:
        found = [part.read(batch, rows, hidden) for part in self.parts]
        return ExtraResults(
            [each for one in found for each in one.alignments],
            [each for one in found for each in one.pooled],
            [each for one in found for each in one.routed],
            [each for one in found for each in one.faults],
        )

    def ended(self, result: StepResult) -> StepResult:
        for part in self.parts:
            result = part.ended(result)
        return result


def joined(parts: Sequence[RowExtras | None]) -> RowExtras | None:
    """The parts that are there as one; None if there are none."""
    present = [part for part in parts if part is not None]
    return JoinedExtras(present) if len(present) > 1 else next(iter(present), None)


E = TypeVar("E")


def extra_of(extras: RowExtras | None, kind: type[E]) -> E | None:
    """The part of this kind; None if there is none."""
    parts = extras.parts if isinstance(extras, JoinedExtras) else [extras]
    return next((part for part in parts if isinstance(part, kind)), None)
