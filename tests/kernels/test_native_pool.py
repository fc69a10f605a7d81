"""The pool of compute threads: each item exactly once, whatever else the machine does."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from stentor.kernels import linear, native
from stentor.tests.e2e.processes import eventually

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native library")


@pytest.fixture(autouse=True)
def _restore_threads() -> object:
    before, own = torch.get_num_threads(), native.set_threads(None)
    yield
    torch.set_num_threads(before)
    native.set_threads(own)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_thousands_of_loops_in_a_row_give_the_same_result(threads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 96, generator=generator)
    weights = [torch.randn(size, 96, generator=generator) for size in (64, 640, 1600)]
    torch.set_num_threads(1)
    expected = [linear(x, weight, invariant=True) for weight in weights]
    torch.set_num_threads(threads)
    for _ in range(700):
        for weight, right in zip(weights, expected, strict=True):
            assert torch.equal(linear(x, weight, invariant=True), right)


def test_two_python_threads_at_once_do_not_disturb_each_other() -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(4, 128, generator=generator), torch.randn(900, 128, generator=generator)
    expected = linear(x, weight, invariant=True)
    wrong = []

    def work() -> None:
        for _ in range(300):
            if not torch.equal(linear(x, weight, invariant=True), expected):
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_an_idle_pool_sleeps() -> None:
    """No helper is given a processor any more: a thread that runs now and then is switched to each time."""
    x, weight = torch.randn(2, 64), torch.randn(20_000, 64)
    others = set(os.listdir("/proc/self/task"))
    torch.set_num_threads(len(others) + 8)  # more than any test before it in this process
    linear(x, weight, invariant=True)
    helpers = set(os.listdir("/proc/self/task")) - others
    assert len(helpers) >= 3

    def sleep() -> bool:
        before = [_state(helper) for helper in helpers]
        time.sleep(0.3)
        return all("S (sleeping)" in state for state in before) and before == [_state(helper) for helper in helpers]

    eventually(sleep, 60, "every helper sleeps, and goes on sleeping")


def _state(thread: str) -> str:
    """What it does, and how often it has been given a processor and lost it."""
    lines = Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
    return " ".join(line for line in lines if line.startswith(("State", "voluntary", "nonvoluntary")))


@pytest.mark.proof  # a process that imports torch
def test_a_forked_process_computes_without_the_helpers_it_lost_and_the_first_one_ends_while_they_wait() -> None:
    code = """
import os, torch
from stentor.kernels import linear
torch.set_num_threads(3)
x, weight = torch.randn(4, 64), torch.randn(2000, 64)
expected = linear(x, weight, invariant=True)
child = os.fork()
if child == 0:
    same = all(torch.equal(linear(x, weight, invariant=True), expected) for _ in range(50))
    os._exit(0 if same else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-P", "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.proof  # a process that imports torch
def test_a_machine_that_gives_no_more_threads_is_only_slower() -> None:
    code = """
import os, resource, torch
from pathlib import Path
from stentor.kernels import linear
torch.set_num_threads(1)
x, weight = torch.randn(4, 64), torch.randn(2000, 64)
expected = linear(x, weight, invariant=True)
mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (4 << 20),) * 2)  # less than the stack of one thread
threads = len(os.listdir("/proc/self/task"))
torch.set_num_threads(8)
same = all(torch.equal(linear(x, weight, invariant=True), expected) for _ in range(50))
raise SystemExit(0 if same and len(os.listdir("/proc/self/task")) == threads else 1)
"""
    assert subprocess.run([sys.executable, "-P", "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.alone  # a helper that finds no core in time is woken once for two loops
@pytest.mark.proof  # a process that imports torch
def test_fewer_threads_than_there_are_helpers_find_theirs_awake() -> None:
    """Every sleeping helper is woken: if one of three were, none would be for more than a third of the loops."""
    code = """
import os, time, torch
from pathlib import Path
from stentor.kernels import linear
x, weight = torch.randn(4, 64), torch.randn(2000, 64)
torch.set_num_threads(1)
linear(x, weight, invariant=True)
others = set(os.listdir("/proc/self/task"))
torch.set_num_threads(4)
linear(x, weight, invariant=True)
helpers = set(os.listdir("/proc/self/task")) - others
assert len(helpers) == 3

def woken():
    found = []
    for helper in helpers:
        lines = Path(f"/proc/self/task/{helper}/status").read_text().splitlines()
        found.append(sum(int(line.split()[1]) for line in lines if line.startswith("voluntary")))
    return found

torch.set_num_threads(2)
before = woken()
for loops in range(1, 500):
    time.sleep(0.002)
    linear(x, weight, invariant=True)
    if loops >= 20 and min(now - then for now, then in zip(woken(), before, strict=True)) > 0.4 * loops:
        raise SystemExit(0)
raise SystemExit(1)
"""
    assert subprocess.run([sys.executable, "-P", "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.alone  # it crowds the machine
def test_an_item_that_a_helper_holds_is_waited_for_on_a_crowded_machine() -> None:
    """Many more threads than cores, beside busy processes: helpers lose their core in the middle of items."""
    generator = torch.Generator().manual_seed(2)
    x, weight = torch.randn(8, 512, generator=generator), torch.randn(3000, 512, generator=generator)
    torch.set_num_threads(1)
    expected = linear(x, weight, invariant=True)
    torch.set_num_threads(16)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        for _ in range(60):
            assert torch.equal(linear(x, weight, invariant=True), expected)
    finally:
        for process in busy:
            process.kill()
            process.wait()
