"""The pool of compute threads: each item exactly once, whatever else the machine does."""

import subprocess
import sys
import threading
import time

import pytest
import torch

from stentor.kernels import linear, native

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native library")


@pytest.fixture(autouse=True)
def _restore_threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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
    torch.set_num_threads(2)
    linear(torch.randn(2, 64), torch.randn(2000, 64), invariant=True)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.02


def test_a_process_ends_while_helpers_wait() -> None:
    code = (
        "import torch; from stentor.kernels import linear; torch.set_num_threads(4);"
        "linear(torch.randn(2, 64), torch.randn(2000, 64), invariant=True)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code], timeout=60, check=False).returncode == 0
