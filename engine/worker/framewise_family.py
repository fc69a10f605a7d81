"""Transcription models that decode frame by frame, and the transcripts of their rows."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
import torch

from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.cache_groups import CacheGroup
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.inputs import ArenaRef
from stentor.protocols.ipc.pooling import Pooled, Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import EncodeJob, NewRow, RowPooled, RowSpan, RowStep, StepPlan

from ..layers.layer_context import LayerContext
from ..loading.checkpoint import Checkpoint
from ..models.framewise import COLUMNS, FramewiseTranscriber
from .batch import Batch
from .errors import SetupError
from .families import Family, FormerSizes, Sizes
from .limits import TRANSCRIPTION
from .row_extras import ExtraResults, RowExtras
from .setup_parts import longest_of

_SILENCE: Final = ArenaRef(0, 0)
"""An empty window is transcribed as silence."""


class FramewiseTranscription(Family):
    """A request is one window, which is transcribed in one step; nothing is cached but transcripts."""

    no_room = "choose a smaller model"

    def __init__(self, checkpoint: Checkpoint, device: str) -> None:
        self.checkpoint = checkpoint
        self.spec = checkpoint.framewise
        self.limits = TRANSCRIPTION[device]

    def longest(self, config: WorkerConfig) -> int:
        if config.kv_cache_dtype in ("fp8", "int8"):
            raise SetupError(
                f"--kv-cache-dtype {config.kv_cache_dtype}: a model that decodes frame by frame has no KV cache; leave "
                "it out"
            )
        return longest_of(config, self.spec)

    def make(self, context: LayerContext, longest: int) -> FramewiseTranscriber:
        return FramewiseTranscriber(self.spec, context)

    def size(
        self,
        config: WorkerConfig,
        model: Callable[[], FramewiseTranscriber],
        longest: int,
        cache_dtype: torch.dtype,
        budget: int,
        former: FormerSizes | None = None,
    ) -> Sizes:
        """Blocks only limit how many requests run at once."""
        rows = config.max_num_seqs
        return Sizes(rows * -(-longest // config.block_size), longest, 0, encoder_slots=rows)

    def largest_step(self, config: WorkerConfig, longest: int) -> tuple[StepPlan, Sizes]:
        count = min(self.limits.max_encodings, config.max_num_seqs)
        return self._step(count), Sizes(1, longest, 0, encoder_slots=count)

    def extras(self, config: WorkerConfig, model: FramewiseTranscriber, sizes: Sizes) -> RowExtras:
        return Transcripts(model)

    def first_steps(self, config: WorkerConfig, model: FramewiseTranscriber, sizes: Sizes) -> list[StepPlan]:
        return [self._step(1)]

    def memory(self, config: WorkerConfig, model: FramewiseTranscriber, sizes: Sizes) -> list[MemoryLine]:
        return []

    def completed(
        self, ready: WorkerReady, config: WorkerConfig, model: FramewiseTranscriber, sizes: Sizes
    ) -> WorkerReady:
        positions = self.spec.source_positions
        windows = CacheGroup("cross", positions, sizes.encoder_slots * positions)
        return msgspec.structs.replace(ready, pools=True, groups=(*ready.groups, windows))

    def _step(self, count: int) -> StepPlan:
        """A step with as many rows, each with half a minute of silence."""
        params, positions = SamplingParams(max_tokens=0), self.spec.source_positions
        new = [
            NewRow(slot, [0], 1, params, 0, [0], spans=[RowSpan(slot, -1, positions)], pooling=Pooling("transcribe"))
            for slot in range(count)
        ]
        jobs = [EncodeJob(slot, _SILENCE) for slot in range(count)]
        return StepPlan(0, 0, [], new, [RowStep(slot, 0, 1, [], False) for slot in range(count)], encode=jobs)


class Transcripts(RowExtras):
    """The transcripts of windows, for the rows of a step.

    A transcript stays in its encoder slot until another replaces it, so that a request for the same window computes
    nothing.
    """

    def __init__(self, model: FramewiseTranscriber) -> None:
        super().__init__()
        self._model = model
        self._found: dict[int, Pooled] = {}
        """By encoder slot."""
        self._asked: dict[int, int] = {}
        """The encoder slot of each row that has no result yet, by slot."""
        self._prompts: dict[int, int] = {}
        """A request's first token, by the encoder slot of its window: the language, for models that take one."""

    def enter(self, plan: StepPlan) -> None:
        for slot in plan.forgotten:
            self._found.pop(slot, None)
        for new in plan.new:
            (span,) = new.spans
            self._asked[new.slot] = span.encoder_slot
            self._prompts[span.encoder_slot] = new.tokens[0]
        if plan.encode:
            windows = [self.media(job.data) for job in plan.encode]
            prompts = [self._prompts[job.encoder_slot] for job in plan.encode]
            made = self._model.transcribe(windows, prompts, self.yield_device)
            self._found |= {job.encoder_slot: _packed(each) for job, each in zip(plan.encode, made, strict=True)}

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._asked.pop(slot, None)

    def read(self, batch: Batch, rows: Sequence[RowStep], hidden: torch.Tensor) -> ExtraResults:
        asked = [row.slot for row in rows if row.slot in self._asked]
        return ExtraResults(pooled=[RowPooled(slot, self._found[self._asked.pop(slot)]) for slot in asked])


def _packed(transcript: torch.Tensor) -> Pooled:
    data = transcript.numpy().astype(np.dtype("<f4"), copy=False).tobytes()
    return Pooled(len(transcript), COLUMNS, data)
