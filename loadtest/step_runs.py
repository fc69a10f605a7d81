"""Drives a worker's runner with plans made by hand, so that a step is exactly what is to be measured."""

import math
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.worker.compute.async_compute import MAX_PENDING
from stentor.engine.worker.families.setup_parts import Setup
from stentor.kernels.tuning.timing import Timing, summarise
from stentor.protocols.ipc.actors import WorkerReady
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan, StepResult

FILL = 512
"""Tokens of each step, and of each sequence, that fill the cache."""
MOST = 48
"""Timed decode steps of one shape; a sequence grows by one token with each."""
_LEAST = 5
_WARMUP = 2
_GREEDY = SamplingParams(max_tokens=1 << 20, temperature=0.0)


class StepRunner:
    """One runner. Its KV cache is filled before anything is timed: pages that were never written read as one."""

    def __init__(self, setup: Setup, model: ModelSpec, cache_tokens: int, seed: int) -> None:
        self._runner = setup.runner
        self._ahead = setup.ahead
        self._model = model
        self._block_size = setup.ready.limits.block_size
        self._num_blocks = min(cache_tokens // self._block_size, setup.ready.num_blocks)
        self._longest = setup.ready.max_model_len
        self._random = random.Random(seed)
        self._step = 0
        self._launches: list[float] = []
        """Seconds that the calling thread spent on queueing each step, since it was last emptied."""

    def fits(self, rows: int, length: int) -> bool:
        """Whether so many sequences have blocks of their own."""
        return rows * self._blocks_of(length) <= self._num_blocks

    def capture_all(self) -> None:
        """Captures every size of decode steps now, where the runner captures any."""
        if self._ahead is not None:
            while self._ahead.advance(busy=False) is not None:
                pass

    def fill(self) -> None:
        """Writes every block, by prefilling prompts."""
        count = max(1, min(FILL, self._longest) // self._block_size)
        for first in range(0, self._num_blocks, count):
            self._prefill(range(first, min(first + count, self._num_blocks)), 0)

    def decode(self, rows: int, context: int, most: int = MOST, seconds: float = math.inf) -> Timing:
        """Steps in which each of ``rows`` sequences gains a token, the first one seeing ``context`` tokens: for
        ``seconds``, and at most so many."""
        blocks = self._blocks_of(context + _WARMUP + most)
        entering = [
            NewRow(row, self._tokens(context), 1, _GREEDY, row, list(range(row * blocks, (row + 1) * blocks)))
            for row in range(rows)
        ]
        times: list[float] = []

        def plans() -> Iterator[StepPlan]:
            for number in range(_WARMUP + most):
                if len(times) - _WARMUP >= _LEAST and sum(times[_WARMUP:]) >= seconds:
                    return
                spans = [RowStep(row, context - 1 + number, 1, [], True) for row in range(rows)]
                yield self._plan([] if number else entering, spans)

        for taken in self._run(plans()):
            times.append(taken)
        self._runner.release(list(range(rows)))
        return self._summary(times)

    def mixed(self, rows: int, context: int, tokens: int, steps: int) -> Timing:
        """Steps in which each of ``rows`` sequences gains a token and another one ``tokens`` of its prompt."""
        each, count = self._blocks_of(context + _WARMUP + steps), tokens * (_WARMUP + steps)
        blocks = list(range(rows * each, rows * each + self._blocks_of(count)))
        entering = [
            NewRow(row, self._tokens(context), 1, _GREEDY, row, list(range(row * each, (row + 1) * each)))
            for row in range(rows)
        ]
        entering.append(NewRow(rows, self._tokens(count), count, _GREEDY, rows, blocks))

        def plans() -> Iterator[StepPlan]:
            for number in range(_WARMUP + steps):
                spans = [RowStep(row, context - 1 + number, 1, [], True) for row in range(rows)]
                chunk = RowStep(rows, number * tokens, tokens, [], number == _WARMUP + steps - 1)
                yield self._plan([] if number else entering, [*spans, chunk])

        times = list(self._run(plans()))
        self._runner.release(list(range(rows + 1)))
        return self._summary(times)

    def prefill(self, tokens: int, context: int, repeats: int) -> Timing:
        """Steps of one sequence: a chunk of ``tokens`` after ``context`` that are in the cache."""
        blocks = range(self._blocks_of(tokens + context))
        times = [self._prefill(blocks, context, tokens) for _ in range(_WARMUP + repeats)]
        return self._summary(times)

    def _summary(self, times: list[float]) -> Timing:
        """Of a run of steps without those that warm up."""
        launches, self._launches = self._launches, []
        return summarise(times[_WARMUP:], statistics.median(launches[_WARMUP:]))

    def _prefill(self, blocks: Sequence[int], context: int, tokens: int | None = None) -> float:
        """Of all that fits into the blocks where ``tokens`` is None."""
        length = min(self._longest, len(blocks) * self._block_size) if tokens is None else context + tokens
        row = NewRow(0, self._tokens(length), length, _GREEDY, 0, list(blocks))
        (taken,) = self._run([self._plan([row], [RowStep(0, context, length - context, [], True)])])
        self._runner.release([0])
        return taken

    def _plan(self, new: list[NewRow], rows: list[RowStep]) -> StepPlan:
        self._step += 1
        return StepPlan(0, self._step, [], new, rows)

    def _run(self, plans: Iterable[StepPlan]) -> Iterator[float]:
        """Seconds of each step; on a device a step is launched before the one before it is finished."""
        ahead = 1 if self._ahead is None else MAX_PENDING
        flying: deque[tuple[float, Callable[[], StepResult]]] = deque()
        last = 0.0

        def finish() -> float:
            nonlocal last
            began, wait = flying.popleft()
            wait()
            before, last = last, time.perf_counter()
            return last - max(began, before)

        for plan in plans:
            began = time.perf_counter()
            flying.append((began, self._launch(plan)))
            self._launches.append(time.perf_counter() - began)
            if len(flying) == ahead:
                yield finish()
        while flying:
            yield finish()

    def _launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        return partial(self._runner.finish, self._runner.launch(plan))

    def _tokens(self, count: int) -> list[int]:
        return self._random.choices(range(self._model.vocab_size), k=count)

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self._block_size)


def mixed_steps(tokens: int) -> int:
    """How many steps of :meth:`StepRunner.mixed` are timed: few, as its prompt grows with each."""
    return max(4, min(24, 4096 // tokens))


def mixed_length(tokens: int) -> int:
    """Of the prompt of :meth:`StepRunner.mixed`."""
    return tokens * (_WARMUP + mixed_steps(tokens))


def decode_length(context: int, most: int = MOST) -> int:
    """The longest that a sequence of :meth:`StepRunner.decode` may become."""
    return context + _WARMUP + most


def decode_bytes(ready: WorkerReady, model: ModelSpec, rows: int, context: float) -> float:
    """Read by a decode step: all weights but an embedding table that is not the head too, taken as stored like the
    average of the rest; and the keys and values of ``context`` tokens of each row, in all layers."""
    stored = {line.what: line.bytes for line in ready.memory}
    per_token = stored["KV cache"] / (ready.num_blocks * ready.limits.block_size)
    table = 0 if model.tie_embeddings else model.vocab_size * model.hidden_size
    products = sum(map(model.products, range(len(model.layers))))
    share = 1 - table / (2 * table + products)
    return stored["weights"] * share + rows * context * per_token
