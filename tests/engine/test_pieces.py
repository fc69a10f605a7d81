"""Large messages in pieces: every frame within its bound, and what is joined is what was divided."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.channel.pieces import (
    PromptParts,
    ResultParts,
    ResumedParts,
    batch_frames,
    result_frames,
    submit_frames,
    without_requests,
)
from stentor.engine.client.stream import RoutedExperts
from stentor.protocols.ipc.actors import (
    Finished,
    PromptDone,
    Resumed,
    ResumedPart,
    SequenceExperts,
    SequenceTokens,
    Submit,
    TokensBatch,
)
from stentor.protocols.ipc.actors import PromptPart as Part
from stentor.protocols.ipc.audio import AlignmentOutput
from stentor.protocols.ipc.codec import decode_client, decode_engine, decode_engine_worker, encoder
from stentor.protocols.ipc.pooling import Pooled
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import PromptLogprobs, RowExperts, RowPooled, StepPart, StepResult, TokenLogprobs
from stentor.tests.examples import examples

ENTRIES = st.builds(
    TokenLogprobs,
    st.integers(0, 2**31 - 1),
    st.floats(-1e3, 0.0),
    st.integers(1, 2**20),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-1e3, 0.0)), max_size=2),
)


@st.composite
def pooled(draw: Any) -> Pooled:
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    ids = draw(st.integers(0, 1))
    return Pooled(rows, columns, draw(_bytes(4 * rows * columns)), draw(_bytes(4 * columns * ids)))


def _bytes(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


RESULTS = st.builds(
    StepResult,
    st.just(3),
    st.integers(0, 10**6),
    st.just([7, 8]),
    st.none(),
    st.lists(
        st.builds(PromptLogprobs, st.integers(0, 300), st.integers(1, 300), st.lists(ENTRIES, min_size=1, max_size=30)),
        max_size=3,
        unique_by=lambda piece: piece.slot,
    ),
    st.just(0.5),
    pooled=st.lists(st.builds(RowPooled, st.integers(0, 300), pooled()), max_size=3, unique_by=lambda row: row.slot),
)


@settings(max_examples=examples(50), deadline=None)
@given(RESULTS, st.sampled_from([150, 300, 1 << 20]))
def test_a_result_comes_whole_out_of_frames_of_which_none_is_too_large(result: StepResult, bound: int) -> None:
    bare = msgspec.structs.replace(
        result, prompt_logprobs=[], pooled=[RowPooled(row.slot, Pooled(40, 4, b"")) for row in result.pooled]
    )
    parts, found = ResultParts(), []
    for frame in result_frames(result, bound):
        assert len(frame) <= max(bound, len(encoder.encode(bare)))
        match decode_engine_worker.decode(frame):
            case StepPart() as part:
                parts.add(part)
            case StepResult() as last:
                found.append(parts.joined(last))
    (joined,) = found
    assert msgspec.structs.replace(joined, prompt_logprobs=[]) == msgspec.structs.replace(result, prompt_logprobs=[])
    assert _by_token(joined.prompt_logprobs) == _by_token(result.prompt_logprobs)
    # nothing of it is left for the next
    assert parts.joined(result) is result


def _by_token(pieces: list[PromptLogprobs]) -> dict[tuple[int, int], TokenLogprobs]:
    return {(each.slot, each.start + at): entry for each in pieces for at, entry in enumerate(each.positions)}


@st.composite
def batches(draw: Any) -> TokensBatch:
    batch = TokensBatch([], [], [])
    for rid in range(draw(st.integers(0, 4))):
        entries = draw(st.lists(ENTRIES, max_size=30))
        if entries:
            batch.parts.append(Part(rid, 1, entries))
        made = draw(st.none() | pooled())
        batch.prompts.append(PromptDone(rid, 0, 0.0, 0.0, [] if entries else None, pooled=made))
        batch.tokens.extend(SequenceTokens(rid, index, [5], None) for index in range(draw(st.integers(0, 9))))
        batch.finished.extend(Finished(rid, index, "stop", None, None) for index in range(draw(st.integers(0, 9))))
    return batch


@settings(max_examples=examples(50), deadline=None)
@given(batches(), st.sampled_from([150, 300, 1 << 20]))
def test_a_batch_comes_whole_and_in_order_out_of_frames_of_which_none_is_too_large(
    batch: TokensBatch, bound: int
) -> None:
    frames, refused = batch_frames(batch, bound)
    assert not refused
    assert all(len(frame) <= bound for frame in frames)
    joined = TokensBatch([], [], [])
    parts = {done.rid: PromptParts() for done in batch.prompts}
    for frame in frames:
        each = decode_client.decode(frame)
        assert isinstance(each, TokensBatch)
        for part in each.parts:
            assert all(part.rid != done.rid for done in joined.prompts), "a part of a prompt that is done"
            parts[part.rid].add(part)
        assert not (each.parts and (joined.tokens or joined.finished)), "parts do not come first"
        assert not (each.prompts and (joined.tokens or joined.finished)), "tokens came before the prompts"
        assert not (each.tokens and joined.finished), "tokens came after an end"
        joined.prompts.extend(parts[done.rid].joined(done) for done in each.prompts)
        joined.tokens.extend(each.tokens)
        joined.finished.extend(each.finished)
    gathered = {part.rid: [None, *part.logprobs] for part in batch.parts}
    whole = [msgspec.structs.replace(done, logprobs=gathered.get(done.rid)) for done in batch.prompts]
    assert joined == TokensBatch(whole, batch.tokens, batch.finished)


def test_experts_of_many_positions_come_in_frames_of_whole_positions() -> None:
    data = bytes(index % 251 for index in range(700 * 6))
    result = StepResult(3, 0, [7], None, [], 0.5, routed=[RowExperts(4, 20, 700, data), RowExperts(5, 0, 1, b"abcdef")])
    *frames, last = result_frames(result, 500)
    assert len(frames) > 8
    assert all(len(frame) <= 500 for frame in (*frames, last))
    parts = ResultParts()
    for frame in frames:
        part = decode_engine_worker.decode(frame)
        assert isinstance(part, StepPart)
        parts.add(part)
    whole = decode_engine_worker.decode(last)
    assert isinstance(whole, StepResult)
    pieces = parts.joined(whole).routed
    assert all(len(piece.data) == 6 * piece.count for piece in pieces)
    gathered = RoutedExperts(20, 500)
    for piece in pieces:
        if piece.slot == 4:
            for index, start, end in ((-1, piece.start, min(piece.start + piece.count, 500)), (0, 500, 720)):
                start, end = max(piece.start, start), min(piece.start + piece.count, end)
                if start < end:
                    own = piece.data[(start - piece.start) * 6 : (end - piece.start) * 6]
                    batch = TokensBatch([], [], [], experts=[SequenceExperts(9, index, start, end - start, own)])
                    for small in batch_frames(batch, 200)[0]:
                        assert len(small) <= 200
                        received = decode_client.decode(small)
                        assert isinstance(received, TokensBatch)
                        for each in received.experts:
                            gathered.add(each)
    assert gathered.of(0, 221) == data
    assert gathered.of(0, 1) == data[: 480 * 6]


def test_experts_that_come_again_are_known_and_those_behind_a_gap_are_missing() -> None:
    gathered = RoutedExperts(2, 4)
    gathered.add(SequenceExperts(0, -1, 2, 2, b"aabb"))
    gathered.add(SequenceExperts(0, -1, 2, 1, b"xx"))
    gathered.add(SequenceExperts(0, 1, 4, 1, b"cc"))
    gathered.add(SequenceExperts(0, 1, 4, 2, b"xxdd"))
    assert gathered.of(1, 3) == b"aabbccdd"
    assert gathered.of(1, 0) == gathered.of(0, 1) == b"aabb"
    gathered.add(SequenceExperts(0, 1, 8, 1, b"ee"))
    with pytest.raises(ValueError, match="the experts of 6 of 7 positions"):
        gathered.of(1, 4)


def test_what_comes_again_replaces_what_had_come() -> None:
    entries = [TokenLogprobs(token, -1.0, 1, []) for token in range(5)]
    parts = PromptParts()
    for start, some in ((1, entries[:2]), (3, entries[:1]), (1, entries[:3]), (4, entries[4:])):
        parts.add(Part(0, start, some))
    for start, data in ((0, b"abcdefgh"), (0, b"ABCD"), (4, b"EFGH")):
        parts.add(Part(0, start, [], data))
    done = parts.joined(PromptDone(0, 0, 0.0, 0.0, [], pooled=Pooled(1, 2, b"")))
    assert done.logprobs == [None, *entries[:3], entries[4]]
    assert done.pooled == Pooled(1, 2, b"ABCDEFGH")


def test_what_fits_into_no_frame_is_left_out_and_named() -> None:
    heard = AlignmentOutput(None, [0.5] * 100, [0.5] * 99)
    batch = TokensBatch(
        [PromptDone(rid, 0, 0.0, 0.0, None, heard if rid == 1 else None) for rid in range(3)],
        [SequenceTokens(rid, 0, [4], None) for rid in range(3)],
        [Finished(1, 0, "stop", None, None)],
    )
    frames, refused = batch_frames(batch, 100, 500)
    assert refused == {1}
    left = without_requests(batch, refused, "too large")
    assert [done.rid for done in left.prompts] == [gained.rid for gained in left.tokens] == [0, 2]
    assert left.finished == [Finished(1, 0, "error", None, "too large")]
    assert batch_frames(left, 100, 500)[1] == set()
    assert all(len(frame) <= 500 for frame in frames)


def test_a_batch_of_usual_size_is_one_frame_as_it_is() -> None:
    batch = TokensBatch([], [SequenceTokens(rid, 0, [4], None) for rid in range(64)], [])
    assert batch_frames(batch) == ([encoder.encode(batch)], set())


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=200), min_size=1, max_size=4),
    st.sampled_from([150, 300, 1 << 20]),
)
def test_a_request_comes_whole_out_of_frames_of_which_none_is_too_large(outputs: list[list[int]], bound: int) -> None:
    request = Submit(7, [1, 2], SamplingParams(9), [0] * len(outputs), 0, "", 0.0, Resumed(outputs, [], False))
    parts = ResumedParts()
    found: list[Submit] = []
    for frame in submit_frames(request, bound):
        assert len(frame) <= bound
        match decode_engine.decode(frame):
            case ResumedPart() as part:
                assert not found
                parts.add(part)
            case Submit() as submit:
                found.append(parts.joined(submit))
    (joined,) = found
    assert joined == request
