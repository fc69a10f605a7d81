"""Waiting for what another process brings about."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Polls until true; fails with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)
