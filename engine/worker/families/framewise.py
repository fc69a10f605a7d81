"""Transcription models that decode frame by frame, and the transcripts of their rows."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
import torch

from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.audio import SAMPLE_BYTES
from stentor.protocols.ipc.cache_groups import CacheGroup
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.inputs import ArenaRef, StreamShape
from stentor.protocols.ipc.pooling import Pooled, Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import EncodeJob, NewRow, RowPooled, RowSpan, RowStep, StepPlan

from ...layers.linear.layer_context import LayerContext
from ...loading.checkpoint import Checkpoint
from ...model_config.speech.framewise import ModulesEncoderSpec
from ...models.speech.framewise import COLUMNS, FramewiseStream, FramewiseTranscriber
from ..errors import SetupError
from ..limits import TRANSCRIPTION
from ..rows.batch import Batch
from ..rows.extras import ExtraResults, RowExtras
from .family import Family, FormerSizes, Sizes
from .setup_parts import longest_of

_SILENCE: Final = ArenaRef(0, 0)
"""An empty window is transcribed as silence."""


class FramewiseTranscription(Family):
    """A request is one window, which is transcribed in one step; nothing is cached but transcripts.

    Of models that stream it may be audio that comes in pieces: its prompt has a position for each chunk, and its row
    keeps the state between two chunks.
    """

    no_room = "choose a smaller model"

    def __init__(self, checkpoint: Checkpoint, device: str) -> None:
        self.checkpoint = checkpoint
        self.spec = checkpoint.framewise
        self.packs = not isinstance(self.spec.encoder, ModulesEncoderSpec)
        self.limits = TRANSCRIPTION[device]

    def longest(self, config: WorkerConfig) -> int:
        if config.kv_cache_dtype in ("fp8", "int8"):
            raise SetupError(
                f"--kv-cache-dtype {config.kv_cache_dtype}: a model that decodes frame by frame has no KV cache; leave "
                "it out"
            )
        return longest_of(config, self.spec)

    def make(self, context: LayerContext, longest: int) -> FramewiseTranscriber:
        return FramewiseTranscriber(self.spec, context, self.checkpoint.folder)

    def size(
        self,
        config: WorkerConfig,
        model: Callable[[], FramewiseTranscriber],
        longest: int,
        cache_dtype: torch.dtype,
        budget: int,
        former: FormerSizes | None = None,
    ) -> Sizes:
        """Blocks only limit how many requests run at once. There is one more for each row, since the scheduler keeps
        some back for rows that run."""
        rows = config.max_num_seqs
        return Sizes(rows * (1 + -(-longest // config.block_size)), longest, 0, encoder_slots=rows)

    def largest_step(self, config: WorkerConfig, longest: int) -> tuple[StepPlan, Sizes]:
        count = min(self.limits.max_encodings, config.max_num_seqs)
        return self._step(count), Sizes(1, longest, 0, encoder_slots=count)

    def extras(self, config: WorkerConfig, model: FramewiseTranscriber, sizes: Sizes) -> RowExtras:
        return Transcripts(model, self.spec.stream)

    def first_steps(self, config: WorkerConfig, model: FramewiseTranscriber, sizes: Sizes) -> list[StepPlan]:
        return [self._step(1)]

    def memory(self, config: WorkerConfig, model: FramewiseTranscriber, sizes: Sizes) -> list[MemoryLine]:
        if self.spec.stream is None:
            return []
        most = config.max_num_seqs
        return [MemoryLine("streams", most * model.stream_bytes, f"audio of {most} of them, at most")]

    def completed(
        self, ready: WorkerReady, config: WorkerConfig, model: FramewiseTranscriber, sizes: Sizes
    ) -> WorkerReady:
        positions = self.spec.source_positions
        windows = CacheGroup("cross", positions, sizes.encoder_slots * positions)
        return msgspec.structs.replace(ready, pools=True, groups=(*ready.groups, windows), stream=self.spec.stream)

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
    """The transcripts of windows and of streamed audio, for the rows of a step.

    A window's transcript stays in its encoder slot until another replaces it, so that a request for the same window
    computes nothing.
    """

    def __init__(self, model: FramewiseTranscriber, shape: StreamShape | None) -> None:
        """``shape``: how chunks of streamed audio follow the samples, if the model takes any."""
        super().__init__()
        self._model = model
        self._shape = shape
        self._found: dict[int, Pooled] = {}
        """By encoder slot."""
        self._asked: dict[int, int] = {}
        """The encoder slot of each row that has no result yet, by slot."""
        self._prompts: dict[int, int] = {}
        """A request's first token, by the encoder slot of its window: the language, for models that take one."""
        self._streams: dict[int, _Stream] = {}
        """By row slot."""

    def enter(self, plan: StepPlan) -> None:
        for slot in plan.forgotten:
            self._found.pop(slot, None)
        for new in plan.new:
            if not new.spans:
                self._streams[new.slot] = _Stream(self._model.begin(new.tokens[0]))
                continue
            (span,) = new.spans
            self._asked[new.slot] = span.encoder_slot
            self._prompts[span.encoder_slot] = new.tokens[0]
        if plan.encode:
            windows = [self.media(job.data) for job in plan.encode]
            prompts = [self._prompts[job.encoder_slot] for job in plan.encode]
            made = self._model.transcribe(windows, prompts, self.yield_device)
            self._found |= {job.encoder_slot: _packed(each) for job, each in zip(plan.encode, made, strict=True)}
        for given in plan.inputs:
            self._streams[given.slot].feed(b"".join(map(self.media, given.pieces)), ended=given.ended)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._asked.pop(slot, None)
            self._streams.pop(slot, None)

    def read(self, batch: Batch, rows: Sequence[RowStep], hidden: torch.Tensor) -> ExtraResults:
        asked = [row.slot for row in rows if row.slot in self._asked]
        windows = [RowPooled(slot, self._found[self._asked.pop(slot)]) for slot in asked]
        return ExtraResults(pooled=[*windows, *self._next_chunks([row for row in rows if row.slot in self._streams])])

    def _next_chunks(self, rows: Sequence[RowStep]) -> list[RowPooled]:
        """What the rows' chunks add to their transcripts. Streams are computed together, chunk by chunk, so that a
        chunk's result does not depend on how many a step has."""
        found: dict[int, list[torch.Tensor]] = {row.slot: [] for row in rows}
        for chunk in range(max((row.count for row in rows), default=0)):
            turn = [row for row in rows if chunk < row.count]
            assert self._shape is not None
            streams = [self._streams[row.slot] for row in turn]
            last = [
                stream.ended and row.start + chunk == self._shape.positions(stream.samples, ended=False)
                for row, stream in zip(turn, streams, strict=True)
            ]
            made = self._model.transcribe_next([stream.state for stream in streams], last, self.yield_device)
            for row, each in zip(turn, made, strict=True):
                found[row.slot].append(each)
        return [RowPooled(slot, _packed(torch.cat(made))) for slot, made in found.items()]


class _Stream(msgspec.Struct):
    """The audio that a row has been given."""

    state: FramewiseStream
    samples: int = 0
    ended: bool = False

    def feed(self, pcm: bytes, *, ended: bool) -> None:
        self.samples += len(pcm) // SAMPLE_BYTES
        self.ended = ended
        self.state.audio.feed(pcm, ended=ended)


def _packed(transcript: torch.Tensor) -> Pooled:
    data = transcript.numpy().astype(np.dtype("<f4"), copy=False).tobytes()
    return Pooled(len(transcript), COLUMNS, data)
