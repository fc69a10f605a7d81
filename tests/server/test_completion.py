"""What ``stentor completion`` prints: bash runs it, and all that the command line takes is in each shell's script."""

import subprocess

import pytest

from stentor.server.main.commands import _build_parser, _completion, run
from stentor.server.main.completion import Command, described, flag, script
from stentor.server.options.option import OPTIONS

SHELLS = ("bash", "zsh", "fish")


def completed(*words: str) -> list[str]:
    """What bash offers for the last of the words."""
    asked = " ".join(f"'{word}'" for word in words)
    program = (
        f"{_completion('bash')}\n"
        f'COMP_WORDS=({asked}); COMP_CWORD={len(words) - 1}; _stentor; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes_commands_options_and_their_values() -> None:
    assert completed("stentor", "d") == ["doctor"]
    assert completed("stentor", "serve", "--kv-cache-d") == ["--kv-cache-dtype"]
    assert completed("stentor", "serve", "--dtype", "") == ["auto", "float32", "bfloat16", "float16"]
    assert completed("stentor", "serve", "--port", "") == []
    assert completed("stentor", "completion", "") == [*SHELLS]
    assert completed("stentor", "bench", "serv") == ["serve", "server-cost"]


def test_bash_completes_files_where_an_option_takes_one(tmp_path: object) -> None:
    assert completed("stentor", "serve", "--tls-cert", f"{tmp_path}"[:-1]) != []


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    written = capsys.readouterr().out
    for name in described(*_build_parser()):
        assert name in written
    for option in OPTIONS:
        if option.name != "model":
            assert option.name in written, option.name


def test_a_quote_in_a_help_text_ends_no_string() -> None:
    commands = {"serve": Command("it's", [flag(["--a"], "what's [here]: it", "x|y")])}
    assert r"'serve:it'\''s'" in script("zsh", commands)
    assert r"'*--a[what'\''s  here   it]:x|y:(x y)'" in script("zsh", commands)
    assert r"-d 'what\'s [here]: it'" in script("fish", commands)


def test_a_shell_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "tcsh"]) == 2
    assert "tcsh" in capsys.readouterr().err
