"""Runs the steps of a streaming transcription model: each position's audio is encoded with it."""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from stentor.protocols.ipc.steps import Masks, RowStep, StepPlan, StepResult

from ..layers.forward_batch import LayerCache
from ..models.stream_encoder import Listening
from ..models.voxtral_realtime import VoxtralRealtime
from .batch import build_batch
from .row_sampler import Forwarded, RowSampler


class StreamingRunner:
    """Owns the rows, what each of them has heard, the KV cache and the sampler of one model, on a host or a device.

    Steps must come in order: a decode row's input is the token that the step before drew. Each is waited for, also on
    a device. Streams are encoded one after another; the decoder takes all rows at once.
    """

    def __init__(
        self,
        model: VoxtralRealtime,
        caches: Sequence[LayerCache],
        *,
        slots: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._caches = caches
        self._device = device
        self._row_sampler = RowSampler(
            model.config.vocab_size,
            slots=slots,
            max_model_len=max_model_len,
            block_size=block_size,
            groups=1 + max(cache.group for cache in caches),
            device=device,
        )
        self._streams: dict[int, Listening] = {}
        """By slot."""

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        """Runs one step and keeps the drawn tokens for the next."""
        return self.draw(self.forward(plan))

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Forwarded:
        """The first half of a step; :meth:`draw` must follow before anything else. Raises ValueError for a row whose
        position has nothing to hear yet."""
        began = time.perf_counter()
        self.release(plan.freed)
        self._row_sampler.enter(plan)
        encoder, row_sampler = self._model.encoder, self._row_sampler
        for new in plan.new:
            self._streams[new.slot] = encoder.begin()
        for given in plan.inputs:
            encoder.feed(self._streams[given.slot], given.pcm, ended=given.ended)
        batch = build_batch(plan.rows, row_sampler.rows, self._caches, self._device)
        heard = torch.cat([self._listen(row) for row in plan.rows])
        hidden = self._model.decoder.forward(replace(batch.forward, added=heard))
        prompts = row_sampler.prompt_logprobs(plan.rows, batch.starts, hidden, self._model.logits)
        logits = self._model.logits(hidden[batch.last]) if len(batch.last) else None
        return Forwarded(plan, logits, None, time.perf_counter() - began, prompt_logprobs=prompts)

    @torch.inference_mode()
    def draw(self, forwarded: Forwarded, masks: Masks | None = None) -> StepResult:
        """The second half: draws the tokens. ``masks`` are the step's, where it has masked rows."""
        return self._row_sampler.draw(forwarded, masks)

    def release(self, slots: list[int]) -> None:
        """Forgets the rows of these slots and what they have heard."""
        self._row_sampler.release(slots)
        for slot in slots:
            self._streams.pop(slot, None)

    def _listen(self, row: RowStep) -> torch.Tensor:
        stream = self._streams[row.slot]
        if stream.position != row.start:
            raise ValueError(f"slot {row.slot} runs position {row.start}, and has heard {stream.position}")
        return self._model.encoder.listen(stream, row.count)
