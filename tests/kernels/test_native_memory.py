import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from stentor.kernels.native.memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if {kept}:
    keep_freed_memory()
torch.set_num_threads(1)
for _ in range(4):
    a, b = torch.ones(2 << 20), torch.ones(2 << 20)
    del a, b
before = faults()
for _ in range(20):
    a, b = torch.ones(2 << 20), torch.ones(2 << 20)
    del a, b
print(faults() - before)
"""


@pytest.mark.proof  # a process that imports torch
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is about glibc")
def test_tensors_that_come_and_go_are_not_faulted_in_anew() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM.format(kept=True)], capture_output=True, text=True, timeout=60, check=True
    )
    # 2,048 pages a tensor; where the heap begins differs by run, and moves one or two of the forty once
    assert int(done.stdout) < 4 * 2048, "fewer than four of these forty tensors"
