"""Commands and requests of every side, and what is said where a peer is not installed."""

import json
from pathlib import Path

import pytest

from stentor.loadtest.peers.places import home, installed
from stentor.loadtest.peers.prompts import Prompt
from stentor.loadtest.peers.sides import SIDES, Room, Side, cores

WEIGHTS = Path("/models/m")
PROMPT = Prompt([5, 6, 7], " five six seven")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("side", SIDES.values(), ids=SIDES)
def test_every_server_gets_its_weights_and_listens_on_this_machine_alone(side: Side) -> None:
    command = side.launch(WEIGHTS, 4321, Room(8)).command
    assert str(WEIGHTS) in command
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--port") + 1] == "4321"


@pytest.mark.parametrize("side", SIDES.values(), ids=SIDES)
def test_every_request_asks_for_a_greedy_stream_of_exactly_so_many_tokens(side: Side) -> None:
    body = side.body(WEIGHTS, PROMPT, 128)
    assert body["max_tokens"] == 128
    assert body["stream"] is True
    if side.peer == "transformers":
        assert body["prompt"] == PROMPT.text
        assert json.loads(body["generation_config"]) == {"do_sample": False, "eos_token_id": -1}
    else:
        assert body["prompt"] == PROMPT.ids
        assert (body["ignore_eos"], body["temperature"]) == (True, 0)
        assert body["stream_options"] == {"include_usage": True}


def test_peers_run_in_their_own_environments(cache: Path) -> None:
    for side in SIDES.values():
        program = Path(side.launch(WEIGHTS, 1, Room(8)).command[0])
        assert program.is_relative_to(cache / "stentor" / "peers") == (side.peer != "stentor")


def test_peers_may_use_every_core_that_we_may() -> None:
    llama = SIDES["llama.cpp-q4_0"].launch(WEIGHTS, 1, Room(8)).command
    assert llama[llama.index("--threads") + 1] == str(len(cores()))
    assert llama[llama.index("--parallel") + 1] == "8"
    assert llama[llama.index("--ctx-size") + 1] == str(8 * 2304)
    environment = SIDES["vllm-bf16"].launch(WEIGHTS, 1, Room(8)).environment
    assert environment["VLLM_CPU_NUM_OF_RESERVED_CPU"] == "0"
    assert [int(core) for core in environment["VLLM_CPU_OMP_THREADS_BIND"].split(",")] == cores()


def test_sides_of_one_width_serve_one_form_or_the_same_values_in_another() -> None:
    assert {(side.bits, side.form) for side in SIDES.values()} == {
        ("bf16", "hf"),
        ("bf16", "bf16"),
        ("q4_0", "q4_0"),
        ("q4_1", "q4_1"),
        ("q8_0", "q8_0"),
    }


def test_what_is_not_installed_says_how_to_install_it() -> None:
    assert SIDES["stentor-bf16"].missing is None
    assert SIDES["vllm-bf16"].missing == "vllm is not installed; run: make peers ARGS=vllm"


def test_an_installation_counts_once_it_is_marked_complete() -> None:
    home("vllm").mkdir(parents=True)
    assert installed("vllm") is None
    (home("vllm") / "installed.json").write_text('{"version": "0.32.0"}')
    assert installed("vllm") == "0.32.0"
    assert SIDES["vllm-bf16"].missing is None
    (home("vllm") / "installed.json").write_text("{")
    assert installed("vllm") is None
