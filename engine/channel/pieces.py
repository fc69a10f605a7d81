"""Messages that may be large, in pieces that the other side reads between other things.

What a step makes of prompts (log-probabilities, vectors) has no bound of its own, nor has what a request had received
when its engine was lost. It goes ahead of the message that it belongs to, in frames of about :data:`PIECE_BYTES`; the
receiving side joins it.
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
"""Of a frame whose message can be divided, at most; reading that many bytes of numbers takes some 5 ms."""
_NUMBER_BYTES: Final = 4
_TOKEN_BYTES: Final = 6
"""Of one token, at most, its share of what is around the tokens included."""


# ---- from a client to its engine


def submit_frames(submit: Submit, max_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """The frames of a request, in order. What it had received may come ahead of it."""
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
    """What has come ahead of requests."""

    def __init__(self) -> None:
        self._tokens: dict[int, dict[int, list[int]]] = {}

    def add(self, part: ResumedPart) -> None:
        self._tokens.setdefault(part.rid, {}).setdefault(part.index, []).extend(part.tokens)

    def joined(self, submit: Submit) -> Submit:
        """The request with all that came ahead of it, which is forgotten."""
        found = self._tokens.pop(submit.rid, None)
        if found is None or submit.resumed is None:
            return submit
        outputs = [found.get(index, tokens) for index, tokens in enumerate(submit.resumed.outputs)]
        return msgspec.structs.replace(submit, resumed=msgspec.structs.replace(submit.resumed, outputs=outputs))


# ---- from a worker to its engine


def result_frames(result: StepResult, max_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """The frames of a result: parts where it is large, then the result itself with what is left.

    A frame is larger than ``max_bytes`` only where nothing of it can be divided.
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
    """What has come of the next result of a worker."""

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
        """The result with all of its parts, which are forgotten."""
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
    """The frames of a batch, in order, and the requests of which something fits into no frame; that is left out.

    A frame is larger than ``max_bytes`` only where nothing of it can be divided.
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
    """What is left of a batch where nothing of some requests can be told but that they failed, those that end in it."""
    return TokensBatch(
        [each for each in batch.prompts if each.rid not in rids],
        [each for each in batch.tokens if each.rid not in rids],
        [Finished(each.rid, each.index, "error", None, why) if each.rid in rids else each for each in batch.finished],
        [each for each in batch.parts if each.rid not in rids],
        [each for each in batch.experts if each.rid not in rids],
    )


Item = PromptPart | SequenceExperts | PromptDone | SequenceTokens | Finished


def _items(batch: TokensBatch) -> list[Item]:
    """In the order in which they are read."""
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
    """In more than one part; none where it cannot be divided."""
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
    """What has come of a prompt ahead of its :class:`~stentor.protocols.ipc.actors.PromptDone`.

    Where an engine or a row was lost it comes again from the beginning, in place of what had come before.
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
        """The event with all of its parts, which are forgotten."""
        if done.logprobs is not None:
            done = msgspec.structs.replace(done, logprobs=self._logprobs)
        if done.pooled is not None and self._data and not done.pooled.data:
            done = msgspec.structs.replace(done, pooled=_with_data(done.pooled, self._data))
        self._logprobs, self._data = [None], bytearray()
        return done


# ---- both


def _with_data(pooled: Pooled, data: bytearray) -> Pooled:
    """Numbers first, then ids where there are any."""
    end = _NUMBER_BYTES * pooled.rows * pooled.columns
    view = memoryview(data)
    return Pooled(pooled.rows, pooled.columns, bytes(view[:end]), bytes(view[end:]))


def _groups(items: Sequence[T], size: int, max_bytes: int) -> Iterator[list[T]]:
    """Two and more, of as many items each, which are about ``max_bytes`` where they are equal."""
    count = min(len(items), -(-size // max_bytes))
    each = -(-len(items) // count)
    return ([*items[start : start + each]] for start in range(0, len(items), each))


def _without_data(routed: E) -> E:
    """What says most of where it belongs."""
    return msgspec.structs.replace(routed, data=b"")


def _positions(routed: RowExperts | SequenceExperts, room: int) -> Iterator[tuple[int, int, bytes]]:
    """(start, count, data) of positions whose data take about ``room`` bytes together, and one at least."""
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
    """Bytes of a frame besides the data of the one piece that is in it, at most: its length takes 4 more."""
    return len(encoder.encode(message)) + 4
