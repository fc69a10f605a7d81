"""What of a command line stays out of files that are passed on."""

from collections.abc import Iterable
from typing import Final

_SECRET: Final = ("--api-key", "--header")


def masked(options: Iterable[str]) -> list[str]:
    """Options as they are recorded: without keys and headers."""
    shown: list[str] = []
    hide = False
    for word in options:
        name, equals, _ = word.partition("=")
        shown.append("***" if hide else f"{name}=***" if name in _SECRET and equals else word)
        hide = word in _SECRET
    return shown
