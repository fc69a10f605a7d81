"""A worker that decodes windows frame by frame, behind a scheduler: whole transcripts, whatever shares their steps."""

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from stentor.engine.worker.errors import SetupError
from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.media import Heard
from stentor.tests.engine.tiny_whisper import window
from stentor.tests.parity.ctc_modules import write_letters
from stentor.tests.parity.framewise import tiny_nemotron, tiny_nemotron_3_5, tiny_tdt, write_framewise

NOTHING = SamplingParams(max_tokens=0)
SECONDS = (2.0, 0.3, 3.1, 1.0, 0.01)


@pytest.fixture(scope="module", params=["tdt", "transformers' modules"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    folder = tmp_path_factory.mktemp("framewise")
    if request.param == "tdt":
        write_framewise(folder, tiny_tdt)
    else:
        write_letters(folder)
    return LocalEngine(model_config(folder, max_num_seqs=3, max_num_batched_tokens=0))


def transcripts(engine: LocalEngine, seconds: tuple[float, ...], deaths: list[int] | None = None) -> list[bytes]:
    """Of windows at once; the worker dies after these steps."""
    engine.restart(engine.ready.num_blocks)
    before, left = engine.steps, deaths or []
    rids = [
        engine.submit([0], NOTHING, audio=window(SECONDS.index(each), each, rules=None), pooling=Pooling("transcribe"))
        for each in seconds
    ]
    engine.run(check=True, dies=lambda: engine.steps - before in left and bool(left.pop(0)))
    found = []
    for rid in rids:
        pooled = engine.prompts[rid].pooled
        assert pooled is not None
        assert engine.outcomes[rid, 0].tokens == []
        found.append(pooled.data)
    return found


def test_a_window_has_the_same_transcript_alone_and_among_others(engine: LocalEngine) -> None:
    together = transcripts(engine, SECONDS)
    assert together == [transcripts(engine, (seconds,))[0] for seconds in SECONDS]
    tokens = np.frombuffer(together[0], "<f4").reshape(-1, 4)
    assert len(tokens) > 3
    assert (np.diff(tokens[:, 1]) >= 0).all(), "tokens are in the order of their positions"


def test_files_from_which_no_input_can_be_made_are_named_at_start(tmp_path: Path) -> None:
    write_letters(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"sampling_rate": 8000}')
    with pytest.raises(SetupError, match=rf"^{tmp_path}: .*sampling_rate is 8000"):
        LocalEngine(model_config(tmp_path, max_num_seqs=3, max_num_batched_tokens=0))


def test_a_window_is_transcribed_in_the_language_of_its_prompt(tmp_path: Path) -> None:
    engine = LocalEngine(model_config(write_framewise(tmp_path, tiny_nemotron_3_5), max_num_batched_tokens=0))
    pcm, found = window(0, 2.0, rules=None), []
    for prompt in (0, 5):
        alike = pcm._replace(digest=bytes([prompt]) * 16)
        rid = engine.submit([prompt], NOTHING, audio=alike, pooling=Pooling("transcribe"))
        engine.run(check=True)
        pooled = engine.prompts[rid].pooled
        assert pooled is not None
        found.append(pooled.data)
    assert found[0] != found[1]


def test_no_death_of_a_worker_changes_a_transcript(engine: LocalEngine) -> None:
    undisturbed, before = transcripts(engine, SECONDS), engine.deaths
    assert transcripts(engine, SECONDS, [0, 1]) == undisturbed
    assert engine.deaths > before


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    folder = write_framewise(tmp_path_factory.mktemp("nemotron"), tiny_nemotron)
    return LocalEngine(model_config(folder, max_num_seqs=3, max_num_batched_tokens=0))


def streamed(engine: LocalEngine, pcms: list[bytes], *, deaths: int = 0, seed: int = 0) -> list[bytes]:
    """The transcripts of streams that come in odd pieces, beside a window."""
    engine.restart(engine.ready.num_blocks)
    rng, prompt = random.Random(seed), [0] * engine.ready.max_model_len
    rids = [engine.submit(prompt, NOTHING, streamed=Heard(), pooling=Pooling("transcribe")) for _ in pcms]
    engine.submit([0], NOTHING, audio=window(9, 1.0, rules=None), pooling=Pooling("transcribe"))
    left = dict(zip(rids, pcms, strict=True))
    while left:
        rid = rng.choice(list(left))
        size = 2 * rng.choice([1, 160, 1000, 3840, 20_000])
        piece, left[rid] = left[rid][:size], left[rid][size:]
        engine.append(rid, piece, last=not left[rid])
        if not left[rid]:
            del left[rid]
        if rng.random() < 0.4:
            dies = iter([deaths > 0 and rng.random() < 0.4])
            before = engine.deaths
            engine.run(check=True, dies=partial(next, dies, False))
            deaths -= engine.deaths - before
    engine.run(check=True)
    found = []
    for rid in rids:
        pooled, end = engine.prompts[rid].pooled, engine.outcomes[rid, 0].finished
        assert pooled is not None
        assert end is not None
        assert end.reason == "stop"
        found.append(pooled.data)
    return found


@pytest.mark.parametrize("deaths", [0, 3])
def test_streams_in_odd_pieces_have_the_transcripts_of_windows(streaming: LocalEngine, deaths: int) -> None:
    windows = transcripts(streaming, SECONDS)
    pcms = [window(SECONDS.index(each), each, rules=None).pcm for each in SECONDS]
    before = streaming.deaths
    for whole, found in zip(windows, streamed(streaming, pcms, deaths=deaths), strict=True):
        rows, others = (np.frombuffer(each, "<f4").reshape(-1, 4) for each in (whole, found))
        np.testing.assert_array_equal(rows[:, :3], others[:, :3])
        np.testing.assert_allclose(rows[:, 3], others[:, 3], atol=2e-3)
    assert streaming.deaths - before >= min(deaths, 1)


def test_the_parts_of_a_stream_come_while_it_goes_on_and_once_each(streaming: LocalEngine) -> None:
    streaming.restart(streaming.ready.num_blocks)
    shape = streaming.ready.stream
    assert shape is not None
    pcm = window(2, 3.1, rules=None).pcm
    rid = streaming.submit([0] * 100, NOTHING, streamed=Heard(), pooling=Pooling("transcribe"))
    streaming.append(rid, pcm[: 2 * (shape.first - 1)])
    streaming.run()
    assert rid not in streaming.parts, "the first chunk lacks a sample"
    streaming.append(rid, pcm[2 * (shape.first - 1) : 2 * (shape.first + shape.step)])
    streaming.run()
    looks = iter([True])
    streaming.run(dies=lambda: next(looks, False))
    parts = streaming.parts[rid]
    assert [part.computed for part in parts] == [2, 2], "both chunks again, after the worker's death"
    assert [part.start for part in parts] == [0, len(parts[0].pooled)]
    assert (len(parts[0].pooled) > 0, len(parts[1].pooled)) == (True, 0)


def test_what_is_no_stream_of_the_model_is_refused(streaming: LocalEngine, engine: LocalEngine) -> None:
    pooling = Pooling("transcribe")
    for model, given, message in (
        (streaming, {"streamed": Heard(), "audio": window(0, 1.0, rules=None), "pooling": pooling}, "not both"),
        (streaming, {"streamed": Heard()}, "at least one token"),
        (engine, {"streamed": Heard(), "pooling": pooling}, "takes no streamed audio"),
        (streaming, {"pooling": pooling}, "the request needs audio"),
    ):
        model.restart(model.ready.num_blocks)
        end = model.outcomes[model.submit([0], NOTHING, **given), 0].finished
        assert end is not None
        assert message in str(end.message)


def test_start_up_says_what_streams_keep(streaming: LocalEngine, engine: LocalEngine) -> None:
    each = 2 * (2 * 3 + 4) * 48 * 4
    """Two layers: keys and values of one chunk, and inputs of a convolution of five."""
    assert {line.what: line.bytes for line in streaming.ready.memory}["streams"] == 3 * each
    assert engine.ready.stream is None
    assert "streams" not in {line.what for line in engine.ready.memory}
