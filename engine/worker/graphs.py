"""Decode steps as captured graphs: which sizes there are, which one a step takes, and when they are captured."""

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stentor.protocols.ipc.config import WorkerConfig

from .device import Device, Graph
from .errors import SetupError

logger = logging.getLogger(__name__)

Body = Callable[[], None]

_SMALL_SIZES = (1, 2, 4, 8, 16, 24, 32)
_FINE_UP_TO = 256
_FINE, _COARSE = 8, 32


def default_sizes(max_rows: int) -> list[int]:
    """Ascending, up to ``max_rows``: close to each other, so that little of a step is padding."""
    fine = range(_SMALL_SIZES[-1] + _FINE, _FINE_UP_TO + 1, _FINE)
    coarse = range(_FINE_UP_TO + _COARSE, max_rows, _COARSE)
    return [*(size for size in (*_SMALL_SIZES, *fine, *coarse) if size < max_rows), max_rows]


def graph_sizes(config: WorkerConfig) -> list[int]:
    """Rows of the decode steps to capture, ascending; none where graphs are off, or where workers split the model:
    each captures when it has time, and what it captures would wait for the others."""
    if not config.cuda_graphs or config.tensor_parallel_size > 1:
        return []
    if not config.cuda_graph_sizes:
        return default_sizes(config.max_num_seqs)
    wrong = [size for size in config.cuda_graph_sizes if not 1 <= size <= config.max_num_seqs]
    if wrong:
        raise SetupError(
            f"--cuda-graph-sizes {wrong[0]}: expected 1 to the {config.max_num_seqs} rows of --max-num-seqs"
        )
    return sorted(set(config.cuda_graph_sizes))


class StallBudget:
    """Seconds that background work may take of each second from steps that wait, on average.

    A piece of work cannot be cut: it may start once earlier ones are paid for, and what it took is owed after.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._owed = 0.0
        self._counted = clock()

    def wait(self) -> float:
        """Seconds until work may start."""
        now = self._clock()
        self._owed = max(0.0, self._owed - (now - self._counted) * self._share)
        self._counted = now
        if self._share <= 0.0:
            return math.inf
        return self._owed / self._share

    def spend(self, seconds: float) -> None:
        """Work took so long, while others waited."""
        self._owed += seconds
        self.wait()


@dataclass(frozen=True)
class DecodeGraph:
    """Two graphs, since rows with a grammar get their masks between them."""

    forward: Graph
    draw: Graph


class DecodeGraphs:
    """The dispatcher: it alone knows which sizes are captured.

    Sizes are taken largest first, so that the smaller ones find the memory of temporaries in the pool that the
    largest has filled. Each takes two pieces of work: a run without a graph, in which kernels are compiled
    and libraries choose theirs, and then the capture.
    """

    def __init__(
        self,
        device: Device,
        sizes: Iterable[int],
        warm: Callable[[int], None],
        bodies: Callable[[int], tuple[Body, Body]],
        budget: StallBudget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``warm`` runs a step of so many rows of nobody; ``bodies`` gives its forward and draw, to be captured."""
        self._device = device
        self._waiting = sorted(set(sizes))
        self._warmed: int | None = None
        self._warm = warm
        self._bodies = bodies
        self._budget = budget
        self._clock = clock
        self._captured: dict[int, DecodeGraph] = {}
        self._sizes: list[int] = []

    @property
    def captured(self) -> list[int]:
        """Ascending."""
        return list(self._sizes)

    @property
    def finished(self) -> bool:
        """Whether no size waits to be captured."""
        return not self._waiting

    def size_for(self, rows: int) -> int | None:
        """The smallest captured size that holds so many rows; None where there is none."""
        return next((size for size in self._sizes if size >= rows), None)

    def __getitem__(self, size: int) -> DecodeGraph:
        return self._captured[size]

    def advance(self, *, busy: bool) -> float | None:
        """Does the next piece of work if it may be done now.

        Args:
            busy: steps run or wait; then the budget counts.

        Returns:
            seconds until the next may be done, None when all is.
        """
        if self.finished:
            return None
        if busy and (seconds := self._budget.wait()) > 0:
            return seconds
        began = self._clock()
        self._work()
        if busy:
            self._budget.spend(self._clock() - began)
        if self.finished:
            return None
        return self._budget.wait() if busy else 0.0

    def _work(self) -> None:
        size = self._waiting[-1]
        try:
            if self._warmed != size:
                self._warm(size)
                self._warmed = size
                return
            forward, draw = self._bodies(size)
            graph = DecodeGraph(self._device.capture(forward), self._device.capture(draw))
        except RuntimeError:
            # steps run without graphs as they did so far; a device that is broken says so in the next one
            logger.exception("decode steps of up to %d rows run without graphs: capturing one failed", size)
            self._waiting.clear()
            return
        self._waiting.pop()
        self._captured[size] = graph
        self._sizes = sorted(self._captured)
        logger.debug("captured decode steps of %d rows", size)
        if self.finished:
            logger.info("decode steps of up to %d rows run as graphs of %d sizes", self._sizes[-1], len(self._sizes))
