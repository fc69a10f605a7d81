"""A sequence of a request, as the scheduler keeps it: plain data and its legal moves."""

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
"""Blocks that count as hashed of a row none of whose blocks are to be."""
_NO_DRAFTS: tuple[int, list[int]] = (-1, [])


class SequenceState(enum.Enum):
    HELD = "held"  # its request's prompt is being prefilled by the leading sequence; not queued
    LOADING = "loading"  # its request awaits what nobody else needs; not queued, holds nothing, blocks nobody
    WAITING = "waiting"  # queued for a slot and blocks: new, forked after the prefill, or preempted
    RUNNING = "running"  # has a slot and blocks, and a row on the worker
    PREEMPTED = "preempted"  # lost its row while a token of it is in flight; queued when that has come
    FINISHED = "finished"  # its terminal message has been made; results still in flight are dropped


class StateError(RuntimeError):
    """A sequence was not in the state that an operation needs."""


class Sequence:
    """One output sequence of a request, and its row while it has one.

    Positions count from the start of the prompt. At all times ``num_computed_tokens <= num_scheduled_tokens <=
    length`` and ``length == prompt_len + len(outputs) + num_in_flight``.

    A step in flight may gain a row several tokens. ``length`` and ``num_scheduled_tokens`` are then the least that
    there will be, and the most is ``num_drafts_in_flight`` above. Blocks are held for the most; what is given back,
    because a window has left it behind, follows from the least.
    """

    __slots__ = (
        "acceptance",
        "branch",
        "checkpoints",
        "constraint",
        "digests",
        "drafts",
        "experts_told",
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
        "num_hashed_blocks",
        "num_in_flight",
        "num_scheduled_tokens",
        "order",
        "outputs",
        "promised",
        "promised_until",
        "ready_len",
        "request",
        "row_generation",
        "samples",
        "seed",
        "slot",
        "spans",
        "state",
        "state_slot",
        "stops",
        "tables",
    )

    def __init__(self, request: "Request", index: int, seed: int, order: Order) -> None:
        self.request = request
        self.constraint: TokenConstraint | None = None
        """Fed with all of ``outputs``; it outlives rows and workers. None where it follows nothing, and until its
        grammar has been compiled."""
        self.index = index
        self.seed = seed
        self.order = order
        self.state = SequenceState.HELD
        self.outputs: list[int] = []
        self.slot = -1
        self.row_generation = 0
        """Counts the rows this sequence has lost; tells results of an earlier row from those of this one."""
        self.tables: Tables = []
        """Its blocks, of each group of layers."""
        self.kept: list[int] = []
        """Of each group, the first block that its window has not left behind."""
        self.num_blocks = 0
        """Length of each table."""
        self.promised = self.promised_until = 0
        """Blocks that its row was admitted with and has not taken, and how long its tables are then."""
        self.spans: list[InputSpan] = []
        """Media that it holds in the encoder cache: what its row has yet to read."""
        self.state_slot = -1
        """Where the recurrent state of its row lies once all planned steps have run; -1: nowhere."""
        self.checkpoints: list[tuple[int, int]] = []
        """States that its row has begun from or left behind, and still holds: behind how many tokens, in which slot."""
        self.stops: tuple[int, int] = (0, 0)
        """Lengths at which its row is to leave its state behind, besides multiples of a length; 0: none."""
        self.branch = 0
        """Tokens whose blocks were known when it looked for a prefix, with or without a state behind them."""
        self.digests: list[bytes] = []
        self.num_hashed_blocks = 0
        """Leading blocks that the prefix cache has been told about."""
        self.experts_told = request.prompt_len
        """Positions whose experts have gone to the client once those of the prompt have."""
        self.num_scheduled_tokens = 0
        """Positions whose KV is written once all planned steps have run, at least."""
        self.num_computed_tokens = 0
        """Positions whose KV is written by steps that have completed."""
        self.length = request.prompt_len
        """Tokens of prompt and output, those in flight included, at least."""
        self.limit_len = request.limit_len
        self.num_in_flight = 0
        """Steps in flight that draw, each a token at least."""
        self.num_drafts_in_flight = 0
        """Draft tokens that these steps may gain beyond."""
        self.drafts: tuple[int, list[int]] = _NO_DRAFTS
        """What the worker will propose behind so many outputs, where that needs masks."""
        self.acceptance: Acceptance | None = None
        """How often its drafts were right; None before it has had any."""
        self.length_capped = False
        """Nothing is left to plan: its last result is in flight."""
        self.ready_len = NO_LIMIT
        """Positions that may be computed: for those after them, input has yet to come."""
        self.fed = 0
        """Bytes of the input that its row has been given."""
        self.fed_end = False
        """Whether its row has been told that the input has ended."""
        self.samples = request.limit_len > request.prompt_len
        """False where no token is wanted, only the prompt's log-probabilities."""
        self.forked = False
        """Has been let go by the leader's prefill and not been admitted yet."""

    @property
    def name(self) -> str:
        return f"{self.request.rid}.{self.index}"

    @property
    def plannable(self) -> int:
        """Positions that the next step may compute: those of the prompt, or those behind it, which a worker computes as
        it has computed them when they were drawn."""
        start, end, prompt_len = self.num_scheduled_tokens, min(self.length, self.ready_len), self.request.prompt_len
        return (min(end, prompt_len) if start < prompt_len else end) - start

    def feed(self, end: int) -> RowInput | None:
        """What positions before ``end`` hear that the row has not been given; None where nothing. Mutates: it is given
        now."""
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
        """Enter ``state``; raises :class:`StateError` unless the present one is among ``expected``."""
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
        """What stands at positions [start, end) of one block, all of it known: tokens, and media where they begin."""
        tokens = array("i", self.tokens(start, end))
        if not (media := self.request.media_at(start, end)):
            return tokens
        found: list[int | bytes] = [*tokens]
        for position, what in media:
            found[position - start] = what
        return found

    @property
    def cacheable_len(self) -> int:
        """Positions before this one may come from the prefix cache: what is asked of later ones is known only where
        they are computed."""
        request = self.request
        if request.params.routed_experts is None:
            return request.cacheable_len
        sent = request.experts_told if request.experts_told < request.prompt_len else self.experts_told
        return min(request.cacheable_len, sent)

    def take_experts(self, row: RowExperts) -> Iterator[SequenceExperts]:
        """What of a row's experts the client has not been told, which it is now; mutates. What a lost row has computed
        is computed again, and told once."""
        request, end = self.request, row.start + row.count
        sent = request.experts_told
        if row.start <= sent < min(end, request.prompt_len):
            request.experts_told = min(end, request.prompt_len)
            yield _experts(request.rid, -1, row, sent, request.experts_told)
        sent = self.experts_told
        if row.start <= sent < end:
            self.experts_told = end
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
                parent = chain_digest(parent, tokens, request.media_between(start, start + block_size))
                shared.append(parent)
        if not digests:
            digests.extend(request.prompt_digests)
        for block in range(len(digests), count):
            parent = digests[-1] if digests else request.root_digest()
            start, end = block * block_size, (block + 1) * block_size
            digests.append(chain_digest(parent, self.tokens(start, end), request.media_between(start, end)))
        return digests

    def parent_digest(self, block: int, block_size: int) -> bytes:
        """The digest of what stands before a block, all of it known."""
        return self.block_digests(block, block_size)[block - 1] if block else self.request.root_digest()

    def drop_row(self) -> None:
        """Forget slot, blocks, media and positions; mutates. The caller has given them back."""
        self.slot = -1
        self.spans = []
        self.fed, self.fed_end = 0, False
        self.tables, self.kept, self.num_blocks = [], [], 0
        self.promised = self.promised_until = 0
        self.num_scheduled_tokens = self.num_computed_tokens = self.num_hashed_blocks = 0
        self.drafts = _NO_DRAFTS
        self.state_slot = -1
        self.checkpoints, self.stops, self.branch = [], (0, 0), 0
        self.length_capped = False
        self.row_generation += 1


def _experts(rid: int, index: int, row: RowExperts, start: int, end: int) -> SequenceExperts:
    """Those of positions [start, end)."""
    each = len(row.data) // row.count
    data = row.data[(start - row.start) * each : (end - row.start) * each]
    return SequenceExperts(rid, index, start, end - start, data)
