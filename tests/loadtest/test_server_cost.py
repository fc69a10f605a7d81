"""The cost per streamed token: the yardstick sends what it was asked for, and a short run fills the report."""

import asyncio
import json
import urllib.request
from dataclasses import astuple
from pathlib import Path

import pytest

from stentor.loadtest import bare_server, server_cost
from stentor.loadtest.client import complete
from stentor.loadtest.server_cost import Spent, cost_of
from stentor.loadtest.server_process import ServerProcess


def test_the_bare_server_sends_as_many_chunks_of_as_many_bytes_as_it_is_told() -> None:
    body = {"max_tokens": 3, "chunk_bytes": 217}
    with ServerProcess([], "stentor.loadtest.bare_server") as server:
        url = f"http://127.0.0.1:{server.port}{bare_server.PATH}"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as response:
            frames: list[bytes] = response.read().split(b"\n\n")
        answer = asyncio.run(complete(server.port, body, bare_server.PATH))
    assert [len(frame) + 2 for frame in frames[:3]] == [217] * 3
    assert (answer.tokens, len(answer.arrivals)) == (3, 3)


def test_what_streams_of_two_lengths_cost_is_shared_out_between_tokens_and_requests() -> None:
    """Of 4 streams of 32 tokens and 4 of 32 + 24, in seconds: server in user mode, server, engine, worker."""
    short = Spent([0.001, 0.003, 0.002, 0.001], chunks=100)
    long = Spent([0.002, 0.0078, 0.00296, 0.001], chunks=180)
    cost = cost_of(short, long, streams=4, tokens=24)
    assert astuple(cost) == pytest.approx((1.2, 750 - 32 * 50, 50, 1e3 / 96, 10, 0))


@pytest.mark.proof  # servers of its own
def test_a_run_reports_every_round_of_both_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_cost, "SHORT", 4)  # each token is a step of 20 ms
    report = tmp_path / "cost.json"
    server_cost.main(["--streams", "4", "--output-tokens", "24", "--rounds", "1", "--save", str(report)])
    document = json.loads(report.read_text())
    assert document["command"][:5] == ["stentor", "bench", "server-cost", "--streams", "4"]
    (ours,), (bare,) = document["streams"]["4"]["ours"], document["streams"]["4"]["bare"]
    # how much, so few streams do not tell: a longer one may even have cost less
    assert all(ours[part] != 0 for part in ("request", "server", "engine", "worker"))
    assert bare["tokens_per_chunk"] == 1
    assert bare["server"] != 0
    assert bare["engine"] == 0
