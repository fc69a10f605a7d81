"""A worker that decodes windows frame by frame, behind a scheduler: whole transcripts, whatever shares their steps."""

from pathlib import Path

import numpy as np
import pytest

from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.tiny_whisper import window
from stentor.tests.parity.framewise import tiny_nemotron_3_5, tiny_tdt, write_framewise

NOTHING = SamplingParams(max_tokens=0)
SECONDS = (2.0, 0.3, 3.1, 1.0, 0.01)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    folder = write_framewise(tmp_path_factory.mktemp("parakeet"), tiny_tdt)
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
