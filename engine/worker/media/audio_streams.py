"""Streamed audio of a transcription model's rows: each position reads its part."""

from collections.abc import Sequence
from typing import Any

import torch
from msgspec.structs import replace

from stentor.protocols.ipc.steps import RowStep, StepPlan

from ...layers.forward_batch import ForwardBatch
from ...models.speech.streamed import StreamedTranscriber
from ..rows.extras import RowExtras


class AudioStreams(RowExtras):
    """Adds encoded audio to the embedding of each position.

    Streams are encoded one after the other; the decoder runs all rows together.
    """

    def __init__(self, model: StreamedTranscriber) -> None:
        super().__init__()
        self._encoder = model.encoder
        self._streams: dict[int, Any] = {}
        """States of the encoder, by row slot."""

    def enter(self, plan: StepPlan) -> None:
        for new in plan.new:
            self._streams[new.slot] = self._encoder.begin()
        for given in plan.inputs:
            pcm = b"".join(map(self.media, given.pieces))
            self._encoder.feed(self._streams[given.slot], pcm, ended=given.ended)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._streams.pop(slot, None)

    def extend(self, batch: ForwardBatch, rows: Sequence[RowStep]) -> ForwardBatch:
        """Raises ValueError if the audio of a row's position has not come."""
        return replace(batch, added=torch.cat([self._listen(row) for row in rows]))

    def _listen(self, row: RowStep) -> torch.Tensor:
        stream = self._streams[row.slot]
        if stream.position != row.start:
            raise ValueError(f"slot {row.slot} runs position {row.start}, and has audio up to {stream.position}")
        return self._encoder.listen(stream, row.count)
