"""Windows of audio, texts or pictures for the rows of an encoder-decoder: encoding, cross-attention, alignment."""

from collections.abc import Sequence

import numpy as np
import torch
from msgspec.structs import replace

from stentor.protocols.ipc.audio import AlignmentOutput, PromptProbe
from stentor.protocols.ipc.steps import EncodeJob, NewRow, RowAlignment, RowFault, RowStep, StepPlan

from ...layers.forward_batch import Encoded, ForwardBatch, LayerCache
from ...models.encoder_decoder import EncoderDecoder
from ..rows.batch import Batch
from ..rows.extras import ExtraResults, RowExtras


class AudioWindows(RowExtras):
    """Encodes windows of audio, or what stands for them, into slots, which tokens attend to, and reads alignments.

    An encoded window stays in its slot until another replaces it. A picture that cannot be encoded is the fault of the
    rows that attend to it.
    """

    def __init__(self, model: EncoderDecoder, cross_caches: Sequence[LayerCache], slots: int) -> None:
        """``cross_caches`` hold the keys and values of encoded audio."""
        super().__init__()
        self._model = model
        self._cross_caches = cross_caches
        self._encoder_slot_of = np.zeros(slots, dtype=np.int64)
        self._length_of: dict[int, int] = {}
        """Encoded positions, by encoder slot."""
        self._asking: dict[int, tuple[NewRow, PromptProbe]] = {}
        """By slot: rows whose prompt asks for alignment results."""
        self._refused: dict[int, str] = {}
        """By encoder slot: why there is no encoding of its picture."""

    def enter(self, plan: StepPlan) -> None:
        for new in plan.new:
            (span,) = new.spans
            self._encoder_slot_of[new.slot] = span.encoder_slot
            if new.probe is not None:
                self._asking[new.slot] = new, new.probe
        for jobs in [[job] for job in plan.encode] if self._model.sees else filter(None, [plan.encode]):
            self._encode(jobs)

    def _encode(self, jobs: Sequence[EncodeJob]) -> None:
        """Encode these together."""
        windows = [self.media(job.data) for job in jobs]
        slots = [job.encoder_slot for job in jobs]
        adapters = [job.adapter for job in jobs]
        for slot in slots:
            self._refused.pop(slot, None)
        try:
            lengths = self._model.write_encodings(windows, slots, self._cross_caches, self.yield_device, adapters)
        except ValueError as error:
            if not self._model.sees:
                raise
            self._refused |= dict.fromkeys(slots, str(error).partition("\n")[0])
            lengths = [1] * len(slots)  # of whatever was there: no row with it gets a token
        self._length_of.update(zip(slots, lengths, strict=True))

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._asking.pop(slot, None)

    def extend(self, batch: ForwardBatch, rows: Sequence[RowStep]) -> ForwardBatch:
        slots = np.repeat(self._encoder_slot_of[[row.slot for row in rows]], [row.count for row in rows])
        aligns = any(row.slot in self._asking and self._asking[row.slot][1].align is not None for row in rows)
        attention = self._model.cross_batch(slots, [self._length_of[slot] for slot in slots.tolist()])
        return replace(batch, encoded=Encoded(attention, self._cross_caches, {} if aligns else None))

    def read(self, batch: Batch, rows: Sequence[RowStep], hidden: torch.Tensor) -> ExtraResults:
        if not self._asking and not self._refused:
            return ExtraResults()
        faults = []
        for row in rows if self._refused else ():
            if (why := self._refused.get(int(self._encoder_slot_of[row.slot]))) is not None:
                faults.append(RowFault(row.slot, f"the model cannot take the picture: {why}"))
        encoded = batch.forward.encoded
        queries = None if encoded is None else encoded.queries
        found = []
        for row, first in zip(rows, batch.starts, strict=True):
            if row.slot not in self._asking:
                continue
            asked, probe = self._asking[row.slot]
            alignment = AlignmentOutput(self._silence(probe, row, first, hidden))
            if probe.align is not None and queries is not None:
                aligned = self._model.align(
                    asked.tokens[: asked.prompt_len],
                    probe.align.start,
                    probe.align.frames,
                    hidden,
                    queries,
                    first,
                    asked.spans[0].encoder_slot,
                    self._cross_caches,
                )
                alignment = AlignmentOutput(alignment.no_speech, aligned.times, aligned.probabilities)
            if alignment.no_speech is not None or alignment.times:
                found.append(RowAlignment(row.slot, alignment))
            if row.start + row.count >= asked.prompt_len:
                del self._asking[row.slot]
        return ExtraResults(alignments=found, faults=faults)

    def _silence(self, probe: PromptProbe, row: RowStep, first: int, hidden: torch.Tensor) -> float | None:
        """The probability of the no-speech token, if this step computes its position; else None."""
        if probe.no_speech is None:
            return None
        position, token = probe.no_speech
        if not row.start <= position < row.start + row.count:
            return None
        if not 0 <= token < self._model.config.vocab_size:
            return 0.0
        at = first + position - row.start
        return float(self._model.logits(hidden[at : at + 1])[0].softmax(0)[token])
