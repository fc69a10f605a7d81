"""Steps as captured graphs: which sizes there are, which one a step takes, and when they are captured."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stentor.protocols.ipc.config import WorkerConfig

from .device import Device, Graph
from .errors import SetupError

logger = logging.getLogger(__name__)

Body = Callable[[], None]

_SMALL_SIZES: Final = (1, 2, 4, 8, 16, 24, 32)
_FINE_UP_TO: Final = 256
_FINE, _COARSE = 8, 32
_BESIDE_PROMPTS: Final = (1, 4, 16, 32, 64, 128, 192, 256)
"""Decode rows of a graph that prompts stand in as well."""
_TOKENS_A_PROMPT: Final = 16
"""So many tokens of a size hold one more prompt, up to :data:`_MOST_PROMPTS`."""
_MOST_PROMPTS: Final = 32
_FREE_TOKENS: Final = 256
"""A step of so few tokens reads the weights for longer than it multiplies: padding up to here costs little."""
_MOST_PADDING: Final = 128
"""Tokens that a larger step may be filled up with: for more, running it eagerly takes less."""


class CaptureError(Exception):
    """A graph could not be captured. What the device's allocator and stream are in afterwards nobody knows: the process
    must end, and another go on without graphs."""


@dataclass(frozen=True)
class GraphSize:
    """The steps that one graph can run: any with as many rows that decode, and as many tokens of prompts, or fewer."""

    decodes: int
    """Rows of one token each."""
    prompt_tokens: int = 0
    """Of all prompts together; 0: the graph is of decode rows alone."""
    adapted: bool = False
    """Whether rows may have adapters; without, steps need not look for any."""

    @property
    def prompts(self) -> int:
        """Rows that are no decode rows."""
        if not self.prompt_tokens:
            return 0
        return min(max(1, self.prompt_tokens // _TOKENS_A_PROMPT), _MOST_PROMPTS)

    @property
    def rows(self) -> int:
        """Decode rows, prompts, and behind these one of nobody that has the tokens by which prompts are padded."""
        return self.draws + (self.prompt_tokens > 0)

    @property
    def draws(self) -> int:
        """A token is drawn for every row but the last of nobody."""
        return self.decodes + self.prompts

    @property
    def tokens(self) -> int:
        return self.decodes + self.prompt_tokens

    def __str__(self) -> str:
        beside = f" and {self.prompt_tokens} tokens of prompts" if self.prompt_tokens else ""
        return f"{self.decodes} decoding rows{beside}{' with adapters' if self.adapted else ''}"


def default_sizes(max_rows: int) -> list[int]:
    """Decode rows, ascending, up to ``max_rows``: close to each other, so that little of a step is padding."""
    fine = range(_SMALL_SIZES[-1] + _FINE, _FINE_UP_TO + 1, _FINE)
    coarse = range(_FINE_UP_TO + _COARSE, max_rows, _COARSE)
    return [*(size for size in (*_SMALL_SIZES, *fine, *coarse) if size < max_rows), max_rows]


def mixed_sizes(decodes: Iterable[int], most_tokens: int, budget: int) -> list[GraphSize]:
    """Steps with prompts of up to ``most_tokens``, alone and beside so many ``decodes``, which are few: every further
    one is a graph for each number of tokens. None that a step of at most ``budget`` tokens would never take."""
    most_tokens = min(most_tokens, budget)
    if most_tokens <= 0:
        return []
    tokens = [*(size for size in (16, *range(64, most_tokens, 64)) if size < most_tokens), most_tokens]
    rows = sorted({0, *decodes})
    return [
        GraphSize(some, count)
        for some, least in zip(rows, (0, *(each + 1 for each in rows)), strict=False)
        for count, fewest in zip(tokens, (1, *(each + 1 for each in tokens)), strict=False)
        if least + fewest <= budget
    ]


def graph_sizes(config: WorkerConfig) -> list[GraphSize]:
    """The steps to capture, in this order; none where graphs are off, or where workers split the model: each captures
    when it has time, and what it captures would wait for the others.

    The largest comes first, in whose memory all others find room for their temporaries. Then decode steps of 1, 2, 4, 8
    rows and so on, in which all others find room with at most as much padding again; then prompts, few decoding rows
    beside them before many and the most tokens first; then the decode steps between.
    """
    if not config.cuda_graphs or config.tensor_parallel_size > 1:
        return []
    most = config.max_num_seqs
    decodes = sorted(set(config.cuda_graph_sizes)) or default_sizes(most)
    if wrong := [size for size in decodes if not 1 <= size <= most]:
        raise SetupError(f"--cuda-graph-sizes {wrong[0]}: expected 1 to the {most} rows of --max-num-seqs")
    coarse = (*_BESIDE_PROMPTS, *range(_FINE_UP_TO + 128, most, 128), most)
    beside = decodes if config.cuda_graph_sizes else [size for size in coarse if size <= most]
    mixed = mixed_sizes(beside, config.cuda_graph_prompt_tokens, config.max_num_batched_tokens)
    common = [rows for rows in decodes if rows & (rows - 1) == 0 or rows == decodes[-1]]
    ordered = [
        *(GraphSize(rows) for rows in common),
        *sorted(mixed, key=lambda size: (size.decodes, -size.prompt_tokens)),
        *(GraphSize(rows) for rows in decodes if rows not in common),
    ]
    if config.enable_lora:
        ordered = [replace(size, adapted=adapted) for size in ordered for adapted in (True, False)]
    largest = max(ordered, key=lambda size: (size.tokens, size.rows, size.adapted))
    return [largest, *(size for size in ordered if size != largest)]


def within_rows(sizes: Iterable[GraphSize], rows: int) -> list[GraphSize]:
    """The same in their order, where no more than so many rows can run."""
    return list(dict.fromkeys(replace(size, decodes=min(size.decodes, rows)) for size in sizes))


class StallBudget:
    """Seconds that background work may take of each second from steps that wait, on average.

    A piece of work cannot be cut: it may start once earlier ones are paid for, and what it took is owed after.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic, credit: float = 0.0) -> None:
        """``credit``: seconds that are paid for from the beginning."""
        self._share = share
        self._clock = clock
        self._owed = -credit
        self._counted = clock()

    def wait(self) -> float:
        """Seconds until work may start."""
        now = self._clock()
        self._owed = min(self._owed, max(0.0, self._owed - (now - self._counted) * self._share))
        self._counted = now
        if self._share <= 0.0:
            return math.inf
        return max(0.0, self._owed) / self._share

    def spend(self, seconds: float) -> None:
        """Work took so long, while others waited."""
        self._owed += seconds
        self.wait()


@dataclass(frozen=True)
class StepGraph:
    """Two graphs, since rows with a grammar get their masks between them."""

    size: GraphSize
    forward: Graph
    draw: Graph


class StepGraphs:
    """The dispatcher: it alone knows which sizes are captured.

    Each takes two pieces of work: a run without a graph, in which kernels are compiled and libraries choose theirs, and
    then the capture. The first size that it is given comes first; of the rest always the one that most steps would have
    run in, and where no step has, the next in order. While steps run, only what one of them would have run in is
    captured: what nobody has asked for waits until the worker has nothing to do.
    """

    def __init__(
        self,
        device: Device,
        sizes: Sequence[GraphSize],
        warm: Callable[[GraphSize], None],
        bodies: Callable[[GraphSize], tuple[Body, Body]],
        budget: StallBudget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``sizes`` in the order in which they are captured where no step decides. ``warm`` runs a step of nobody of a
        size; ``bodies`` gives its forward and draw, to be captured."""
        self._device = device
        self._waiting = list(sizes)
        self._missed: Counter[GraphSize] = Counter()
        """Steps that would have run in a size, of those that wait."""
        self._warmed: GraphSize | None = None
        self._warm = warm
        self._bodies = bodies
        self._budget = budget
        self._clock = clock
        self._captured: dict[GraphSize, StepGraph] = {}
        ascending = sorted(sizes, key=lambda size: (size.tokens, size.rows))
        self._holding = {
            (mixed, adapted): [
                (size.decodes, size.prompts, size.prompt_tokens, size)
                for size in ascending
                if (size.prompt_tokens > 0) == mixed and size.adapted == adapted
            ]
            for mixed in (False, True)
            for adapted in (False, True)
        }
        """Sizes of decode rows alone and those with prompts, without adapters and with, from few tokens to many, with
        what each holds: every step looks here."""
        self._seconds = 0.0

    @property
    def captured(self) -> list[GraphSize]:
        """From few tokens to many."""
        return sorted(self._captured, key=lambda size: (size.tokens, size.rows))

    @property
    def finished(self) -> bool:
        """Whether no size waits to be captured."""
        return not self._waiting

    def graph_for(
        self, decodes: int, prompts: int = 0, prompt_tokens: int = 0, *, adapted: bool = False
    ) -> StepGraph | None:
        """The one with the least padding for a step of so many rows that decode, and of prompts; None where none holds
        it, or where padding would take longer than what a graph saves. Decode steps take those of decode rows alone."""
        missed = False
        for most_decodes, most_prompts, most_tokens, size in self._holding[prompt_tokens > 0, adapted]:
            if most_decodes < decodes or most_tokens < prompt_tokens or most_prompts < prompts:
                continue
            tokens = most_decodes + most_tokens
            padding = tokens - decodes - prompt_tokens
            if prompt_tokens and tokens > _FREE_TOKENS and padding > _MOST_PADDING:
                return None
            if (graph := self._captured.get(size)) is not None:
                return graph
            if not missed:
                missed = True
                self._missed[size] += 1
        return None

    def advance(self, *, busy: bool) -> float | None:
        """Does the next piece of work if it may be done now.

        Args:
            busy: steps run or wait; then the budget counts, and what none of them would run in is left for later.

        Returns:
            seconds until the next may be done, None when all is. Without an end where a step must come first.

        Raises:
            CaptureError: no further step may run on this device.
        """
        if self.finished:
            return None
        if busy and not self._missed:
            return math.inf
        if busy and (seconds := self._budget.wait()) > 0:
            return seconds
        began = self._clock()
        self._work()
        taken = self._clock() - began
        self._seconds += taken
        if busy:
            self._budget.spend(taken)
        if self.finished:
            return None
        return self._budget.wait() if busy else 0.0

    def _work(self) -> None:
        size = self._warmed or self._next()
        try:
            if self._warmed is None:
                self._warm(size)
                self._warmed = size
                return
            forward, draw = self._bodies(size)
            graph = StepGraph(size, self._device.capture(forward), self._device.capture(draw))
        except Exception as error:
            self._waiting.clear()
            raise CaptureError(f"capturing a CUDA graph of {size} failed: {type(error).__name__}") from error
        self._warmed = None
        self._waiting.remove(size)
        self._missed.pop(size, None)
        self._captured[size] = graph
        logger.debug("captured a graph of %s", size)
        if self.finished:
            largest = self.captured[-1]
            logger.info(
                "%d CUDA graphs captured in %.1f s, the largest of %s", len(self._captured), self._seconds, largest
            )

    def _next(self) -> GraphSize:
        return max(self._waiting, key=lambda size: self._missed[size]) if self._captured else self._waiting[0]
