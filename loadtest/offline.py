"""An engine and its worker without a server: what ``stentor bench latency`` and ``throughput`` measure.

The processes and channels are those of ``stentor serve``; HTTP, tokenizer and text are left out.
"""

import argparse
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import anyio
from rich.console import Console

from stentor.engine.client.client import EngineClient, EngineUnavailable
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.processes.exception_groups import first_cause
from stentor.protocols.ipc.actors import Finished, Progress, SequenceTokens
from stentor.protocols.ipc.config import EngineConfig, RecoveryConfig, SchedulerConfig, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams

from .tool import ToolError

R = TypeVar("R")


@dataclass
class Answer:
    """What one request got, in ``time.perf_counter()`` seconds."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    """One for each batch of tokens that the engine sent."""
    tokens: int = 0
    ended: float = 0.0


class Engine:
    """A running engine. Prompts are random tokens, drawn from ``seed``: nothing is shared between two of them."""

    def __init__(self, client: EngineClient, vocab_size: int, seed: int) -> None:
        self._client = client
        self._vocab_size = vocab_size
        self._random = random.Random(seed)

    async def run(self, lengths: Sequence[tuple[int, int]]) -> list[Answer]:
        """Sends greedy requests of (prompt, output) tokens all at once and waits for all.

        Raises :class:`ToolError` where one is refused or ends before its length, or the engine ends.
        """
        prompts = [[self._random.randrange(self._vocab_size) for _ in range(prompt)] for prompt, _ in lengths]
        answers = [Answer(time.perf_counter()) for _ in lengths]
        async with anyio.create_task_group() as tasks:
            for prompt, (_, output), answer in zip(prompts, lengths, answers, strict=True):
                tasks.start_soon(self._one, prompt, output, answer)
        return answers

    async def _one(self, prompt: list[int], output: int, answer: Answer) -> None:
        try:
            stream = self._client.submit(prompt, SamplingParams(max_tokens=output, temperature=0.0), [0])
        except EngineUnavailable as error:
            raise ToolError(f"the engine takes no more requests: {error}") from error
        async for events in stream:
            now = time.perf_counter()
            for event in events:
                if isinstance(event, SequenceTokens):
                    answer.arrivals.append(now)
                    answer.tokens += len(event.tokens)
                elif isinstance(event, Finished) and event.reason != "length":
                    raise ToolError(f"a request of {len(prompt)} tokens ended with {event.reason}: {event.message}")
        answer.ended = time.perf_counter()


@asynccontextmanager
async def running_engine(config: WorkerConfig) -> AsyncIterator[Engine]:
    """An engine that is ready; its processes end with the block.

    Raises :class:`ToolError` where it cannot start, and :class:`stentor.engine.loading.errors.CheckpointError` for a
    model that cannot be used.
    """
    vocab_size = open_checkpoint(Path(config.model), config.load_format).config.vocab_size
    with Console(stderr=True).status("starting the engine") as status:

        def show(progress: Progress) -> None:
            status.update(f"{progress.phase} {progress.done / max(progress.total, 1):.0%}")

        once = RecoveryConfig(max_engine_deaths=1, max_worker_deaths=1)  # what was recovered from is no measurement
        client = EngineClient(EngineConfig(config, SchedulerConfig(prefix_cache=False), once), show)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.run)
            try:
                await client.wait_started()
            except EngineUnavailable as error:
                raise ToolError(str(error)) from error
            status.stop()
            try:
                yield Engine(client, vocab_size, config.seed)
            finally:
                tasks.cancel_scope.cancel()


def offline(
    measure: Callable[[argparse.Namespace, dict[str, Any]], Coroutine[Any, Any, R]],
) -> Callable[[argparse.Namespace, dict[str, Any]], R]:
    """``measure`` on a loop of its own; what it raises comes out without a group around it."""

    def run(arguments: argparse.Namespace, about: dict[str, Any]) -> R:
        failure: BaseException
        try:
            return anyio.run(measure, arguments, about, backend_options={"use_uvloop": True})
        except* Exception as group:
            failure = first_cause(group)
        raise failure

    return run
