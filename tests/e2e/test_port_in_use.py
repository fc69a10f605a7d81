"""A second server where one listens already."""

import subprocess

from stentor.loadtest.server_process import ServerProcess


def test_a_port_in_use_is_one_clear_line(server: ServerProcess) -> None:
    second = subprocess.run(
        [*server.command[:-1], str(server.port)], capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 1
    (line,) = second.stderr.strip().splitlines()
    assert str(server.port) in line
    assert "in use" in line
