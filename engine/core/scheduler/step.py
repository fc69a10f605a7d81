"""Builds a step, and keeps the record of it until its result comes."""

from operator import attrgetter
from typing import Final, NamedTuple

from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import EncodeJob, ForkedRow, NewRow, RowInput, RowSpan, RowStep

from ..cache.prefix import Tables
from ..sequence import Sequence
from .kv_cache_manager import KVCacheManager

MAX_PLAN_BYTES: Final = 16 << 20
"""Most bytes of the rows that enter in one step, if more than one: a fraction of a channel's frame, and of a step's
time to read it."""
_ROW_BYTES: Final = 64
"""Most bytes of a row that enters, without its lists and its request's part."""
_INT_BYTES: Final = 5
"""Most bytes of a token or a block number."""
_COPY_INTS: Final = 3
"""Integers per group for a copied block."""
_HOST_INTS: Final = 6
"""Integers per block, with a host tier: its old contents are copied there, and its new ones from there."""
_NONE: Final[frozenset[int]] = frozenset()
_COUNT: Final = attrgetter("count")
_INT_COST: Final = 10
"""Bytes that an integer counts as: it takes longer to read than as many bytes of text."""


class Owner(NamedTuple):
    """The sequence that a row belonged to when its step was planned."""

    sequence: Sequence
    row_generation: int
    """The sequence's generation then. If it differs now, the sequence has lost that row."""
    end: int
    """End of the row's positions, without drafts."""
    max_gained: int
    """Most tokens that the row may gain; 0 if it samples none."""

    @property
    def has_row(self) -> bool:
        """Whether the sequence still has the row."""
        return self.sequence.row_generation == self.row_generation


Slice = tuple[int, bytes, int]
"""A slice of media encoded in a step: encoder slot, digest, number of the encoding."""


class InFlightStep(NamedTuple):
    """A planned step whose result has not come; ``owners`` is parallel to ``rows``.

    Results are matched by owner, never by slot: the slot may be another's by then.
    """

    step: int
    rows: list[RowStep]
    owners: list[Owner]
    sampled: int
    decoding: int
    """Rows that decode, which come first; the others compute prompts."""
    masked: list[int]
    """Slots of the rows that may be restricted. If there are any, the worker waits for masks before it samples."""
    entered: frozenset[int]
    """Slots of the rows that enter with the step."""
    readers: frozenset[int]
    """Requests whose media the step reads from the arena."""
    slices: tuple[Slice, ...] = ()

    @property
    def decodes_alone(self) -> bool:
        """Whether the step consists of decoding rows only."""
        if self.entered or self.readers or self.sampled < len(self.rows):
            return False
        return all(row.count == 1 for row in self.rows)

    def by_slot(self) -> dict[int, Owner]:
        return {row.slot: owner for row, owner in zip(self.rows, self.owners, strict=True)}


class StepBuilder:
    """The step being planned.

    ``budget`` is the number of tokens that may still be added, ``media_budget`` those of prompts with media, ``chunk``
    the most of one row. ``streams``: rows may have to wait for streamed input. ``waiting`` counts rows that have
    nothing to compute now, but may all have in the next step. ``decoding`` counts rows that decode.
    """

    __slots__ = (
        "_carried",
        "_counted",
        "_kv_cache",
        "_largest",
        "_max_bytes",
        "_origins",
        "_room",
        "budget",
        "chunk",
        "decoding",
        "encode",
        "forks",
        "inputs",
        "is_shared",
        "masked",
        "max_encodings",
        "media_budget",
        "new",
        "owners",
        "readers",
        "rows",
        "sampled",
        "sliced",
        "slices",
        "streams",
        "waiting",
        "wanted",
        "whole_prompts",
    )

    def __init__(
        self,
        budget: int,
        chunk: int,
        kv_cache: KVCacheManager,
        *,
        streams: bool = False,
        max_bytes: int = MAX_PLAN_BYTES,
    ) -> None:
        """``max_bytes`` bounds the rows that enter together; a single row may be larger."""
        self._kv_cache = kv_cache
        self.budget = self._room = self._largest = self.media_budget = budget
        self._max_bytes = max_bytes
        self._carried = 0
        self._origins: dict[int, tuple[int, SamplingParams]] = {}
        """By request: the index in ``new`` of the row that brings its prompt, and that row's parameters."""
        self._counted = 0
        self.chunk = chunk
        self.is_shared = False
        """Whether no prompt of text may use the whole budget while others wait, unless it is complete with that."""
        self.streams = streams
        self.max_encodings = 0
        self.sliced = False
        """Whether media may be encoded in slices."""
        self.slices: list[Slice] = []
        self.whole_prompts = False
        """Whether each prompt waits for all its media, which see each other or all of it."""
        self.encode: list[EncodeJob] = []
        self.readers: set[int] = set()
        """Requests whose media the step reads from the arena."""
        self.wanted: list[int] = []
        """Requests that could begin if their media were written."""
        self.inputs: list[RowInput] = []
        self.new: list[NewRow] = []
        self.forks: list[ForkedRow] = []
        self.rows: list[RowStep] = []
        self.owners: list[Owner] = []
        self.sampled = self.waiting = self.decoding = 0
        self.masked: list[int] = []

    @property
    def works(self) -> bool:
        """Whether the step has anything to do."""
        return bool(self.rows or self.encode)

    @property
    def room(self) -> int:
        """Tokens left of the largest step, which a row that must enter whole may use beyond the budget."""
        # counted on demand, which spares steps that only decode
        self._room -= sum(map(_COUNT, self.rows[self._counted :]))
        self._counted = len(self.rows)
        return self._room

    @property
    def tokens(self) -> int:
        """Tokens that the step computes, drafts included."""
        return self._largest - self.room

    def share_of(self, sequence: Sequence, *, alone: bool) -> int:
        """Positions of a prompt that the step may compute. ``alone``: no other prompt could use the rest of the
        budget."""
        wanted = min(sequence.plannable, self.chunk)
        if self.is_shared and not alone and wanted > self.budget and not sequence.request.media.spans:
            return -(-self.budget // 2)
        return min(wanted, self.budget)

    def takes(self, sequence: Sequence) -> bool:
        """Whether the plan has space for a row that is to enter."""
        return not self._carried or self._carried + self._size(sequence) <= self._max_bytes

    def enter(self, sequence: Sequence) -> None:
        """Add a row that has its slot, blocks and media; if a row of its request enters too, as a fork of that."""
        self._carried += self._size(sequence)
        request = sequence.request
        params = _row_params(sequence)
        origin = self._origin_of(sequence)
        spans = _row_spans(sequence, self._kv_cache)
        if origin >= 0 and self.new[origin].spans == spans:
            outputs = sequence.tokens(request.prompt_len, sequence.length)
            tables = _flat(sequence.tables)
            self.forks.append(ForkedRow(origin, sequence.slot, outputs, sequence.seed, tables, _begins_from(sequence)))
            return
        self._origins[request.rid] = len(self.new), params
        self.new.append(
            NewRow(
                sequence.slot,
                sequence.tokens(0, sequence.length),
                request.prompt_len,
                params,
                sequence.seed,
                _flat(sequence.tables),
                request.name,
                sequence.constraint is not None,
                spans,
                None if request.prompt_done else request.probe,
                request.pooling,
                _begins_from(sequence),
                -1 if request.adapter is None else self._kv_cache.adapters.slot_of(request.adapter.number),
                request.root_digest(),
            )
        )

    def in_flight(self, number: int) -> InFlightStep:
        """The record of this step, once it is complete and sent under ``number``."""
        entered = [row.slot for row in self.new] + [row.slot for row in self.forks]
        return InFlightStep(
            step=number,
            rows=self.rows,
            owners=self.owners,
            sampled=self.sampled,
            decoding=self.decoding,
            masked=self.masked,
            entered=frozenset(entered) if self.new else _NONE,
            readers=frozenset(self.readers) if self.readers else _NONE,
            slices=tuple(self.slices),
        )

    def feed(self) -> None:
        """Add the streamed input that the step's rows read."""
        for sequence, _, end, _ in self.owners:
            if (given := sequence.feed(end + sequence.num_drafts_in_flight)) is not None:
                self.inputs.append(given)
                self.readers.add(sequence.request.rid)

    def _origin_of(self, sequence: Sequence) -> int:
        """Index in ``new`` of a row with the same prompt and parameters; -1 if there is none."""
        found = self._origins.get(sequence.request.rid)
        if found is None or found[1] is not _row_params(sequence):
            return -1
        return found[0] if self.new[found[0]].masked == (sequence.constraint is not None) else -1

    def _size(self, sequence: Sequence) -> int:
        """Estimated cost of a row that enters, at least its bytes in the plan."""
        length, request = sequence.length, sequence.request
        size = _ROW_BYTES + _INT_COST * _table_ints(length, self._kv_cache)
        if self._origin_of(sequence) >= 0:
            return size + _INT_COST * (length - request.prompt_len)
        return size + request.row_bytes + _INT_COST * length

    def add(self, sequence: Sequence, count: int, new_blocks: list[int], state: int = -1) -> None:
        """Plan the next ``count`` positions of a running sequence, and a token if they reach its end; mutates it.

        ``state``: the new slot of its recurrent state; -1: unchanged.
        """
        start = sequence.num_scheduled_tokens
        end = start + count
        sequence.num_scheduled_tokens = end
        sample = False
        if end == sequence.length:
            if sequence.samples:
                sample = True
                self.sampled += 1
                if sequence.constraint is not None:
                    ahead = sequence.num_in_flight
                    if sequence.constraint.restricts(ahead, ahead + sequence.num_drafts_in_flight):
                        self.masked.append(sequence.slot)
                sequence.num_in_flight += 1
                sequence.length = end + 1
                # Its last token by length needs no step of its own: nothing is sampled after it.
                sequence.length_capped = end + 1 == sequence.limit_len
            else:
                sequence.length_capped = True
        self.budget -= count
        self.rows.append(RowStep(sequence.slot, start, count, new_blocks, sample, 0, state))
        self.owners.append(Owner(sequence, sequence.row_generation, end, int(sample)))

    def add_drafts(self, place: int, num_drafts: int, new_blocks: list[int]) -> None:
        """Add drafts to the row at index ``place``, which samples; mutates its sequence.

        ``new_blocks``: all new blocks of the row in this step.
        """
        row = self.rows[place]
        owner = self.owners[place]
        sequence = owner.sequence
        self.rows[place] = RowStep(row.slot, row.start, row.count, new_blocks, row.sample, num_drafts, row.state)
        self.owners[place] = owner._replace(max_gained=1 + num_drafts)
        self._room -= num_drafts
        sequence.num_drafts_in_flight += num_drafts
        if sequence.constraint is not None and row.slot not in self.masked:
            ahead = sequence.num_in_flight - 1
            if sequence.constraint.restricts(ahead, ahead + sequence.num_drafts_in_flight):
                self.masked.append(row.slot)


def _begins_from(sequence: Sequence) -> int:
    """The slot of the recurrent state that its row starts from; -1: none."""
    return sequence.recurrent.checkpoints[0][1] if sequence.recurrent.checkpoints else -1


def _row_spans(sequence: Sequence, kv_cache: KVCacheManager) -> list[RowSpan]:
    """The media that a row reads, and those before it whose grids determine its positions."""
    sent = [span for span in sequence.request.media.spans if span.grid is not None or span in sequence.spans]
    slots = kv_cache.encoder_cache.slots
    return [
        RowSpan(
            slots[span.digest] if span in sequence.spans else -1,
            span.start,
            span.length,
            span.grid,
            span.interval,
            span.causal,
        )
        for span in sent
    ]


def _row_params(sequence: Sequence) -> SamplingParams:
    """The sampling parameters of a sequence's row; without prompt results once the prompt is done."""
    request = sequence.request
    return request.plain_params if request.prompt_done else request.row_params


def _flat(tables: Tables) -> list[int]:
    """Block tables as sent: those of all groups, of equal length, concatenated."""
    return [block for table in tables for block in table]


def whole_row_bytes(sequence: Sequence, kv_cache: KVCacheManager) -> int:
    """The most bytes that a plan may need for a row of the request, however many tokens it has by then."""
    request = sequence.request
    length = request.limit_len
    return _ROW_BYTES + request.row_bytes + _INT_BYTES * (length + _table_ints(length, kv_cache))


def _table_ints(length: int, kv_cache: KVCacheManager) -> int:
    """Integers for the block tables of a row of ``length`` tokens, and for copies to its blocks."""
    each = 1 + _HOST_INTS * bool(kv_cache.pool.host.capacity)
    return kv_cache.groups * (-(-length // kv_cache.block_size) * each + _COPY_INTS)
