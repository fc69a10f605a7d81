"""The dispatcher: every benchmark that it lists can be asked for help."""

import subprocess
import sys

import pytest

from stentor.loadtest.bench import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_each_benchmark_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "usage: " in capsys.readouterr().out


def test_the_server_s_command_leads_to_it() -> None:
    command = [sys.executable, "-P", "-m", "stentor.server.main.cli", "bench", "serve", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "usage: stentor bench serve " in done.stdout


def test_the_list_names_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert name in printed
        assert command.help in printed
    assert main([]) == 2


def test_a_benchmark_that_is_none_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["swep"]) == 2
    assert capsys.readouterr().err == "stentor bench: no benchmark is called swep; did you mean sweep?\n"
    assert main(["xyz"]) == 2
    assert "expected one of serve, sweep" in capsys.readouterr().err
