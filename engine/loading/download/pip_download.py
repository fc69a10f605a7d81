"""Downloads a wheel with this Python's pip."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import IO, Final

from packaging.version import Version

from .wheel import STORAGE_ERRORS, FetchError, FetchProgress

RAW_PROGRESS_SINCE: Final = Version("24.1")
"""The first pip version that can print its progress as numbers."""
UNREACHABLE: Final = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Connection refused|Network is unreachable"
    r"|Max retries exceeded|NewConnectionError|ConnectTimeout|ReadTimeout"
)


def download_wheel(requirement: str, folder: Path, progress: FetchProgress) -> Path:
    """Download the wheel of ``requirement`` (``name`` or ``name==version``), without dependencies, into ``folder``.

    pip checks it against the index's hash. An interrupt ends pip too.

    Raises:
        FetchError: there is no pip, no such package or version, no wheel of it, or no network.
        OSError: the folder cannot be written.
    """
    if importlib.util.find_spec("pip") is None:
        raise FetchError(f"{sys.executable} has no pip to fetch {requirement} with; run: {sys.executable} -m ensurepip")
    folder.mkdir()
    raw = Version(importlib.metadata.version("pip")) >= RAW_PROGRESS_SINCE
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--no-cache-dir", "--disable-pip-version-check"]
    command += ["--progress-bar", "raw" if raw else "off", "--dest", str(folder), "--", requirement]
    what = f"downloading {requirement}"
    progress(what, 0, 0)
    # Not a pipe, which could fill up while stdout is read; not a disk, which may be full.
    with open(os.memfd_create("pip-complaints"), "w+", errors="replace") as complaints:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, text=True, errors="replace"
        ) as process:
            try:
                assert process.stdout is not None
                _follow(process.stdout, what, progress)
                status = process.wait()
            except BaseException:
                process.kill()
                raise
        complaints.seek(0)
        output = complaints.read()
    wheels = sorted(folder.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        _raise_for_storage(output)
        raise FetchError(_explain(requirement, status, output))
    return wheels[0]


def _follow(output: IO[str], what: str, progress: FetchProgress) -> None:
    for line in output:
        if numbers := re.fullmatch(r"Progress (\d+) of (\d+)\s*", line):
            progress(what, int(numbers[1]), int(numbers[2]))


def _raise_for_storage(output: str) -> None:
    found = re.search(r"OSError: \[Errno (\d+)\]", output)
    if found and int(found[1]) in STORAGE_ERRORS:
        raise OSError(int(found[1]), os.strerror(int(found[1])))


def _explain(requirement: str, status: int, output: str) -> str:
    if UNREACHABLE.search(output):
        return f"cannot fetch {requirement}: the package index cannot be reached; check the network and pip's settings"
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else f"it ended with status {status}"
    return f"cannot fetch {requirement}: pip says: {reason}; check the name, the version and pip's index settings"
