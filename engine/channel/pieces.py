"""Splits large messages into pieces, so that the receiver can read others in between.

The results of a step for prompts (log-probabilities, vectors) have no bound of their own, nor do the outputs of a
resumed request. They go ahead of their message in frames of about :data:`PIECE_BYTES`, and the receiver joins them.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from stentor.protocols.ipc.actors import (
    Finished,
    PromptDone,
    PromptPart,
    ResumedPart,
    SequenceExperts,
    SequenceTokens,
    Submit,
    TokensBatch,
)
from stentor.protocols.ipc.codec import encoder
from stentor.protocols.ipc.pooling import Pooled
from stentor.protocols.ipc.steps import (
    PooledPart,
    PromptLogprobs,
    RowExperts,
    RowPooled,
    StepPart,
    StepResult,
    TokenLogprobs,
)

from . import MAX_FRAME

T = TypeVar("T")
E = TypeVar("E", RowExperts, SequenceExperts)

PIECE_BYTES: Final = 256 << 10
"""Most bytes of a frame whose message can be split; reading that many bytes of numbers takes about 5 ms."""
_NUMBER_BYTES: Final = 4
_TOKEN_BYTES: Final = 6
"""Most bytes of one token, including its share of the message around."""


# ---- from a client to its engine


def submit_frames(submit: Submit, max_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """The frames of a request, in order; its resumed outputs may go ahead of it."""
    frame = encoder.encode(submit)
    if len(frame) > max_bytes:
        if submit.resumed is not None:
            each = max(1, max_bytes // _TOKEN_BYTES)
            for index, tokens in enumerate(submit.resumed.outputs):
                for start in range(0, len(tokens), each):
                    yield encoder.encode(ResumedPart(submit.rid, index, tokens[start : start + each]))
            bare = msgspec.structs.replace(submit.resumed, outputs=[[] for _ in submit.seeds])
            submit = msgspec.structs.replace(submit, resumed=bare)
        frame = encoder.encode(submit)
    yield frame


class ResumedParts:
    """Collects the outputs that come ahead of resumed requests."""

    def __init__(self) -> None:
        self._tokens: dict[int, dict[int, list[int]]] = {}

    def add(self, part: ResumedPart) -> None:
        self._tokens.setdefault(part.rid, {}).setdefault(part.index, []).extend(part.tokens)

    def joined(self, submit: Submit) -> Submit:
        """The request with its outputs, which are forgotten here."""
        found = self._tokens.pop(submit.rid, None)
        if found is None or submit.resumed is None:
            return submit
        outputs = [found.get(index, tokens) for index, tokens in enumerate(submit.resumed.outputs)]
        return msgspec.structs.replace(submit, resumed=msgspec.structs.replace(submit.resumed, outputs=outputs))


# ---- from a worker to its engine


def result_frames(result: StepResult, max_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """The frames of a step's result: parts if it is large, then the result with the rest.

    A frame exceeds ``max_bytes`` only if its content cannot be split.
    """
    frame = encoder.encode(result)
    if len(frame) <= max_bytes or not (result.prompt_logprobs or result.pooled or result.routed):
        yield frame
        return
    bare: list[RowPooled] = []
    for piece in result.prompt_logprobs:
        yield from _logprob_frames(piece, max_bytes)
    for row in result.pooled:
        data = row.pooled.data + row.pooled.ids
        for part in _cut(data, max_bytes - _overhead(StepPart([], [PooledPart(row.slot, b"")]))):
            yield encoder.encode(StepPart([], [PooledPart(row.slot, part)]))
        bare.append(RowPooled(row.slot, Pooled(row.pooled.rows, row.pooled.columns, b"")))
    for routed in result.routed:
        for start, count, data in _positions(routed, max_bytes - _overhead(StepPart([], [], [_without_data(routed)]))):
            yield encoder.encode(StepPart([], [], [RowExperts(routed.slot, start, count, data)]))
    yield encoder.encode(msgspec.structs.replace(result, prompt_logprobs=[], pooled=bare, routed=[]))


def _logprob_frames(piece: PromptLogprobs, max_bytes: int) -> Iterator[bytes]:
    frame = encoder.encode(StepPart([piece], []))
    if len(frame) <= max_bytes or len(piece.positions) == 1:
        yield frame
        return
    start = piece.start
    for positions in _groups(piece.positions, len(frame), max_bytes):
        yield from _logprob_frames(PromptLogprobs(piece.slot, start, positions), max_bytes)
        start += len(positions)


class ResultParts:
    """Collects the parts of a worker's next result."""

    def __init__(self) -> None:
        self._logprobs: list[PromptLogprobs] = []
        self._pooled: dict[int, bytearray] = {}
        self._routed: list[RowExperts] = []

    def add(self, part: StepPart) -> None:
        self._logprobs += part.prompt_logprobs
        for pooled in part.pooled:
            self._pooled.setdefault(pooled.slot, bytearray()).extend(pooled.data)
        self._routed += part.routed

    def joined(self, result: StepResult) -> StepResult:
        """The result with all of its parts, which are forgotten here."""
        logprobs, pooled, routed = self._logprobs, self._pooled, self._routed
        if not logprobs and not pooled and not routed:
            return result
        self._logprobs, self._pooled, self._routed = [], {}, []
        rows = [
            RowPooled(row.slot, _with_data(row.pooled, pooled[row.slot])) if row.slot in pooled else row
            for row in result.pooled
        ]
        return msgspec.structs.replace(
            result, prompt_logprobs=logprobs + result.prompt_logprobs, pooled=rows, routed=routed + result.routed
        )


# ---- from an engine to its client


def batch_frames(
    batch: TokensBatch, max_bytes: int = PIECE_BYTES, max_frame: int = MAX_FRAME
) -> tuple[list[bytes], set[int]]:
    """The frames of a batch, in order, and the requests with an item that fits into no frame; such items are left out.

    A frame exceeds ``max_bytes`` only if its content cannot be split.
    """
    frames: list[bytes] = []
    refused: set[int] = set()
    max_bytes = min(max_bytes, max_frame)
    waiting = [batch]
    while waiting:
        each = waiting.pop()
        frame = encoder.encode(each)
        if len(frame) <= max_bytes:
            frames.append(frame)
            continue
        divided = _divided(each, len(frame), max_bytes)
        if divided:
            waiting += reversed(divided)
        elif len(frame) <= max_frame:
            frames.append(frame)
        else:
            refused.update(item.rid for item in _items(each))
    return frames, refused


def without_requests(batch: TokensBatch, rids: set[int], why: str) -> TokensBatch:
    """The batch without the items of these requests; sequences of theirs that end in it end with an error."""
    return TokensBatch(
        [each for each in batch.prompts if each.rid not in rids],
        [each for each in batch.tokens if each.rid not in rids],
        [Finished(each.rid, each.index, "error", None, why) if each.rid in rids else each for each in batch.finished],
        [each for each in batch.parts if each.rid not in rids],
        [each for each in batch.experts if each.rid not in rids],
    )


Item = PromptPart | SequenceExperts | PromptDone | SequenceTokens | Finished


def _items(batch: TokensBatch) -> list[Item]:
    """All items, in the order in which they are read."""
    return [*batch.parts, *batch.experts, *batch.prompts, *batch.tokens, *batch.finished]


def _batch_of(items: Sequence[Item]) -> TokensBatch:
    batch = TokensBatch([], [], [])
    for item in items:
        match item:
            case PromptPart():
                batch.parts.append(item)
            case SequenceExperts():
                batch.experts.append(item)
            case PromptDone():
                batch.prompts.append(item)
            case SequenceTokens():
                batch.tokens.append(item)
            case Finished():
                batch.finished.append(item)
    return batch


def _divided(batch: TokensBatch, size: int, max_bytes: int) -> list[TokensBatch]:
    """The batch split into several; empty if it cannot be split."""
    items = _items(batch)
    if len(items) > 1:
        return [_batch_of(group) for group in _groups(items, size, max_bytes)]
    match items:
        case [PromptPart(logprobs=positions) as part] if len(positions) > 1:
            found, start = [], part.start
            for group in _groups(positions, size, max_bytes):
                found.append(_batch_of([PromptPart(part.rid, start, group)]))
                start += len(group)
            return found
        case [SequenceExperts() as routed] if routed.count > 1:
            room = max_bytes - _overhead(_batch_of([_without_data(routed)]))
            return [
                _batch_of([SequenceExperts(routed.rid, routed.index, start, count, data)])
                for start, count, data in _positions(routed, room)
            ]
        case [PromptDone(pooled=Pooled() as pooled) as done] if pooled.data or pooled.ids:
            data = pooled.data + pooled.ids
            room = max_bytes - _overhead(_batch_of([PromptPart(done.rid, len(data), [], b"")]))
            parts = [PromptPart(done.rid, start, [], piece) for start, piece in _placed(_cut(data, room))]
            bare = msgspec.structs.replace(done, pooled=Pooled(pooled.rows, pooled.columns, b""))
            return [*(_batch_of([part]) for part in parts), _batch_of([bare])]
        case _:
            return []


class PromptParts:
    """Collects the parts that come ahead of a :class:`~stentor.protocols.ipc.actors.PromptDone`.

    After the loss of an engine or a row the parts come again from the beginning and replace the former ones.
    """

    __slots__ = ("_data", "_logprobs")

    def __init__(self) -> None:
        self._logprobs: list[TokenLogprobs | None] = [None]
        self._data = bytearray()

    def add(self, part: PromptPart) -> None:
        if part.logprobs:
            self._logprobs[part.start :] = part.logprobs
        if part.pooled:
            self._data[part.start :] = part.pooled

    def joined(self, done: PromptDone) -> PromptDone:
        """The event with all of its parts, which are forgotten here."""
        if done.logprobs is not None:
            done = msgspec.structs.replace(done, logprobs=self._logprobs)
        if done.pooled is not None and self._data and not done.pooled.data:
            done = msgspec.structs.replace(done, pooled=_with_data(done.pooled, self._data))
        self._logprobs, self._data = [None], bytearray()
        return done


# ---- both


def _with_data(pooled: Pooled, data: bytearray) -> Pooled:
    """Split the data into numbers, which come first, and ids."""
    end = _NUMBER_BYTES * pooled.rows * pooled.columns
    view = memoryview(data)
    return Pooled(pooled.rows, pooled.columns, bytes(view[:end]), bytes(view[end:]))


def _groups(items: Sequence[T], size: int, max_bytes: int) -> Iterator[list[T]]:
    """Split items into at least two groups of equal count, of about ``max_bytes`` each if items have equal size."""
    count = min(len(items), -(-size // max_bytes))
    each = -(-len(items) // count)
    return ([*items[start : start + each]] for start in range(0, len(items), each))


def _without_data(routed: E) -> E:
    """The message's fields without its data."""
    return msgspec.structs.replace(routed, data=b"")


def _positions(routed: RowExperts | SequenceExperts, room: int) -> Iterator[tuple[int, int, bytes]]:
    """(start, count, data) of groups of positions of about ``room`` bytes, with at least one position each."""
    each = len(routed.data) // routed.count
    step = max(1, room // max(1, each))
    for first in range(0, routed.count, step):
        count = min(step, routed.count - first)
        yield routed.start + first, count, routed.data[first * each : (first + count) * each]


def _cut(data: bytes, size: int) -> Iterator[bytes]:
    size = max(1, size)
    return (data[start : start + size] for start in range(0, len(data), size))


def _placed(pieces: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    start = 0
    for piece in pieces:
        yield start, piece
        start += len(piece)


def _overhead(message: object) -> int:
    """Most bytes of a frame besides the data of its single piece, whose length takes up to 4 more."""
    return len(encoder.encode(message)) + 4
