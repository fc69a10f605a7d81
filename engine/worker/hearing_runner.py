"""Runs the steps of a model that hears: encodes windows into their places, then runs and draws as for any decoder."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from stentor.protocols.audio import Heard
from stentor.protocols.steps import Encoding, Masks, NewRow, PromptLogprobs, RowHeard, RowStep, StepPlan, StepResult

from ..layers.attention import LayerCache
from ..models.whisper import Queries, Whisper
from .batch import Batch, build_batch
from .masks import NO_MASKS, slot_masks
from .prompt_logprobs import read_prompt_logprobs
from .rows import RowTable
from .runner import Forwarded
from .sampler import Sampler
from .token_rules import RuleTable


class HearingRunner:
    """Owns the rows, the KV cache, the encoded audio and the sampler of one model, on a host or a device.

    Steps must come in order: a decode row's input is the token that the step before drew. Each is waited for, also on
    a device.
    """

    def __init__(
        self,
        model: Whisper,
        caches: Sequence[LayerCache],
        places: Sequence[LayerCache],
        *,
        slots: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        """``caches`` hold the decoder's own keys and values, ``places`` those of audio."""
        self._model = model
        self._caches = caches
        self._places = places
        self._device = device
        self._vocab_size = model.config.vocab_size
        self._rows = RowTable(slots, max_model_len, block_size)
        self._place_of = np.zeros(slots, dtype=np.int64)
        self._asking: dict[int, NewRow] = {}
        """By slot: rows whose prompt is to say what it has heard."""
        self._sampler = Sampler(self._vocab_size, slots, device)
        self._rules = RuleTable(self._vocab_size, device)
        self.breathe: Callable[[], None] | None = None
        """Called between the parts of a step that encodes, with nothing on its way on the device."""

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
        batch = build_batch(plan.rows, self._rows, self._device)
        places = np.repeat(self._place_of[[row.slot for row in plan.rows]], [row.count for row in plan.rows])
        queries: Queries | None = {} if any(self._aligns(row.slot) for row in plan.rows) else None
        hidden = self._model.forward(
            batch.tokens,
            batch.positions,
            self._caches,
            batch.attention,
            self._model.cross_batch(places),
            self._places,
            queries,
        )
        heard = self._hear(plan.rows, batch, hidden, queries)
        prompts = self._prompt_logprobs(plan.rows, batch, hidden)
        logits = self._model.logits(hidden[batch.last]) if len(batch.last) else None
        return Forwarded(plan, logits, None, time.perf_counter() - began, heard, prompts)

    @torch.inference_mode()
    def draw(self, forwarded: Forwarded, masks: Masks | None = None) -> StepResult:
        """The second half: draws the tokens. ``masks`` are the step's, where it has masked rows.

        Log-probabilities are those that the rules of transcripts leave, as Whisper's thresholds expect them.
        """
        began = time.perf_counter()
        plan, logits = forwarded.plan, forwarded.logits
        tokens: list[int] = []
        logprobs = None
        if logits is not None:
            sampled = [row for row in plan.rows if row.sample]
            slots = [row.slot for row in sampled]
            self._rules.apply_(logits, slots)
            allowed = NO_MASKS if masks is None else slot_masks(masks, self._vocab_size)
            tokens, logprobs = self._sampler.sample(logits, slots, None, allowed)
            for row, token in zip(sampled, tokens, strict=True):
                self._rows.tokens[row.slot, row.start + row.count] = token
                self._rules.append(row.slot, token)
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            tokens=tokens,
            logprobs=logprobs,
            prompt_logprobs=forwarded.prompt_logprobs,
            seconds=forwarded.seconds + time.perf_counter() - began,
            heard=forwarded.heard,
        )

    def release(self, slots: list[int]) -> None:
        """Forgets the rows of these slots; what is encoded stays where it is."""
        for slot in slots:
            self._rows.remove(slot)
            self._sampler.remove(slot)
            self._rules.remove(slot)
            self._asking.pop(slot, None)

    def _apply(self, plan: StepPlan) -> None:
        self.release(plan.freed)
        for new in plan.new:
            self._rows.add(new)
            self._sampler.add(new.slot, new.params, new.seed, new.tokens, new.prompt_len)
            self._rules.add(new)
            self._place_of[new.slot] = new.encoding
            if new.no_speech is not None or new.align is not None:
                self._asking[new.slot] = new
        for row in plan.rows:
            if row.new_blocks:
                self._rows.extend(row.slot, row.new_blocks)

    def _encode(self, encodings: Sequence[Encoding]) -> None:
        if encodings:
            windows, places = [each.pcm for each in encodings], [each.place for each in encodings]
            self._model.write_encodings(windows, places, self._places, self._pause)

    def _pause(self) -> None:
        if self.breathe is None:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.breathe()

    def _aligns(self, slot: int) -> bool:
        asked = self._asking.get(slot)
        return asked is not None and asked.align is not None

    def _hear(
        self, rows: Sequence[RowStep], batch: Batch, hidden: torch.Tensor, queries: Queries | None
    ) -> list[RowHeard]:
        """What the step has brought for the rows that ask."""
        if not self._asking:
            return []
        found = []
        for row, first in zip(rows, batch.starts, strict=True):
            asked = self._asking.get(row.slot)
            if asked is None:
                continue
            heard = Heard(self._silence(asked, row, first, hidden))
            if asked.align is not None and queries is not None:
                aligned = self._model.align(
                    asked.tokens[: asked.prompt_len],
                    asked.align.start,
                    asked.align.frames,
                    hidden,
                    queries,
                    first,
                    asked.encoding,
                    self._places,
                )
                heard = Heard(heard.no_speech, aligned.times, aligned.probabilities)
            if heard.no_speech is not None or heard.times:
                found.append(RowHeard(row.slot, heard))
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

    def _prompt_logprobs(self, rows: Sequence[RowStep], batch: Batch, hidden: torch.Tensor) -> list[PromptLogprobs]:
        return read_prompt_logprobs(rows, batch.starts, self._rows, hidden, self._model.logits, self._sampler)
