"""What is counted of a process."""

import os
import threading
import time

from stentor.loadtest.processes import cpu_seconds

_SPUN = 0.02


def _spin() -> None:
    while time.thread_time() < _SPUN:
        pass


def test_cpu_time_counts_threads_that_have_ended() -> None:
    before = cpu_seconds(os.getpid())
    spinning = threading.Thread(target=_spin)
    spinning.start()
    spinning.join()
    assert cpu_seconds(os.getpid()) - before >= _SPUN


def test_a_process_that_is_gone_has_used_none() -> None:
    assert cpu_seconds(1 << 22) == 0.0  # a number that the kernel gives to none
