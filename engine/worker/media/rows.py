"""Pictures and sounds in prompts: encoded into encoder slots, put in place of placeholder tokens."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec
import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from stentor.kernels import WholeSpan
from stentor.protocols.ipc.steps import EncodeJob, NewRow, RowFault, RowStep, StepPlan, StepResult

from ...layers.forward_batch import ForwardBatch, MediaBatch, SeenMedia
from ...models.towers.payload import GIVEN, PROMPT, Encoded, Payload, read_payload
from ..rows.batch import Batch
from ..rows.extras import ExtraResults, RowExtras
from ..rows.rows import Int64
from .canvas_positions import canvas_positions
from .layout import MediaLayout, MediaReader
from .media_time import MediaTime
from .positions import MediaPositions
from .seen_media import SeenSpan, seen_media, seen_within
from .sliced_encoding import SlicedEncoding

_NOWHERE: Final = np.zeros(0, dtype=np.int64)
Bring = Callable[[Int64], torch.Tensor]
"""Copies host numbers to the device."""
logger = logging.getLogger(__name__)


class Tower(Protocol):
    """Encodes media to embeddings."""

    def encode(self, payload: Payload) -> Encoded: ...


class NoTower:
    """Of a model whose prompts bring embeddings alone."""

    def encode(self, payload: Payload) -> Encoded:
        raise ValueError(f"the model takes no {payload.modality}")


class PlacedRow(msgspec.Struct, frozen=True):
    """A row's tokens [start, start + count) in a pass, where they begin at index ``first``."""

    slot: int
    start: int
    count: int
    first: int
    sequence: int
    """Index of the row in the pass."""


def placed(rows: Sequence[RowStep]) -> Iterator[PlacedRow]:
    """The rows of a pass, concatenated in order."""
    first = 0
    for number, row in enumerate(rows):
        yield PlacedRow(row.slot, row.start, row.count, first, number)
        first += row.count


class _Span(msgspec.Struct, frozen=True):
    """One medium of a row."""

    encoder_slot: int
    placeholders: Int64
    """Positions of its embeddings, in order."""
    causal: bool = False
    """Whether its tokens see those before them alone."""


class _Failure(msgspec.Struct, frozen=True):
    """Why a medium could not be encoded."""

    why: str
    blames: bool
    """Whether the medium is at fault, and not the machine."""


class _Row(msgspec.Struct, frozen=True):
    spans: list[_Span]
    positions: MediaPositions | None
    """None: a token's position is its index."""
    fault: str = ""
    """Why its media cannot be used; "" if they can."""
    first: int = -1
    """Where the first medium begins."""
    words: Int64 = msgspec.field(default_factory=lambda: _NOWHERE)
    """Positions of text tokens that stand for embeddings of the tower."""
    which: Int64 = msgspec.field(default_factory=lambda: _NOWHERE)
    """The embedding of each of these."""
    whole: int = 0
    """Tokens from the first on that see each other."""
    marks: Int64 = msgspec.field(default_factory=lambda: _NOWHERE)
    """Positions of text tokens that use the experts of media."""
    seen: Sequence[SeenSpan] = ()
    """Media to which positions attend, in place of :attr:`spans`."""
    joined: NDArray[np.bool_] | None = None
    """bool [positions from :attr:`first` to the end of the last medium]: which see each other; None: see
    :attr:`MediaRows.batch`."""


class MediaRows(RowExtras):
    """Encodes the media of rows into slots, and puts their embeddings in place of placeholder tokens.

    Encoded media stay in their slot until the engine evicts them.
    """

    def __init__(
        self,
        tower: Tower,
        layout: MediaLayout,
        reader: MediaReader,
        device: torch.device,
        words: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        """``words``: text tokens that stand for embeddings [hidden] of the tower, anywhere in a prompt."""
        super().__init__()
        self._tower, self._layout, self._reader, self._device = tower, layout, reader, device
        words = words or {}
        self._words = np.array(sorted(words), dtype=np.int64)
        self._of_words = torch.stack([words[token] for token in sorted(words)]) if words else None
        self._placeholders = np.array(sorted(layout.placeholders), dtype=np.int64)
        self._marks = None if layout.marks is None else np.array(layout.marks, dtype=np.int64)
        self._joined = (
            None if layout.joined is None else np.array([*layout.joined, *self._placeholders], dtype=np.int64)
        )
        self._rows: dict[int, _Row] = {}
        self._encoded: dict[int, Encoded | _Failure] = {}
        """By encoder slot: the embeddings, or the error."""
        self._begun: dict[int, SlicedEncoding[Encoded]] = {}
        """By encoder slot: encodings begun in slices."""
        self._completed: list[int] = []
        """Encoder slots completed by slices of this step."""
        self._time = MediaTime()
        self._told_room = 0
        self._faults: dict[int, RowFault] = {}
        """By row slot: errors of media that the step reads."""

    @property
    def nbytes(self) -> int:
        """Bytes of the embeddings held now."""
        return sum(each.nbytes for each in self._encoded.values() if isinstance(each, Encoded))

    def enter(self, plan: StepPlan) -> None:
        for slot in plan.forgotten:
            self._encoded.pop(slot, None)
            if (begun := self._begun.pop(slot, None)) is not None:
                begun.drop()
        for new in plan.new:
            worded = len(self._words) and np.isin(new.tokens[: new.prompt_len], self._words).any()
            marked = self._marks is not None and np.isin(new.tokens[: new.prompt_len], self._marks).any()
            if new.spans or worded or marked or self._layout.whole_prompts:
                self._rows[new.slot] = self._read_row(new)
        seconds = self._time.begin(plan.rows, self._rows)
        if plan.encode:
            began = time.perf_counter()
            self._encode_all(plan.encode, None if seconds is None else began + seconds)
            self._time.encoded(time.perf_counter() - began)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._rows.pop(slot, None)

    def concerns(self, rows: Iterable[RowStep]) -> bool:
        """Whether a pass over these rows has media, or positions other than the indices."""
        for row in rows:
            found = self._rows.get(row.slot)
            if found is None:
                continue
            if found.fault or found.positions is not None or any(_within(found.spans, row.start, row.count)):
                return True
            if any(seen_within(found.seen, row.start, row.count)):
                return True
            if row.start < found.whole or any(_between(at, row.start, row.count) for at in (found.words, found.marks)):
                return True
        return False

    def extend(self, batch: ForwardBatch, rows: Sequence[RowStep]) -> ForwardBatch:
        if not self.concerns(rows):
            return batch
        return self.with_media(batch, list(placed(rows)))

    def with_media(self, batch: ForwardBatch, rows: Sequence[PlacedRow]) -> ForwardBatch:
        """The batch with embeddings in place of tokens, and with the positions of these rows."""
        positions = self.positions(batch.positions.cpu().numpy(), rows, self._copied)
        return replace(batch, media=self.batch(rows, self._copied), positions=self._copied(positions))

    def _copied(self, numbers: Int64) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self._device)

    def read(self, batch: Batch, rows: Sequence[RowStep], hidden: torch.Tensor) -> ExtraResults:
        return ExtraResults(faults=self.take_faults())

    def ended(self, result: StepResult) -> StepResult:
        self._time.end(result.seconds)
        room = self._time.room
        if not self._completed and room == self._told_room:
            return result
        completed, self._completed, self._told_room = self._completed, [], room
        return msgspec.structs.replace(result, encoded=completed, media_room=room)

    def take_faults(self) -> list[RowFault]:
        """Rows of the last pass with faulty media, since the last call."""
        faults, self._faults = self._faults, {}
        return [*faults.values()]

    def _fault(self, slot: int, why: str, start: int) -> None:
        """Note the fault of a row; ``start``: see :class:`RowFault`."""
        self._faults[slot] = RowFault(slot, f"the model cannot take the media of the prompt: {why}", start)

    def _encode_all(self, jobs: Sequence[EncodeJob], until: float | None) -> None:
        """Encode media; ``until`` is the deadline of slices by ``time.perf_counter()``, None: no slices.

        The first slice gets at least the time of one part.
        """
        begun = False
        for job in jobs:
            left = 0.0 if until is None else until - time.perf_counter()
            if job.sliced and (until is None or (begun and left <= 0)):
                continue
            begun = True
            self._encode(job, max(0.0, left))
            if self.yield_device is not None:
                self.yield_device()

    def _encode(self, job: EncodeJob, seconds: float) -> None:
        """Encode a medium wholly, the rest of it, or a slice of ``seconds``."""
        slot = job.encoder_slot
        if job.sliced and slot in self._encoded:
            return  # the slice before was the last
        begun = self._begun.pop(slot, None)
        try:
            if begun is None:
                encode = partial(self._encoded_of, read_payload(self.media(job.data)))
                begun = SlicedEncoding(encode, self._time.pace) if job.sliced else None
                if begun is None:
                    self._encoded[slot] = encode()
                    return
            if not begun.run(seconds if job.sliced else None):
                self._begun[slot] = begun
                return
            self._encoded[slot] = begun.result()
        except torch.AcceleratorError:
            raise  # the device is lost, whatever the media are
        except Exception as error:  # code over a stranger's tensors may raise anything
            logger.warning("media cannot be encoded: %s", _one_line(error))
            lacks_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
            self._encoded[slot] = _Failure(_one_line(error), blames=not lacks_memory)
        if job.sliced:
            self._completed.append(slot)

    def _encoded_of(self, payload: Payload) -> Encoded:
        """Raises ValueError for a payload that the tower cannot take."""
        given = payload.tensors.get(GIVEN)
        if given is None:
            encoded = self._tower.encode(payload)
            if encoded.tokens is not None and self._reader.embed is not None:
                encoded = Encoded(self._reader.embed(encoded.tokens))
            if self._reader.keys is not None:
                return Encoded(encoded.embeddings[:0], self._reader.keys(encoded.embeddings))
            if (size := encoded.embeddings.shape[-1]) != self._layout.hidden:
                raise ValueError(
                    f"the model's config.json makes embeddings of {size} numbers, expected {self._layout.hidden}"
                )
            return encoded
        if self._reader.keys is not None:
            raise ValueError("the model attends to pictures, and takes no embeddings in their place")
        if given.dim() != 2 or given.shape[1] != self._layout.hidden or len(payload.tensors) > 1:
            raise ValueError(f"embeddings have shape {list(given.shape)}; expected [embeddings, {self._layout.hidden}]")
        brought = given.to(self._device)
        if payload.modality != PROMPT:
            return Encoded(brought)
        if self._reader.given is None:
            raise ValueError("prompts bring no embeddings here")
        return Encoded(self._reader.given(brought))

    def _read_row(self, new: NewRow) -> _Row:
        if self._reader.keys is not None:
            return _Row([], None, seen=seen_media(new.spans))
        tokens = np.array(new.tokens[: new.prompt_len], dtype=np.int64)
        stands = np.isin(tokens, self._placeholders)
        spans = []
        for span in new.spans:
            at = np.arange(span.start, span.start + span.length)
            spans.append(_Span(span.encoder_slot, at[stands[span.start : span.start + span.length]], span.causal))
        positions = None
        if self._layout.mrope and any(span.grid is not None for span in new.spans):
            both = zip(new.spans, spans, strict=True)
            # sounds have text positions
            runs = [(span, _runs_of(found.placeholders)) for span, found in both if span.grid is not None]
            try:
                if self._layout.axes == "canvas":
                    positions = canvas_positions(tokens, runs, self._layout.canvas)
                else:
                    positions = MediaPositions.of(len(tokens), runs, self._layout.axes)
            except ValueError as error:
                return _Row([], None, str(error), new.spans[0].start)
        words = np.flatnonzero(np.isin(tokens, self._words)) if len(self._words) else _NOWHERE
        which = np.searchsorted(self._words, tokens[words])
        whole = new.prompt_len if self._layout.whole_prompts else 0
        spans = [span for span in spans if span.encoder_slot >= 0]
        marks = _NOWHERE if self._marks is None else np.flatnonzero(np.isin(tokens, self._marks))
        first, joined = -1, None
        if self._joined is not None and new.spans:
            first = new.spans[0].start
            end = new.spans[-1].start + new.spans[-1].length
            joined = np.isin(tokens[first:end], self._joined)
        return _Row(spans, positions, words=words, which=which, whole=whole, marks=marks, first=first, joined=joined)

    def batch(self, rows: Sequence[PlacedRow], bring: Bring) -> MediaBatch | None:
        """The embeddings in place of tokens in a pass; None if there are none. Rows with a fault have none."""
        places: list[Int64] = []
        parts: list[tuple[Encoded, int, int]] = []
        whole: list[WholeSpan] = []
        marks: list[Int64] = []
        seen: list[SeenMedia] = []
        for row in rows:
            found = self._rows.get(row.slot)
            if found is None:
                continue
            seen += self._seen_by(row, found.seen)
            if found.fault:
                self._fault(row.slot, found.fault, found.first)
            if row.start < found.whole:
                count = min(row.count, found.whole - row.start)
                whole.append(WholeSpan(row.first, count, row.sequence, row.start))
            if found.joined is not None and row.start <= found.first < row.start + row.count:
                members = torch.from_numpy(found.joined).to(self._device)
                begins = found.first - row.start + row.first
                whole.append(WholeSpan(begins, len(found.joined), row.sequence, found.first, members))
            for span, begin, end in _within(found.spans, row.start, row.count):
                encoded = self._encoded[span.encoder_slot]
                at_fault = int(span.placeholders[0])
                if isinstance(encoded, _Failure):
                    self._fault(row.slot, encoded.why, at_fault if encoded.blames else -1)
                    continue
                if (have := len(encoded.embeddings)) != (needed := len(span.placeholders)):
                    self._fault(row.slot, f"they have {have} embeddings, and {needed} placeholders", at_fault)
                    continue
                at = span.placeholders[begin:end]
                places.append(at - row.start + row.first)
                parts.append((encoded, begin, end))
                if self._layout.sees_whole and not (
                    self._layout.whole_prompts or found.joined is not None or span.causal
                ):
                    whole += [
                        WholeSpan(first - row.start + row.first, last - first, row.sequence, first)
                        for first, last in _runs_of(at)
                    ]
            if self._of_words is not None and (inside := _between(found.words, row.start, row.count)):
                places.append(found.words[inside] - row.start + row.first)
                chosen = bring(found.which[inside])
                parts.append((Encoded(self._of_words[chosen]), 0, len(chosen)))
            if (marked := _between(found.marks, row.start, row.count)) is not None:
                marks.append(found.marks[marked] - row.start + row.first)
        expert_places = self._expert_places([*places, *marks], rows, bring)
        if not places:
            changes = whole or expert_places or seen
            return MediaBatch(spans=whole, expert_places=expert_places, seen=seen) if changes else None
        layers = sorted({layer for encoded, _, _ in parts for layer in encoded.behind})
        return MediaBatch(
            places=bring(np.concatenate(places)),
            embeddings=torch.cat([encoded.embeddings[begin:end] for encoded, begin, end in parts]),
            behind={
                layer: torch.cat([_behind(encoded, layer)[begin:end] for encoded, begin, end in parts])
                for layer in layers
            },
            spans=whole,
            expert_places=expert_places,
            added=self._layout.added,
        )

    def _seen_by(self, row: PlacedRow, seen: Sequence[SeenSpan]) -> Iterator[SeenMedia]:
        """The media that tokens of a row attend to. Notes a fault of the row if one of them could not be encoded."""
        for each in seen_within(seen, row.start, row.count):
            keys = []
            for slot, begins in each.media:
                encoded = self._encoded[slot]
                if isinstance(encoded, Encoded):
                    keys.append(encoded.behind)
                else:
                    self._fault(row.slot, encoded.why, begins if encoded.blames else -1)
            if len(keys) == len(each.media):
                yield SeenMedia(each.start - row.start + row.first, each.end - each.start, keys)

    def _expert_places(
        self, media: Sequence[Int64], rows: Sequence[PlacedRow], bring: Bring
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Indices of tokens that use the experts of text, and of those that use the experts of ``media``; None if none
        does."""
        if self._marks is None or not media:
            return None
        at = np.concatenate(media)
        texts = np.setdiff1d(np.arange(rows[-1].first + rows[-1].count), at)
        return bring(texts), bring(at)

    def positions(self, positions: Int64, rows: Sequence[PlacedRow], bring: Bring) -> Int64:
        """The positions of all tokens of the next pass; also writes the rotations of media tokens for it."""
        found: list[tuple[int, Int64]] = []
        placed: list[Int64] = []
        for row in rows:
            entry = self._rows.get(row.slot)
            if entry is None or entry.positions is None:
                continue
            found.append((row.first, entry.positions.of_text(row.start, row.count)))
            at, axes = entry.positions.of_media(row.start, row.count)
            placed.append(np.concatenate(((at - row.start + row.first)[:, None], axes), axis=1))
        if not found:
            return positions
        positions = positions.copy()
        for first, of_row in found:
            positions[first : first + len(of_row)] = of_row
        lines = np.concatenate(placed)
        if len(lines):
            first_line = self._reader.place(bring(lines[:, 1:].copy()))
            positions[lines[:, 0]] = np.arange(first_line, first_line + len(lines))
        return positions


def _within(spans: Iterable[_Span], start: int, count: int) -> Iterator[tuple[_Span, int, int]]:
    """Spans with embeddings at [start, start + count), and the range of these embeddings."""
    for span in spans:
        begin, end = np.searchsorted(span.placeholders, (start, start + count))
        if begin < end:
            yield span, int(begin), int(end)


def _one_line(error: Exception) -> str:
    """The first line of the message; with the type of the error unless it is a ValueError."""
    why = str(error).partition("\n")[0]
    return why if isinstance(error, ValueError) else f"{type(error).__name__}, {why}"


def _between(positions: Int64, start: int, count: int) -> slice | None:
    """The slice of ascending positions within [start, start + count); None if empty."""
    begin, end = np.searchsorted(positions, (start, start + count))
    return slice(begin, end) if begin < end else None


def _behind(encoded: Encoded, layer: int) -> torch.Tensor:
    """The addition behind a layer: zeros for media without one, such as sounds beside pictures."""
    found = encoded.behind.get(layer)
    return torch.zeros_like(encoded.embeddings) if found is None else found


def _runs_of(positions: Int64) -> list[tuple[int, int]]:
    """Ascending positions as half-open intervals."""
    if not len(positions):
        return []
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(positions, cuts)]
