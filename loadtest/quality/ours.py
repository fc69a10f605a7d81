"""What our worker says of given tokens: log-probabilities out of real steps, prefilled in chunks or one by one."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan, StepResult, TokenLogprobs

Window = Sequence[int]

TOP = 64
"""Alternatives kept at each position: all but some hundredths of the probability lie in them."""


@dataclass(frozen=True)
class Scores:
    """One window. Position i scores token i + 1, so there is one position less than there are tokens."""

    logprobs: npt.NDArray[np.float64]
    """[positions] of the tokens that stand there, natural logarithm."""
    top_ids: npt.NDArray[np.int64]
    """[positions, TOP], the likeliest first."""
    top_logprobs: npt.NDArray[np.float64]
    """[positions, TOP]"""


class Scorer:
    """A worker with one model. :meth:`close` gives its memory back.

    The constructor raises what :func:`stentor.engine.worker.setup.setup.set_up` raises.
    """

    def __init__(self, config: WorkerConfig) -> None:
        setup = set_up(config, lambda phase, done, total: None)
        self._runner = setup.runner
        self._ready = setup.ready
        self._step = 0
        self.notes = setup.ready.notes

    def prefill(self, window: Window) -> Scores:
        """The window as a prompt, in chunks of as many tokens as the engine puts into a step."""
        tokens = list(window)
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=TOP)
        row = NewRow(0, tokens, len(tokens), params, 0, self._blocks(0, len(tokens)))
        chunk = self._ready.limits.max_num_batched_tokens
        entries: list[TokenLogprobs] = []
        for start in range(0, len(tokens), chunk):
            count = min(chunk, len(tokens) - start)
            result = self._run([row] if start == 0 else [], [RowStep(0, start, count, [], False)])
            entries += (entry for part in result.prompt_logprobs for entry in part.positions)
        self._runner.release([0])
        return _scores(entries)

    def decode(self, batch: Sequence[Window]) -> list[Scores]:
        """Windows of one length side by side, one token of each a step, as sequences that are being generated.

        A row enters anew at each step, allowed to draw nothing but the token that follows: its log-probability is
        of the raw logits, which that does not touch.
        """
        lengths = {len(window) for window in batch}
        if len(lengths) != 1:
            raise ValueError(f"windows that decode together must be of one length, got {sorted(lengths)}")
        (length,) = lengths
        slots = range(len(batch))
        entries: list[list[TokenLogprobs]] = [[] for _ in batch]
        for position in range(length - 1):
            rows = [
                NewRow(slot, list(window[: position + 1]), 1, _forced(window[position + 1]), 0,
                       self._blocks(slot, length))
                for slot, window in enumerate(batch)
            ]  # fmt: skip
            steps = [RowStep(slot, position, 1, [], True) for slot in slots]
            result = self._run(rows, steps, freed=list(slots) if position else [])
            for slot, entry in enumerate(result.logprobs or []):
                assert entry is not None
                entries[slot].append(entry)
        self._runner.release(list(slots))
        return [_scores(each) for each in entries]

    def close(self) -> None:
        del self._runner
        gc.collect()

    def _run(self, new: list[NewRow], rows: list[RowStep], freed: list[int] | None = None) -> StepResult:
        plan = StepPlan(0, self._step, freed or [], new, rows)
        self._step += 1
        return self._runner.step(plan)

    def _blocks(self, slot: int, length: int) -> list[int]:
        count = -(-length // self._ready.limits.block_size)
        blocks = list(range(slot * count, (slot + 1) * count))
        if blocks[-1] >= self._ready.num_blocks:
            raise ValueError(f"the KV cache has no room for row {slot} of {length} tokens: raise --kv-cache-memory")
        return blocks


def _forced(token: int) -> SamplingParams:
    return SamplingParams(max_tokens=1 << 20, temperature=0.0, allowed_token_ids=(token,), logprobs=TOP)


def _scores(entries: Sequence[TokenLogprobs]) -> Scores:
    return Scores(
        np.array([entry.logprob for entry in entries]),
        np.array([[token for token, _ in entry.top] for entry in entries], dtype=np.int64),
        np.array([[value for _, value in entry.top] for entry in entries]),
    )
