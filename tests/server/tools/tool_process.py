"""The server of tools as a process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def tool_process() -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Its address, without a path, and itself."""
    program = str(Path(__file__).with_name("tool_server.py"))
    command = [sys.executable, "-P", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}", process
        finally:
            process.kill()


@contextmanager
def tool_server() -> Iterator[str]:
    """Its address, without a path."""
    with tool_process() as (url, _):
        yield url
