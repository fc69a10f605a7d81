"""A server that is told to end before it listens."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stentor.loadtest.processes import alive, children
from stentor.loadtest.server_process import hold_port
from stentor.server.common.exit_codes import INTERRUPTED
from stentor.server.main import cli
from stentor.tests.e2e.processes import eventually

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 64,
}


def test_told_to_end_as_soon_as_its_engine_is_there_it_ends_in_good_order(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    command = [sys.executable, "-P", "-m", "stentor.server.main.cli", "serve", str(tmp_path), "--load-format", "dummy"]
    with (
        hold_port() as held,
        subprocess.Popen(
            [*command, "--port", str(held.getsockname()[1])], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as server,
    ):
        eventually(lambda: len(children(server.pid)) == 2, 60, "the server launches its engine, beside the fork server")
        below = children(server.pid)
        server.send_signal(signal.SIGTERM)
        _, printed = server.communicate(timeout=60)
        assert server.returncode == 0, printed.decode()
        assert b"Traceback" not in printed
    eventually(lambda: not any(map(alive, below)), 60, "both end")


def test_an_interrupt_during_the_imports_of_a_command_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted:
        def __getattr__(self, _name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "stentor.server.main.commands", Interrupted())
    assert cli.main(["env"]) == INTERRUPTED
