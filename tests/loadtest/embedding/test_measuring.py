"""Each measurement in a tiny form, with a real server that they share."""

import base64
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from stentor.engine.loading.download.hub import DEFAULT_MODEL, DEMO_EMBEDDING_MODEL
from stentor.loadtest.embedding import command, isolation, speed
from stentor.loadtest.embedding.isolation import Company
from stentor.loadtest.peers.libraries import connect, embedder, vectors_of
from stentor.loadtest.server_process import ServerProcess
from stentor.loadtest.tool import ToolError
from stentor.server.main import commands
from stentor.server.options.reading import read_config

pytestmark = pytest.mark.proof  # a server with both models


@pytest.fixture(scope="module", autouse=True)
def server(demo_model: Path) -> Iterator[ServerProcess]:
    """Serves both models; every measurement gets this one in place of one that it would start."""
    arguments = [DEFAULT_MODEL, "--embedding-model", DEMO_EMBEDDING_MODEL, "--embedding-dtype", "float32"]
    with pytest.MonkeyPatch.context() as patch, ServerProcess([*arguments, "--threads", "1"]) as server:

        def started(arguments: Sequence[str]) -> nullcontext[ServerProcess]:
            """Raises what ``stentor serve`` would refuse to start with."""
            config = read_config(commands._given(commands._parse_arguments(["serve", *arguments])), {})
            assert config.engine.worker.threads == 1
            assert {config.model.name, config.embedding.model} <= {DEFAULT_MODEL, DEMO_EMBEDDING_MODEL, None}
            return nullcontext(server)

        patch.setattr(speed, "ServerProcess", started)
        patch.setattr(isolation, "ServerProcess", started)
        yield server


def test_speed_of_our_side_alone() -> None:
    found = speed.measure(["float32"], rounds=1, tokens=128, threads=1, peer=False)
    assert [(one.load, one.texts, one.ratio) for one in found.timed] == [
        ("16", 8, 1.0),
        ("64", 2, 1.0),
        ("256", 1, 1.0),
        ("mixed", 3, 1.0),
    ]
    assert [one.tokens for one in found.timed][:3] == [128, 128, 256]
    assert all(one.texts_per_s > 0 and one.least_cosine > 0.9999 for one in found.timed)


def test_latency_beside_a_job_is_written_by_the_command(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    given = ["--parts", "latency", "--job", "20", "--alone", "3", "--threads", "1", "--save", str(target)]
    assert command.main(given) == 0
    record = msgspec.json.decode(target.read_bytes(), type=command.Embeddings)
    assert json.loads(target.read_bytes())["speed"] is None
    assert record.command[-len(given) :] == given
    found = record.latency
    assert found is not None
    assert (found.job_texts, found.alone.count) == (20, 2)
    assert found.job_tokens > 20 * 4
    assert found.beside_a_job.p99 >= found.beside_a_job.p50 > 0


def test_chat_beside_a_job_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "JOB_TEXTS", 8)  # a job that has begun when the stream ends is waited for
    found = isolation.measure(rounds=1, tokens=8, threads=1, transcription=False)
    alone, beside = found.results
    assert (alone.company, alone.p99_ratio, alone.company_done) == (isolation.ALONE, 1.0, 0)
    assert beside.itl.count >= 1
    assert beside.p99_ratio == pytest.approx(beside.itl.p99 / alone.itl.p99, abs=0.01)


def test_vectors_come_in_order_over_several_connections_and_an_endless_job_ends_with_its_block(
    server: ServerProcess,
) -> None:
    texts = [f"number {number}" for number in range(23)]
    side = embedder(server, DEMO_EMBEDDING_MODEL, connections=3)
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
