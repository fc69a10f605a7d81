"""The run against real processes that answer from a script."""

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from stentor.loadtest.peers import measuring
from stentor.loadtest.peers.figures import Column, Settings
from stentor.loadtest.peers.measuring import Entry, busy_seconds, run_rounds, start_all, weigh_starts
from stentor.loadtest.peers.prompts import Prompt, Words
from stentor.loadtest.peers.running import Server, ServerError, shown
from stentor.loadtest.peers.sides import Launch, Room, Side
from stentor.loadtest.processes import alive
from stentor.tests.loadtest.peers.vocabulary import write_tokenizer

SCRIPT = Path(__file__).with_name("scripted_server.py")


@pytest.fixture
def ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        for sock in (one, two):
            sock.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


@pytest.fixture
def words(tmp_path: Path) -> Words:
    return Words(write_tokenizer(tmp_path, 400))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "REST_SECONDS", 0.1)
    monkeypatch.setattr(measuring, "REST_LIMIT", 0.2)


def _body(weights: Path, prompt: Prompt, tokens: int) -> dict[str, Any]:
    return {"prompt": prompt.ids, "max_tokens": tokens}


def _entry(name: str, port: int, *options: str, parallel: bool = True) -> Entry:
    def launch(weights: Path, port: int, room: Room) -> Launch:
        return Launch([sys.executable, "-P", str(SCRIPT), str(port), *options], {"ADDED": "1 2"})

    side = Side(name, "stentor", "hf", "bf16", launch, _body, parallel)
    column = Column(name=name, peer="stentor", bits="bf16", version="", command="", weights="", weight_bytes=0)
    return Entry(Server(side, Path("w"), port, Room(1)), column)


def test_sides_take_turns_within_every_round(words: Words, ports: tuple[int, int], tmp_path: Path) -> None:
    log = tmp_path / "requests"
    entries = [_entry(name, port, "--log", str(log)) for name, port in zip("ab", ports, strict=True)]
    settings = Settings(shapes=["2", "prefill"], rounds=2, prompt=4, output=3, long_prompt=9)
    try:
        start_all(entries, words, lambda what: None)
        log.write_text("")
        run_rounds(entries, settings, words, lambda what: None)
    finally:
        for entry in entries:
            entry.server.stop()
    a, b = ports
    a_round = [*2 * [f"{a} 3"], *2 * [f"{b} 3"], *2 * [f"{a} 1"], *2 * [f"{b} 1"]]
    assert log.read_text().splitlines() == 3 * a_round
    for entry in entries:
        assert entry.column.failed is None
        assert {shape: len(rounds) for shape, rounds in entry.column.rounds.items()} == {"2": 2, "prefill": 2}
        assert entry.column.rounds["2"][0]["output_tokens_per_s"] > 0
        assert {"others_cores", "strangers_cores"} <= entry.column.rounds["2"][0].keys()


def test_a_side_that_serves_one_request_at_a_time_is_spared_the_others(words: Words, ports: tuple[int, int]) -> None:
    entry = _entry("a", ports[0], parallel=False)
    try:
        start_all([entry], words, lambda what: None)
        run_rounds([entry], Settings(["1", "2"], rounds=1, prompt=2, output=2), words, lambda what: None)
    finally:
        entry.server.stop()
    assert list(entry.column.rounds) == ["1"]


def test_a_server_that_counts_other_tokens_is_out_and_the_other_goes_on(words: Words, ports: tuple[int, int]) -> None:
    entries = [_entry("a", ports[0], "--short"), _entry("b", ports[1])]
    try:
        start_all(entries, words, lambda what: None)
        run_rounds(entries, Settings(["1"], rounds=1, prompt=2, output=2), words, lambda what: None)
    finally:
        entries[1].server.stop()
    assert entries[0].column.failed == "it counts 2 tokens in and 1 out, expected 2 and 2"
    assert entries[0].server.memory() == 0
    assert len(entries[1].column.rounds["1"]) == 1


def test_a_server_that_spins_while_idle_is_told_beside_the_figures_of_others(
    words: Words, ports: tuple[int, int]
) -> None:
    entries = [_entry("a", ports[0], "--spin"), _entry("b", ports[1])]
    beside_idle = beside_spinning = 0.0
    try:
        start_all(entries, words, lambda what: None)
        for _ in range(40):  # of a busy machine the one that spins may get nothing for the length of a round
            run_rounds(entries, Settings(["1"], rounds=1, prompt=2, output=2), words, lambda what: None)
            beside_idle, beside_spinning = (
                sum(one["others_cores"] for one in entry.column.rounds["1"]) for entry in entries
            )
            if beside_spinning > 0.01 + 5 * beside_idle:
                break
        assert busy_seconds() > 0
    finally:
        for entry in entries:
            entry.server.stop()
    assert beside_spinning > 0.01 + 5 * beside_idle
    assert [entry.column.failed for entry in entries] == [None, None]


def test_starts_are_timed_and_weighed_one_server_at_a_time(words: Words, ports: tuple[int, int]) -> None:
    entries = [_entry(name, ports[0]) for name in "ab"]  # one port: two at a time could not both listen
    weigh_starts(entries, Settings(["1"], starts=2), words, lambda what: None)
    for entry in entries:
        assert entry.column.failed is None
        found = entry.column.rounds["start"]
        assert len(found) == 2
        assert all(0 < one["ready_s"] < 60 and one["memory_mib"] > 1 for one in found)


def test_a_server_that_ends_at_once_says_what_it_said_last(words: Words, ports: tuple[int, int]) -> None:
    entry = _entry("a", ports[0], "--unknown")
    with pytest.raises(ServerError, match=r"a ended with status 2; it said last: .*error: unrecognized arguments"):
        entry.server.start(words)
    weigh_starts([entry], Settings(["1"], starts=1), words, lambda what: None)
    assert entry.column.failed is not None
    assert not entry.live


def test_a_command_is_shown_as_one_would_type_it() -> None:
    assert shown(f"{Path.home()}/x {sys.executable} /etc") == "~/x python /etc"
    assert _entry("a", 1).server.command.startswith("ADDED='1 2' python -P ")


def test_nothing_outlives_its_server(words: Words, ports: tuple[int, int]) -> None:
    entry = _entry("a", ports[0])
    entry.server.start(words)
    (pid,) = entry.server._pids()
    entry.server.stop()
    assert not alive(pid)
    entry.server.stop()
