"""Runs the steps of an encoder-decoder: encodes windows into encoder slots, then runs and draws as a decoder."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from stentor.protocols.ipc.audio import AlignmentOutput
from stentor.protocols.ipc.steps import (
    Encoding,
    Masks,
    NewRow,
    RowAlignment,
    RowStep,
    StepPlan,
    StepResult,
)

from ..layers.forward_batch import LayerCache
from ..models.whisper import Queries, Whisper
from .batch import Batch, build_batch
from .row_sampler import Forwarded, RowSampler


class EncoderDecoderRunner:
    """Owns the rows, the KV cache, the encoded audio and the sampler of one model, on a host or a device.

    Steps must come in order: a decode row's input is the token that the step before drew. Each is waited for, also on
    a device.
    """

    def __init__(
        self,
        model: Whisper,
        caches: Sequence[LayerCache],
        cross_caches: Sequence[LayerCache],
        *,
        slots: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        """``caches`` hold the decoder's own keys and values, ``cross_caches`` those of encoded audio."""
        self._model = model
        self._caches = caches
        self._cross_caches = cross_caches
        self.device = device
        self._vocab_size = model.config.vocab_size
        self._row_sampler = RowSampler(
            self._vocab_size, slots=slots, max_model_len=max_model_len, block_size=block_size, device=device
        )
        self._encoder_slot_of = np.zeros(slots, dtype=np.int64)
        self._asking: dict[int, NewRow] = {}
        """By slot: rows whose prompt is to say what it has heard."""
        self.yield_device: Callable[[], None] | None = None
        """Called between the parts of a step that encodes."""

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        """Runs one step and keeps the drawn tokens for the next."""
        return self.draw(self.forward(plan))

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Forwarded:
        """The first half of a step; :meth:`draw` must follow before anything else."""
        began = time.perf_counter()
        self._apply(plan)
        self._encode(plan.encodings)
        batch = build_batch(plan.rows, self._row_sampler.rows, self._caches, self.device)
        encoder_slots = np.repeat(
            self._encoder_slot_of[[row.slot for row in plan.rows]], [row.count for row in plan.rows]
        )
        queries: Queries | None = {} if any(self._aligns(row.slot) for row in plan.rows) else None
        hidden = self._model.forward(
            batch.forward,
            self._model.cross_batch(encoder_slots),
            self._cross_caches,
            queries,
        )
        alignment = self._hear(plan.rows, batch, hidden, queries)
        prompts = self._row_sampler.prompt_logprobs(plan.rows, batch.starts, hidden, self._model.logits)
        logits = self._model.logits(hidden[batch.last]) if len(batch.last) else None
        return Forwarded(plan, logits, None, time.perf_counter() - began, alignment, prompts)

    @torch.inference_mode()
    def draw(self, forwarded: Forwarded, masks: Masks | None = None) -> StepResult:
        """The second half: draws the tokens. ``masks`` are the step's, where it has masked rows."""
        return self._row_sampler.draw(forwarded, masks)

    def release(self, slots: list[int]) -> None:
        """Forgets the rows of these slots; what is encoded stays where it is."""
        self._row_sampler.release(slots)
        for slot in slots:
            self._asking.pop(slot, None)

    def _apply(self, plan: StepPlan) -> None:
        self.release(plan.freed)
        self._row_sampler.enter(plan)
        for new in plan.new:
            self._encoder_slot_of[new.slot] = new.encoding
            if new.no_speech is not None or new.align is not None:
                self._asking[new.slot] = new

    def _encode(self, encodings: Sequence[Encoding]) -> None:
        if encodings:
            windows, slots = [each.pcm for each in encodings], [each.encoder_slot for each in encodings]
            self._model.write_encodings(windows, slots, self._cross_caches, self.yield_device)

    def _aligns(self, slot: int) -> bool:
        asked = self._asking.get(slot)
        return asked is not None and asked.align is not None

    def _hear(
        self, rows: Sequence[RowStep], batch: Batch, hidden: torch.Tensor, queries: Queries | None
    ) -> list[RowAlignment]:
        """What the step has brought for the rows that ask."""
        if not self._asking:
            return []
        found = []
        for row, first in zip(rows, batch.starts, strict=True):
            asked = self._asking.get(row.slot)
            if asked is None:
                continue
            alignment = AlignmentOutput(self._silence(asked, row, first, hidden))
            if asked.align is not None and queries is not None:
                aligned = self._model.align(
                    asked.tokens[: asked.prompt_len],
                    asked.align.start,
                    asked.align.frames,
                    hidden,
                    queries,
                    first,
                    asked.encoding,
                    self._cross_caches,
                )
                alignment = AlignmentOutput(alignment.no_speech, aligned.times, aligned.probabilities)
            if alignment.no_speech is not None or alignment.times:
                found.append(RowAlignment(row.slot, alignment))
            if row.start + row.count >= asked.prompt_len:
                del self._asking[row.slot]
        return found

    def _silence(self, asked: NewRow, row: RowStep, first: int, hidden: torch.Tensor) -> float | None:
        """The probability of the token that says so, where this step computes its position."""
        if asked.no_speech is None:
            return None
        position, token = asked.no_speech
        if not row.start <= position < row.start + row.count:
            return None
        if not 0 <= token < self._vocab_size:
            return 0.0
        at = first + position - row.start
        return float(self._model.logits(hidden[at : at + 1])[0].softmax(0)[token])
