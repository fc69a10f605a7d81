"""CUDA graphs of steps: the captured sizes, the choice for a step, and when to capture."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from stentor.kernels import MAX_DECODE_QUERY_LEN
from stentor.protocols.ipc.config import WorkerConfig

from ..errors import SetupError
from .device import Device, Graph

logger = logging.getLogger(__name__)

Body = Callable[[], None]

_SMALL_SIZES: Final = (1, 2, 4, 8, 16, 24, 32)
_FINE_UP_TO: Final = 256
_FINE, _COARSE = 8, 32
_BESIDE_PROMPTS: Final = (1, 4, 16, 32, 64, 128, 192, 256)
"""Decode rows of graphs that also contain prompts."""
_TOKENS_A_PROMPT: Final = 16
"""Tokens of a size for each prompt in it, up to :data:`_MOST_PROMPTS`."""
_MOST_PROMPTS: Final = 32
_FREE_TOKENS: Final = 256
"""Steps of up to this many tokens are bound by reading weights, so padding up to here costs little."""
_MOST_PADDING: Final = 128
"""Most padding of a larger step; beyond, running it eagerly is faster."""


class CaptureError(Exception):
    """A graph could not be captured. The state of the device's allocator and stream is undefined, so the process must
    end; the next one runs without graphs."""


class GraphSize(msgspec.Struct, frozen=True):
    """The steps that one graph can run: any with up to so many decode rows and prompt tokens."""

    decodes: int
    """Rows of one token each, or the tokens of rows with drafts; see ``query_len``."""
    prompt_tokens: int = 0
    """Tokens of all prompts together; 0: the graph is for decode rows only."""
    adapted: bool = False
    """Whether rows may have adapters; other graphs do not check for any."""
    query_len: int = 1
    """Most tokens of a decode row. Above 1, ``decodes`` counts their tokens: one row, or up to as many."""

    @property
    def prompts(self) -> int:
        """Rows of prompts."""
        if not self.prompt_tokens:
            return 0
        return min(max(1, self.prompt_tokens // _TOKENS_A_PROMPT), _MOST_PROMPTS)

    @property
    def rows(self) -> int:
        """Decode rows, prompts, and with prompts a last padding row that has the unused prompt tokens."""
        return self.draws + (self.prompt_tokens > 0)

    @property
    def draws(self) -> int:
        """Rows that sample: all but the padding row."""
        return self.decodes + self.prompts

    @property
    def tokens(self) -> int:
        return self.decodes + self.prompt_tokens

    def __str__(self) -> str:
        beside = f" and {self.prompt_tokens} tokens of prompts" if self.prompt_tokens else ""
        if self.query_len > 1:
            return f"{self.decodes} tokens of rows with drafts"
        return f"{self.decodes} decoding rows{beside}{' with adapters' if self.adapted else ''}"


def default_sizes(max_rows: int) -> list[int]:
    """Numbers of decode rows up to ``max_rows``, ascending; close together, so that little of a step is padding."""
    fine = range(_SMALL_SIZES[-1] + _FINE, _FINE_UP_TO + 1, _FINE)
    coarse = range(_FINE_UP_TO + _COARSE, max_rows, _COARSE)
    return [*(size for size in (*_SMALL_SIZES, *fine, *coarse) if size < max_rows), max_rows]


def mixed_sizes(decodes: Iterable[int], most_tokens: int, budget: int) -> list[GraphSize]:
    """Sizes with prompts of up to ``most_tokens``, alone and with the numbers ``decodes`` of decode rows.

    ``decodes`` should be few, since each needs a graph for every number of tokens. Omits sizes that a step of at most
    ``budget`` tokens never uses.
    """
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
    """The sizes to capture, in order; empty if graphs are disabled, or if workers split the model.

    In the latter case each worker would capture at its own time, and its captured collectives would wait for the
    others.

    The largest size comes first, because its memory for temporaries serves all others. Then decode steps of 1, 2, 4, 8
    rows and so on, which hold all others with at most as much padding again; then prompts, with few decode rows before
    many and the most tokens first; then the decode steps between.
    """
    if not config.cuda_graphs or config.group_size > 1:
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


def draft_sizes(config: WorkerConfig) -> list[GraphSize]:
    """The sizes of steps in which rows have drafts, in order of capture: the largest, then from few tokens to many.

    A size is a number of tokens, however rows share them, so there are no more than for decode rows: 35 by default, up
    to 256 tokens. Empty without drafts, or where :func:`graph_sizes` is.
    """
    if config.speculative is None or not graph_sizes(config):
        return []
    longest = min(1 + config.speculative.num_speculative_tokens, MAX_DECODE_QUERY_LEN)
    query_len = 1 << (longest - 1).bit_length()
    most = min(config.max_num_seqs * query_len, config.max_num_batched_tokens)
    if config.cuda_graph_sizes:
        tokens = sorted({min(rows * query_len, most) for rows in config.cuda_graph_sizes})
    else:
        tokens = default_sizes(min(most, _FREE_TOKENS))
    return [GraphSize(count, query_len=query_len) for count in (tokens[-1], *tokens[:-1])]


def within_rows(sizes: Iterable[GraphSize], rows: int) -> list[GraphSize]:
    """The sizes in order, limited to ``rows`` decode rows."""
    return list(dict.fromkeys(replace(size, decodes=min(size.decodes, rows)) for size in sizes))


class GraphCapture(msgspec.Struct, frozen=True):
    """Which sizes become graphs, and how much steps may be delayed for it."""

    sizes: Sequence[GraphSize] = ()
    """In this order."""
    stall: float = 0.0
    """The share of the time that capturing may take while steps run."""
    credit: float = 0.25
    """Seconds of it paid in advance, for the graphs that the first steps would use, since they are slower without."""
    clock: Callable[[], float] = time.monotonic


class StallBudget:
    """Limits the time of background work that delays steps, as a share of the time on average.

    A piece of work cannot be split: it may start once earlier ones are paid off, and its time is owed afterwards.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic, credit: float = 0.0) -> None:
        """``credit``: seconds paid in advance."""
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
        """Record that work delayed steps by ``seconds``."""
        self._owed += seconds
        self.wait()


class StepGraph(msgspec.Struct, frozen=True):
    """Two graphs of a step, because rows with grammars get their masks in between."""

    size: GraphSize
    forward: Graph
    draw: Graph | None
    """None if the host samples."""


class StepGraphs:
    """Captures graphs and chooses the one for a step.

    Each graph takes two pieces of work: a run without a graph, in which kernels are compiled and libraries initialised,
    and the capture. The first size comes first. Then always the size that most steps would have used, or the next in
    order if no step would have used any. While steps run, only sizes that they would have used are captured; others
    wait until the worker is idle.
    """

    def __init__(
        self,
        device: Device,
        capture: GraphCapture,
        warm: Callable[[GraphSize], None],
        bodies: Callable[[GraphSize], tuple[Body, Body | None]],
    ) -> None:
        """
        Args:
            warm: runs a padding-only step of a size.
            bodies: returns the forward and draw of a size, to be captured; no draw if the host samples.
        """
        self._device = device
        self._waiting = list(capture.sizes)
        self._missed: Counter[GraphSize] = Counter()
        """Steps that would have used a size not captured yet."""
        self._warmed: GraphSize | None = None
        self._warm = warm
        self._bodies = bodies
        self._budget = StallBudget(capture.stall, capture.clock, capture.credit)
        self._clock = capture.clock
        self._captured: dict[GraphSize, StepGraph] = {}
        ascending = sorted(capture.sizes, key=lambda size: (size.tokens, size.rows))
        self._holding = {
            (mixed, adapted): [
                (size.decodes, size.prompts, size.prompt_tokens, size)
                for size in ascending
                if (size.prompt_tokens > 0) == mixed and size.adapted == adapted
            ]
            for mixed in (False, True)
            for adapted in (False, True)
        }
        """The sizes with their capacities, from few tokens to many, by (with prompts, with adapters); read in every
        step."""
        self._seconds = 0.0

    @property
    def captured(self) -> list[GraphSize]:
        """The sizes captured so far, ascending by tokens."""
        return sorted(self._captured, key=lambda size: (size.tokens, size.rows))

    @property
    def finished(self) -> bool:
        """Whether all sizes are captured."""
        return not self._waiting

    def graph_for(
        self, decodes: int, prompts: int = 0, prompt_tokens: int = 0, *, adapted: bool = False
    ) -> StepGraph | None:
        """The graph with the least padding for a step; None if none is large enough, or padding would cost more than it
        saves.

        Decode steps use graphs without prompts.
        """
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
        """Do the next piece of work if it may be done now.

        Args:
            busy: steps run or wait. Then the budget applies, and sizes that no step would have used are left for later.

        Returns:
            seconds until the next may be done; None if all is done. Infinite if a step must come first.

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
            first, second = self._device.capture(forward), None if draw is None else self._device.capture(draw)
            graph = StepGraph(size, first, second)
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
