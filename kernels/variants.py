"""Which implementation of an operation runs, and how a caller forces one."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Variant = Literal["native", "reference"]
"""``native``: the C++ library. ``reference``: plain torch, on any device."""
Choice = Literal["auto", "native", "reference"]
"""What a caller may ask for; ``auto`` takes the native variant wherever it can run."""

_forced: ContextVar[Choice] = ContextVar("stentor_kernel_variant", default="auto")


@contextmanager
def force_variant(choice: Choice) -> Iterator[None]:
    """Within the block, operations called with ``variant="auto"`` in this context take ``choice``."""
    token = _forced.set(choice)
    try:
        yield
    finally:
        _forced.reset(token)


def wanted(choice: Choice) -> Choice:
    """``choice``, or what :func:`force_variant` says where it is ``auto``."""
    return _forced.get() if choice == "auto" else choice


def settle(choice: Choice, obstacle: str | None) -> Variant:
    """The variant to run, where ``obstacle`` says what keeps the native one from running (None: nothing).

    Raises:
        ValueError: ``native`` was asked for and cannot run.
    """
    choice = wanted(choice)
    if choice == "reference":
        return "reference"
    if obstacle is None:
        return "native"
    if choice == "native":
        raise ValueError(f"the native variant cannot run: {obstacle}")
    return "reference"
