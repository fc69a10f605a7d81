"""The server of tools as a process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def tool_server() -> Iterator[str]:
    """Its address, without a path."""
    program = str(Path(__file__).with_name("tool_server.py"))
    with subprocess.Popen([sys.executable, "-P", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
        finally:
            process.kill()
