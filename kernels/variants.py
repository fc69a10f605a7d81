"""Chooses which implementation of an operation runs, and lets a caller force one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from .forced import forced, forcing

Variant = Literal["triton", "native", "reference"]
"""``triton``: on CUDA. ``native``: the C++ library, on the CPU. ``reference``: plain torch, on any device."""
Choice = Literal["auto", "triton", "native", "reference"]
"""What a caller may ask for; ``auto`` takes the first variant that can run."""

NOT_WRITTEN = "there is none"
"""The reason given for a variant that an operation does not have."""


@contextmanager
def force_variant(choice: Choice) -> Iterator[None]:
    """Within the block, operations called with ``variant="auto"`` in this context use ``choice``."""
    with forcing(variant=choice):
        yield


def wanted(choice: Choice) -> Choice:
    """Returns ``choice``, or the choice of :func:`force_variant` if it is ``auto``."""
    return forced.get().variant if choice == "auto" else choice


def select_variant(choice: Choice, *, triton: str | None = NOT_WRITTEN, native: str | None = NOT_WRITTEN) -> Variant:
    """Returns the variant to run. Each argument says why that variant cannot run (None: it can).

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
