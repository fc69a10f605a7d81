"""Workers that split a model, as one runner: each in a thread of its own, with the plans that all get."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from msgspec.structs import replace

from stentor.engine.worker.families.setup_parts import Setup
from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.adapters import AdapterLoaded, AdapterRef
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.steps import Masks, StepPlan, StepResult

T = TypeVar("T")


class _Threads:
    """One thread a rank; the result of each call is that of all ranks."""

    def __init__(self, size: int) -> None:
        self._threads = [ThreadPoolExecutor(1) for _ in range(size)]

    def all(self, run: Callable[[int], T]) -> list[T]:
        started = [thread.submit(run, rank) for rank, thread in enumerate(self._threads)]
        return [each.result() for each in started]


class _RankedExtras:
    """What all ranks have of prompts beside tokens."""

    def __init__(self, threads: _Threads, extras: Sequence[Any]) -> None:
        self._threads, self._extras = threads, extras

    @property
    def media(self) -> Any:
        return self._extras[0].media

    @media.setter
    def media(self, read: Any) -> None:
        for each in self._extras:
            each.media = read

    def enter(self, plan: StepPlan) -> None:
        self._threads.all(lambda rank: self._extras[rank].enter(plan))


class RankedRunner:
    """What :class:`stentor.tests.engine.local.LocalEngine` asks of a runner. Results are rank 0's; the others draw the
    same tokens."""

    def __init__(self, threads: _Threads, setups: Sequence[Setup]) -> None:
        self._threads = threads
        self._runners = [setup.runner for setup in setups]
        own = [runner.extras for runner in self._runners]
        self.extras = None if own[0] is None else _RankedExtras(threads, own)
        self.computes = [setup.runner.compute for setup in setups]

    def forward(self, plan: StepPlan) -> list[Any]:
        return self._threads.all(lambda rank: self._runners[rank].forward(plan))

    def draw(self, forwarded: list[Any], masks: Masks | None = None) -> list[Any]:
        return self._threads.all(lambda rank: self._runners[rank].draw(forwarded[rank], masks))

    def finish(self, pending: list[Any]) -> StepResult:
        first, *others = self._threads.all(lambda rank: self._runners[rank].finish(pending[rank]))
        for other in others:
            assert other.tokens == first.tokens, "ranks drew other tokens"
        return first

    def release(self, slots: Sequence[int]) -> None:
        self._threads.all(lambda rank: self._runners[rank].release(slots))


class RankedAdapters:
    """The adapters of all ranks; each reads its part."""

    def __init__(self, threads: _Threads, setups: Sequence[Setup]) -> None:
        self._threads = threads
        self._stores: list[Any] = [setup.adapters for setup in setups]

    @property
    def numbers(self) -> list[int]:
        return list(self._stores[0].numbers)

    def drop(self, number: int) -> None:
        self._threads.all(lambda rank: self._stores[rank].drop(number))

    def load(self, adapter: AdapterRef) -> None:
        self._threads.all(lambda rank: self._stores[rank].load(adapter))

    def take(self, seconds: float | None) -> list[AdapterLoaded]:
        found: list[AdapterLoaded] = self._threads.all(lambda rank: self._stores[rank].take(seconds))[0]
        return found


def set_up_ranks(config: WorkerConfig) -> Setup:
    """All workers of a configuration. Raises what the first of them raises."""
    size = config.group_size
    threads = _Threads(size)
    meeting = os.memfd_create("ranks")
    try:
        setups = threads.all(lambda rank: set_up(replace(config, rank=rank), lambda *_: None, meeting_fd=meeting))
    finally:
        os.close(meeting)
    runner: Any = RankedRunner(threads, setups)
    adapters: Any = RankedAdapters(threads, setups) if config.enable_lora else None
    return replace(setups[0], runner=runner, adapters=adapters)
