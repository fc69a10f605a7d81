"""The attention kernels touch no memory that is not theirs, as far as compute-sanitizer sees."""

import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

WORKLOAD = [sys.executable, "-P", "-m", "stentor.tests.gpu.attention_workload"]
FOUND = 77


@pytest.mark.timeout(600)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_attention_stays_within_its_memory(tool: str) -> None:
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), *WORKLOAD]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    if "not supported" in text and "attended" not in text:
        pytest.skip("compute-sanitizer does not work on this machine")
    assert done.returncode == 0, text[-4000:]
    assert "attended" in text
