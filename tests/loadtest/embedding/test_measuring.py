"""Each measurement in a tiny form, with a real server."""

import base64
import json
import time
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from stentor.engine.loading.hub import DEMO_EMBEDDING_MODEL
from stentor.loadtest.embedding import command, isolation, speed
from stentor.loadtest.embedding.sides import Company, ours, vectors_of
from stentor.loadtest.peers.libraries import connect
from stentor.loadtest.server_process import ServerProcess
from stentor.loadtest.tool import ToolError

pytestmark = pytest.mark.timeout(120)


def test_speed_of_our_side_alone() -> None:
    found = speed.measure(["float32"], rounds=1, tokens=256, threads=1, peer=False)
    assert [(one.load, one.texts, one.ratio) for one in found.timed] == [
        ("16", 16, 1.0),
        ("64", 4, 1.0),
        ("256", 1, 1.0),
        ("mixed", 6, 1.0),
    ]
    assert [one.tokens for one in found.timed][:3] == [256] * 3
    assert all(one.texts_per_s > 0 and one.least_cosine > 0.9999 for one in found.timed)


def test_latency_beside_a_job_is_written_by_the_command(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    given = ["--parts", "latency", "--job", "60", "--alone", "3", "--threads", "1", "--save", str(target)]
    assert command.main(given) == 0
    record = msgspec.json.decode(target.read_bytes(), type=command.Embeddings)
    assert json.loads(target.read_bytes())["speed"] is None
    assert record.command[-len(given) :] == given
    found = record.latency
    assert found is not None
    assert (found.job_texts, found.alone.count) == (60, 2)
    assert found.job_tokens > 60 * 4
    assert found.beside_a_job.p99 >= found.beside_a_job.p50 > 0


def test_chat_beside_a_job_of_texts(demo_model: Path) -> None:
    found = isolation.measure(rounds=1, tokens=40, threads=1, transcription=False)
    alone, beside = found.results
    assert (alone.company, alone.p99_ratio, alone.company_done) == (isolation.ALONE, 1.0, 0)
    assert beside.itl.count >= 1
    assert beside.p99_ratio == pytest.approx(beside.itl.p99 / alone.itl.p99, abs=0.01)


def test_vectors_come_in_order_over_several_connections_and_an_endless_job_ends_with_its_block() -> None:
    texts = [f"number {number}" for number in range(23)]
    with ServerProcess([DEMO_EMBEDDING_MODEL, "--embedding-dtype", "float32", "--threads", "1"]) as server:
        side = ours(server, DEMO_EMBEDDING_MODEL, connections=3)
        together = side.run(texts, 2)
        alone = [side.run([text], 1).made[0] for text in texts]
        assert together.seconds > 0
        for one, other in zip(together.made, alone, strict=True):
            assert np.abs(vector(one) - vector(other)).max() < 1e-5

        def ask(model: str = DEMO_EMBEDDING_MODEL) -> int:
            with closing(connect(server.port)) as connection:
                return len(vectors_of(model, connection, texts))

        with Company([ask, ask], endless=True) as company:
            while company.done < 3 * len(texts):
                assert company.running
                time.sleep(0.01)
        assert not company.running
        with Company([ask] * 4) as several:
            pass
        assert several.done == 4 * len(texts), "requests that overlap are all counted"
        with pytest.raises(ToolError, match="the server answered 404"), Company([lambda: ask("stranger")]):
            pass


def vector(text: str) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(text), np.float32)
