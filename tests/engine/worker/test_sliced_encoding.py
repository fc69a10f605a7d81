"""Encodings that are stopped between two products."""

import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from stentor.engine.layers.linear.parts import Pace
from stentor.engine.models.towers.payload import Encoded, Payload, write_payload
from stentor.engine.worker.media import media_time
from stentor.engine.worker.media.layout import MediaLayout, MediaReader
from stentor.engine.worker.media.media_time import MediaTime
from stentor.engine.worker.media.rows import MediaRows
from stentor.engine.worker.media.sliced_encoding import SlicedEncoding
from stentor.protocols.ipc.inputs import ArenaRef
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import EncodeJob, NewRow, RowSpan, RowStep, StepPlan, StepResult
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.test_media_rows import Served


def _encoding(products: int, done: list[int]) -> SlicedEncoding[str]:
    def encode() -> str:
        for product in range(products):
            SlicedEncoding.pause()
            done.append(product)
        return "embeddings"

    return SlicedEncoding(encode, Pace())


def test_a_slice_ends_before_the_next_product_and_the_rest_follows() -> None:
    done: list[int] = []
    encoding = _encoding(4, done)
    assert not encoding.run(0.0)
    assert done == []
    assert not encoding.run(0.0)
    assert done == [0], "each slice computes a product at least, once it has begun"
    assert encoding.run()
    assert (done, encoding.result()) == ([0, 1, 2, 3], "embeddings")
    encoding.drop()


def test_an_encoding_that_nobody_wants_ends_its_thread() -> None:
    done: list[int] = []
    before = threading.active_count()
    encoding = _encoding(3, done)
    encoding.run(0.0)
    encoding.drop()
    assert (done, threading.active_count()) == ([], before)
    _encoding(3, done).drop()
    assert threading.active_count() == before


def test_what_fails_on_the_way_is_told_with_the_result() -> None:
    def encode() -> str:
        SlicedEncoding.pause()
        raise ValueError("odd pixels")

    encoding: SlicedEncoding[str] = SlicedEncoding(encode, Pace())
    assert not encoding.run(0.0)
    assert encoding.run()
    with pytest.raises(ValueError, match="odd pixels"):
        encoding.result()


def test_a_part_is_what_is_left_of_its_slice_and_of_any_length_where_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now: list[float] = [0.0]
    told: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def encode() -> str:
        for took in (1.0, 6.5, 8.0):
            told.append(SlicedEncoding.pause(math.inf))
            now[0] += took
        return "embeddings"

    encoding = SlicedEncoding(encode, Pace())
    assert not encoding.run(8.0)
    assert told == [8.0, 7.0], "of 8 seconds half of one is left, less than an eighth"
    assert encoding.run(8.0)
    assert told[2:] == [8.0]
    whole = SlicedEncoding(encode, Pace())
    assert whole.run()
    assert told[3:] == [math.inf] * 3


def test_parts_that_take_longer_than_expected_become_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    now: list[float] = [0.0]
    told: list[float] = []
    pace = Pace()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def encode() -> str:
        for _ in range(40):
            told.append(SlicedEncoding.pause(100.0))
            now[0] += 2 * told[-1]
        return "embeddings"

    encoding = SlicedEncoding(encode, pace)
    while not encoding.run(0.01):
        pass
    assert told[0] == 0.01
    assert told[-1] == pytest.approx(0.005, rel=0.15)
    assert pace.factor == pytest.approx(2, rel=0.15)


def test_pausing_elsewhere_changes_nothing() -> None:
    assert SlicedEncoding.pause() == math.inf


class Slow:
    """A tower that takes its time in ten parts, by a clock that others read too."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.parts = clock, 0

    def encode(self, payload: Payload) -> Encoded:
        for _ in range(10):
            SlicedEncoding.pause()
            self.parts += 1
            self.clock[0] += 0.011
        return Encoded(torch.zeros(1, 4))


def _took(seconds: float) -> StepResult:
    return StepResult(0, 0, [], None, [], seconds)


def _steps(slots: Sequence[int], encode: Sequence[int], prompt: int = 0, *, sees: bool = False) -> StepPlan:
    """``prompt``: tokens of one of text; ``sees``: beside one with media."""
    rows = [RowStep(slot, 5, 1, [], True) for slot in slots]
    if prompt:
        rows.append(RowStep(len(rows), 0, prompt, [], False))
    new = [NewRow(9, [9, 9, 5], 3, _PARAMS, 0, [], spans=[RowSpan(7, 0, 2)])] if sees else []
    if sees:
        rows.append(RowStep(9, 0, 2, [], False))
    return StepPlan(0, 0, [], new, rows, encode=[EncodeJob(slot, ArenaRef(0, 0), sliced=True) for slot in encode])


_PARAMS: Final = SamplingParams(max_tokens=1, temperature=0.0)


def test_a_slice_is_part_of_a_step_that_decodes_less_beside_prompts_and_more_where_nobody_decodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    tower = Slow(clock)
    rows = MediaRows(tower, MediaLayout([9], hidden=4), MediaReader(lambda _: 0), torch.device("cpu"))
    rows.media = lambda _: write_payload(Payload("image", {}))
    for _ in range(100):
        rows.enter(_steps([0, 1], []))
        assert rows.ended(_took(0.1)).encoded == []
    rows.enter(_steps([0, 1], [0]))
    assert tower.parts == 2, "0.02 seconds of a step of 0.1"
    assert rows.ended(_took(0.144)).encoded == []
    rows.enter(_steps([0, 1], [0], prompt=5))
    assert tower.parts == 2 + 1, "0.01 seconds"
    rows.ended(_took(0.131))
    rows.enter(_steps([0, 1], [0], sees=True))
    assert tower.parts == 3, "its media have been encoded, and it takes the time of a slice"
    rows.ended(_took(0.12))
    rows.enter(_steps([], [0, 1]))
    assert tower.parts == 3 + 4 + 1, "0.05 seconds, of which the second has what is left, a part at least"
    assert rows.ended(_took(0.055)).encoded == []
    rows.enter(_steps([], [0, 1]))
    assert tower.parts == 10 + 1 + 2, "the first needs three more"
    assert rows.ended(_took(0.055)).encoded == [0]
    rows.enter(StepPlan(0, 0, [], [], [], forgotten=[0, 1]))


_SEEING: Final = {5}
"""Slots of rows with media."""


def test_prompts_have_as_many_tokens_as_take_their_share_of_a_step() -> None:
    budget = MediaTime()
    assert budget.room == 16, "nothing is known yet"
    steps = _steps([0, 1, 2], []).rows
    for _ in range(100):
        budget.begin(steps, _SEEING)
        budget.end(0.1)
    budget.begin([*steps, RowStep(6, 0, 90, [], False)], _SEEING)
    budget.end(1.0)
    assert budget.room == 16, "what texts cost is not what media do"
    tokens = budget.room
    taken: list[int] = []
    for _ in range(40):  # 20 tokens beside rows that decode cost nothing, each further one takes 2 ms
        budget.begin([*steps, RowStep(5, 0, tokens, [], False)], _SEEING)
        budget.end(0.1 + 0.002 * max(0, tokens - 20))
        taken.append(tokens)
        tokens = budget.room
    assert max(taken) <= 2 * 40
    assert tokens == pytest.approx(32, abs=3)
    for _ in range(40):
        budget.begin([*steps, RowStep(5, 0, 6, [], False)], _SEEING)
        budget.end(0.1 + 0.1 * 6)
    assert budget.room == 4, "no fewer, however slow"


def test_a_step_that_encodes_or_computes_prompts_alone_teaches_nothing_of_decoding() -> None:
    budget = MediaTime()
    steps = _steps([0, 1], []).rows
    for _ in range(100):
        budget.begin(steps, _SEEING)
        budget.encoded(0.5)
        budget.end(0.6)
        budget.begin([RowStep(5, 0, 300, [], False)], _SEEING)
        budget.end(7.0)
    assert budget.begin(steps, _SEEING) == pytest.approx(0.02, rel=0.01)
    assert budget.room == 16


def test_rows_that_have_media_themselves_wait_for_longer_slices_than_rows_of_text() -> None:
    budget = MediaTime()
    for _ in range(100):
        budget.begin(_steps([0, 1], []).rows, _SEEING)
        budget.end(0.1)
    assert budget.begin(_steps([5], []).rows, _SEEING) == 0.1
    assert budget.begin(_steps([0, 5], []).rows, _SEEING) == pytest.approx(0.02, rel=0.01), "a row of text is spared"
    assert budget.begin(_steps([0], [], prompt=9).rows, _SEEING) == pytest.approx(0.01, rel=0.01)


def test_rows_decode_between_slices_of_a_picture_and_answers_stay_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served("qwen3_vl", tmp_path)
    engine: LocalEngine = served.engine
    params = SamplingParams(max_tokens=20, temperature=0.0)
    text, seen = served.prompt([40, 41]), served.prompt([50, 51], 1, [60])
    expected = []
    for prompt in (text, seen):
        rid = engine.submit(prompt.tokens, params, media=prompt.media)
        engine.run()
        expected.append(engine.outcomes[rid, 0].tokens)
    monkeypatch.setattr(media_time, "_SHARE", 0.0)
    monkeypatch.setattr(media_time, "_BESIDE_PROMPTS", 0.0)
    engine = LocalEngine(model_config(tmp_path, max_model_len=256, kv_cache_memory=8 << 20, batch_invariant=True))
    forward, finish, slices, ends = engine.runner.forward, engine.runner.finish, [], []

    def watched(plan: StepPlan) -> Any:
        slices.extend([job for job in plan.encode if job.sliced])
        return forward(plan)

    def ended(pending: Any) -> StepResult:
        result = finish(pending)
        ends.extend(result.encoded)
        return result

    monkeypatch.setattr(engine.runner, "forward", watched)
    monkeypatch.setattr(engine.runner, "finish", ended)
    rids = [engine.submit(text.tokens, params), engine.submit(seen.tokens, params, media=seen.media)]
    engine.run(check=True)
    assert [engine.outcomes[rid, 0].tokens for rid in rids] == expected
    assert len(slices) > 3
    assert ends == [0]
