"""A sequence of a request in the scheduler: plain data and its legal state transitions."""

import enum
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from stentor.protocols.ipc.actors import SequenceExperts
from stentor.protocols.ipc.inputs import InputSpan
from stentor.protocols.ipc.steps import RowExperts, RowInput

from .cache.followers import Contents
from .cache.prefix import Tables, chain_digest
from .grammar.constraint import TokenConstraint
from .input import NO_LIMIT

if TYPE_CHECKING:
    from .request import Request
    from .scheduler.draft_control import Acceptance

Order = tuple[float, float, int, int]
"""(arrival aged by priority, arrival, submission number, sequence index); smaller is more important."""

NEVER_HASHED: Final = 1 << 60
"""Value of ``num_hashed_blocks`` for rows whose blocks must never be hashed."""
_NO_DRAFTS: tuple[int, list[int]] = (-1, [])


class SequenceState(enum.Enum):
    HELD = "held"  # the leading sequence prefills the prompt of its request; not queued
    LOADING = "loading"  # its request awaits resources of its own; not queued, holds nothing, blocks nobody
    WAITING = "waiting"  # queued for a slot and blocks: new, forked after the prefill, or preempted
    RUNNING = "running"  # has a slot and blocks, and a row on the worker
    PREEMPTED = "preempted"  # lost its row while a token of it is in flight; queued when that has come
    FINISHED = "finished"  # its terminal message has been made; results still in flight are dropped


class StateError(RuntimeError):
    """A sequence is in a state in which the operation is not allowed."""


class RecurrentRow:
    """The recurrent state of a row, in slots of :class:`.scheduler.states.StateCache`; unused if the model has none."""

    __slots__ = ("branch", "checkpoints", "slot", "stops")

    def __init__(self) -> None:
        self.slot = -1
        """Of the state after all planned steps; -1: none."""
        self.checkpoints: list[tuple[int, int]] = []
        """Checkpoints that the row started from or made, and still holds: (tokens, slot)."""
        self.stops: tuple[int, int] = (0, 0)
        """Lengths, besides the regular multiples, at which the row makes a checkpoint; 0: none."""
        self.branch = 0
        """Prefix tokens with known blocks at the last prefix lookup, with or without a state behind them."""


class Sequence:
    """One output sequence of a request, and its row while it has one.

    Positions count from the start of the prompt. At all times ``num_computed_tokens <= num_scheduled_tokens <= length``
    and ``length == prompt_len + len(outputs) + num_in_flight``.

    With drafts, a step in flight may gain a row several tokens. ``length`` and ``num_scheduled_tokens`` are then lower
    bounds; the upper bounds are ``num_drafts_in_flight`` higher. Blocks are allocated for the upper bound. Blocks
    behind a window are freed by the lower bound.
    """

    __slots__ = (
        "acceptance",
        "constraint",
        "digests",
        "drafts",
        "fed",
        "fed_end",
        "forked",
        "index",
        "kept",
        "length",
        "length_capped",
        "limit_len",
        "num_blocks",
        "num_computed_tokens",
        "num_drafts_in_flight",
        "num_experts_sent",
        "num_hashed_blocks",
        "num_in_flight",
        "num_scheduled_tokens",
        "order",
        "outputs",
        "pooled_len",
        "promised",
        "promised_until",
        "ready_len",
        "recurrent",
        "request",
        "row_generation",
        "samples",
        "seed",
        "slot",
        "spans",
        "state",
        "tables",
    )

    def __init__(self, request: "Request", index: int, seed: int, order: Order) -> None:
        # identity
        self.request = request
        self.index = index
        self.seed = seed
        self.order = order
        self.state = SequenceState.HELD
        self.samples = request.limit_len > request.prompt_len
        """False if only the prompt's results are wanted, no token."""
        self.forked = False
        """Released after the leader's prefill, not yet admitted."""

        # output: outlives rows and workers
        self.outputs: list[int] = []
        self.constraint: TokenConstraint | None = None
        """Has accepted all of ``outputs``. None without a grammar, and until it is compiled."""
        self.digests: list[bytes] = []
        """Of leading blocks, as far as they were needed; see :meth:`block_digests`."""
        self.num_experts_sent = request.prompt_len
        """Positions whose experts the client has, apart from those of the prompt."""

        # lengths
        self.length = request.prompt_len
        """Tokens of prompt and output, those in flight included; a lower bound."""
        self.limit_len = request.limit_len
        self.ready_len = NO_LIMIT
        """Positions that may be computed; those after them wait for streamed input."""
        self.length_capped = False
        """Nothing is left to plan; its last result is in flight."""
        self.num_scheduled_tokens = 0
        """Positions with KV written after all planned steps; a lower bound."""
        self.num_computed_tokens = 0
        """Positions with KV written by completed steps."""
        self.num_in_flight = 0
        """Steps in flight that sample: at least one token each."""

        # drafts
        self.num_drafts_in_flight = 0
        """Draft tokens that the steps in flight may add."""
        self.drafts: tuple[int, list[int]] = _NO_DRAFTS
        """(number of outputs, drafts that the worker proposes behind them), where the drafts need masks."""
        self.acceptance: Acceptance | None = None
        """Acceptance of its drafts so far; None before its first."""

        # the row and its blocks
        self.slot = -1
        self.row_generation = 0
        """Rows that this sequence has lost; tells results of an earlier row from those of the present one."""
        self.tables: Tables = []
        """Block table of each cache group."""
        self.kept: list[int] = []
        """First block of each group that its window still covers."""
        self.num_blocks = 0
        """Length of each table."""
        self.num_hashed_blocks = 0
        """Leading blocks whose hashes the prefix cache has."""
        self.promised = self.promised_until = 0
        """Blocks promised to its row at admission and not taken yet; length of its tables once they are taken."""
        self.recurrent = RecurrentRow()

        # media and streamed input of the row
        self.spans: list[InputSpan] = []
        """Media held in the encoder cache because its row has yet to read them."""
        self.fed = 0
        """Bytes of streamed input given to its row."""
        self.fed_end = False
        """Whether the worker knows that the input of its row has ended."""
        self.pooled_len = 0
        """Bytes that its row has returned of a pooled result, of streamed input."""

    @property
    def name(self) -> str:
        return f"{self.request.rid}.{self.index}"

    @property
    def plannable(self) -> int:
        """Positions that the next step may compute: of the prompt alone, or behind it.

        A worker recomputes positions behind the prompt as it computed them when they were sampled, so a step never
        mixes both.
        """
        start, end, prompt_len = self.num_scheduled_tokens, min(self.length, self.ready_len), self.request.prompt_len
        return (min(end, prompt_len) if start < prompt_len else end) - start

    def feed(self, end: int) -> RowInput | None:
        """The input before position ``end`` that the row has not been given; None if there is none. Mutates: marks it
        as given."""
        stream = self.request.input
        if stream is None:
            return None
        until = stream.needed(end)
        ended = stream.ended and until == len(stream)
        if (until, ended) == (self.fed, self.fed_end) or until < self.fed:
            return None
        found = RowInput(self.slot, stream.between(self.fed, until), ended)
        self.fed, self.fed_end = until, ended
        return found

    def move(self, expected: tuple[SequenceState, ...], state: SequenceState) -> None:
        """Enter ``state``. Raises :class:`StateError` unless the present state is among ``expected``."""
        if self.state not in expected:
            wanted = " or ".join(each.value for each in expected)
            raise StateError(
                f"sequence {self.name} is {self.state.value}, but must be {wanted} before it can be {state.value}"
            )
        self.state = state

    def tokens(self, start: int, end: int) -> list[int]:
        """Known tokens at positions [start, end)."""
        prompt_len = self.request.prompt_len
        if end <= prompt_len:
            return self.request.prompt[start:end]
        if start >= prompt_len:
            return self.outputs[start - prompt_len : end - prompt_len]
        return self.request.prompt[start:] + self.outputs[: end - prompt_len]

    def contents(self, start: int, end: int) -> Contents:
        """The known contents at positions [start, end) of one block: tokens, and a key of the medium where one
        begins."""
        tokens = array("i", self.tokens(start, end))
        if not (media := self.request.media.keys(start, end)):
            return tokens
        found: list[int | bytes] = [*tokens]
        for position, what in media:
            found[position - start] = what
        return found

    @property
    def cacheable_len(self) -> int:
        """Positions before this one may come from the prefix cache; requested results of later ones need
        computation."""
        request = self.request
        if request.params.routed_experts is None:
            return request.cacheable_len
        sent = request.num_experts_sent if request.num_experts_sent < request.prompt_len else self.num_experts_sent
        return min(request.cacheable_len, sent)

    def take_experts(self, row: RowExperts) -> Iterator[SequenceExperts]:
        """The part of a row's experts that the client does not have. Mutates: marks it as sent.

        A row that is computed again reports the same experts again; they are sent once.
        """
        request, end = self.request, row.start + row.count
        sent = request.num_experts_sent
        if row.start <= sent < min(end, request.prompt_len):
            request.num_experts_sent = min(end, request.prompt_len)
            yield _experts(request.rid, -1, row, sent, request.num_experts_sent)
        sent = self.num_experts_sent
        if row.start <= sent < end:
            self.num_experts_sent = end
            yield _experts(request.rid, self.index, row, sent, end)

    def block_digests(self, count: int, block_size: int) -> list[bytes]:
        """Digests of at least the first ``count`` blocks, all of whose tokens must be known."""
        digests = self.digests
        if len(digests) >= count:
            return digests
        request = self.request
        if request.prompt_digests is None:
            parent = request.root_digest()
            request.prompt_digests = shared = []
            for start in range(0, request.prompt_len - block_size + 1, block_size):
                tokens = request.prompt[start : start + block_size]
                parent = chain_digest(parent, tokens, request.media.key(start, start + block_size))
                shared.append(parent)
        if not digests:
            digests.extend(request.prompt_digests)
        for block in range(len(digests), count):
            parent = digests[-1] if digests else request.root_digest()
            start, end = block * block_size, (block + 1) * block_size
            digests.append(chain_digest(parent, self.tokens(start, end), request.media.key(start, end)))
        return digests

    def parent_digest(self, block: int, block_size: int) -> bytes:
        """The digest of everything before ``block``, all of which must be known."""
        return self.block_digests(block, block_size)[block - 1] if block else self.request.root_digest()

    def drop_row(self) -> None:
        """Forget slot, blocks, media and positions. The caller has freed them already."""
        self.slot = -1
        self.spans = []
        self.fed, self.fed_end, self.pooled_len = 0, False, 0
        self.tables, self.kept, self.num_blocks = [], [], 0
        self.promised = self.promised_until = 0
        self.num_scheduled_tokens = self.num_computed_tokens = self.num_hashed_blocks = 0
        self.drafts = _NO_DRAFTS
        self.recurrent = RecurrentRow()
        self.length_capped = False
        self.row_generation += 1


def _experts(rid: int, index: int, row: RowExperts, start: int, end: int) -> SequenceExperts:
    """The experts of positions [start, end)."""
    each = len(row.data) // row.count
    data = row.data[(start - row.start) * each : (end - row.start) * each]
    return SequenceExperts(rid, index, start, end - start, data)
