"""Drives a worker's runner with plans made by hand, so that a step is exactly what is to be measured."""

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from stentor.engine.model_config.decoder_config import DecoderConfig
from stentor.engine.worker.setup_parts import Setup
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan

FILL = 512
"""Tokens of each step, and of each sequence, that fill the cache."""

_LEAST = 5
_MOST = 48
"""Timed decode steps of one shape; a sequence grows by one token with each."""
_WARMUP = 2
_GREEDY = SamplingParams(max_tokens=1 << 20, temperature=0.0)


@dataclass(frozen=True)
class StepTimes:
    """Seconds of steps of one shape: ``rows`` sequences, ``tokens`` of each, after ``context`` in the cache."""

    rows: int
    tokens: int
    context: int
    median: float
    low: float
    """The fastest."""
    steps: int


class StepRunner:
    """One runner, whose KV cache is filled before anything is timed: pages that were never written read as one."""

    def __init__(self, setup: Setup, model: DecoderConfig, cache_tokens: int, seed: int) -> None:
        self._runner = setup.runner
        self._model = model
        self._block_size = setup.ready.limits.block_size
        self._num_blocks = min(cache_tokens // self._block_size, setup.ready.num_blocks)
        self._random = random.Random(seed)
        self._step = 0

    def fits(self, rows: int, length: int) -> bool:
        """Whether so many sequences have blocks of their own."""
        return rows * self._blocks_of(length) <= self._num_blocks

    def fill(self) -> None:
        """Writes every block, by prefilling prompts."""
        count = self._blocks_of(FILL)
        for first in range(0, self._num_blocks, count):
            blocks = list(range(first, min(first + count, self._num_blocks)))
            length = len(blocks) * self._block_size
            self._run([NewRow(0, self._tokens(length), length, _GREEDY, 0, blocks)], [(0, 0, length)])
            self._runner.release([0])

    def decode(self, rows: int, context: int, seconds: float) -> StepTimes:
        """Steps in which each of ``rows`` sequences gains a token, the first one seeing ``context`` tokens."""
        blocks = self._blocks_of(context + _WARMUP + _MOST)
        entering = [
            NewRow(row, self._tokens(context), 1, _GREEDY, row, list(range(row * blocks, (row + 1) * blocks)))
            for row in range(rows)
        ]
        times: list[float] = []
        for number in range(_WARMUP + _MOST):
            position = context - 1 + number
            taken = self._run(entering if number == 0 else [], [(row, position, 1) for row in range(rows)])
            if number >= _WARMUP:
                times.append(taken)
            if len(times) >= _LEAST and sum(times) >= seconds:
                break
        self._runner.release(list(range(rows)))
        return StepTimes(rows, 1, context, statistics.median(times), min(times), len(times))

    def prefill(self, tokens: int, context: int, repeats: int) -> StepTimes:
        """Steps of one sequence: a chunk of ``tokens`` after ``context`` that are in the cache."""
        length = tokens + context
        times: list[float] = []
        for _ in range(1 + repeats):  # the first one warms up
            row = NewRow(0, self._tokens(length), length, _GREEDY, 0, list(range(self._blocks_of(length))))
            times.append(self._run([row], [(0, context, tokens)]))
            self._runner.release([0])
        return StepTimes(1, tokens, context, statistics.median(times[1:]), min(times[1:]), repeats)

    def _run(self, new: list[NewRow], spans: Sequence[tuple[int, int, int]]) -> float:
        rows = [RowStep(slot, start, count, [], True) for slot, start, count in spans]
        plan = StepPlan(0, self._step, [], new, rows)
        self._step += 1
        began = time.perf_counter()
        self._runner.step(plan)
        return time.perf_counter() - began

    def _tokens(self, count: int) -> list[int]:
        return self._random.choices(range(self._model.vocab_size), k=count)

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self._block_size)


def decode_length(context: int) -> int:
    """The longest that a sequence of :meth:`StepRunner.decode` may become."""
    return context + _WARMUP + _MOST


def forward_flops(model: DecoderConfig, tokens: int, context: int, sampled: int) -> float:
    """Multiplications and additions of one forward pass: products with weights, attention to all that is before
    each token and to itself, and logits of ``sampled`` rows. Windows that cut attention short are left out."""
    query, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    products = model.hidden_size * (2 * query + 2 * kv + 3 * model.intermediate_size)
    pairs = tokens * context + tokens * (tokens + 1) / 2
    attention = 4 * query * pairs
    return model.num_layers * (2 * products * tokens + attention) + 2 * sampled * model.hidden_size * model.vocab_size
