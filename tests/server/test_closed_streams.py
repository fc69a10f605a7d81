"""The command without standard streams, as some supervisors start it."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from stentor.server.main.cli import open_closed_streams
open_closed_streams()
print("lost")
print("lost", file=sys.stderr, flush=True)
with open(sys.argv[1], "w") as file:
    file.write(f"{file.fileno() > 2} {sys.stderr.isatty()} {sys.stdin.read()!r}")
"""


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-", ""])
def test_no_file_takes_the_place_of_a_closed_standard_stream(tmp_path: Path, closed: str) -> None:
    path = tmp_path / "said"
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-P", "-c", PROGRAM, str(path)]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert path.read_text() == "True False ''"
