"""Which implementation of an operation runs, and how a caller forces one."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Variant = Literal["triton", "native", "reference"]
"""``triton``: on CUDA. ``native``: the C++ library, on the CPU. ``reference``: plain torch, on any device."""
Choice = Literal["auto", "triton", "native", "reference"]
"""What a caller may ask for; ``auto`` takes the first of them that can run."""

NOT_WRITTEN = "there is none"
"""Why a variant is not supported that an operation does not have."""

forced: ContextVar[Choice] = ContextVar("stentor_kernel_variant", default="auto")
"""What :func:`force_variant` says; ``auto`` where nothing does."""


@contextmanager
def force_variant(choice: Choice) -> Iterator[None]:
    """Within the block, operations called with ``variant="auto"`` in this context take ``choice``."""
    token = forced.set(choice)
    try:
        yield
    finally:
        forced.reset(token)


def wanted(choice: Choice) -> Choice:
    """``choice``, or what :func:`force_variant` says where it is ``auto``."""
    return forced.get() if choice == "auto" else choice


def select_variant(choice: Choice, *, triton: str | None = NOT_WRITTEN, native: str | None = NOT_WRITTEN) -> Variant:
    """The variant to run, where each argument says what keeps that one from running (None: nothing).

    Raises:
        ValueError: a variant was asked for by name and cannot run.
    """
    choice = wanted(choice)
    if choice == "reference":
        return "reference"
    if triton is None and choice != "native":
        return "triton"
    if native is None and choice != "triton":
        return "native"
    if choice != "auto":
        raise ValueError(f"the {choice} variant cannot run: {triton if choice == 'triton' else native}")
    return "reference"
