"""Encodings that are stopped between two products."""

import threading
from pathlib import Path

import pytest

from stentor.engine.worker import media_rows
from stentor.engine.worker.sliced_encoding import SlicedEncoding
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import StepPlan, StepResult
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.test_media_rows import Served


def _encoding(products: int, done: list[int]) -> SlicedEncoding[str]:
    def encode() -> str:
        for product in range(products):
            SlicedEncoding.pause()
            done.append(product)
        return "embeddings"

    return SlicedEncoding(encode)


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

    encoding: SlicedEncoding[str] = SlicedEncoding(encode)
    assert not encoding.run(0.0)
    assert encoding.run()
    with pytest.raises(ValueError, match="odd pixels"):
        encoding.result()


def test_pausing_elsewhere_changes_nothing() -> None:
    SlicedEncoding.pause()


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
    monkeypatch.setattr(media_rows, "_SLICE_SECONDS", 0.0)
    engine = LocalEngine(model_config(tmp_path, max_model_len=256, kv_cache_memory=8 << 20, batch_invariant=True))
    step, slices, ends = engine.runner.step, [], []

    def watched(plan: StepPlan) -> StepResult:
        result = step(plan)
        slices.extend([job for job in plan.encode if job.sliced])
        ends.extend(result.encoded)
        return result

    monkeypatch.setattr(engine.runner, "step", watched)
    rids = [engine.submit(text.tokens, params), engine.submit(seen.tokens, params, media=seen.media)]
    engine.run(check=True)
    assert [engine.outcomes[rid, 0].tokens for rid in rids] == expected
    assert len(slices) > 3
    assert ends == [0]
