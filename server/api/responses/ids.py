"""Ids of responses and of their parts."""

import hashlib
import os
from typing import Final

_BYTES: Final = 24


_SHORT_BYTES: Final = 12
SHORT_ID: Final = 32
"""Most characters of an id in the Realtime API: clients replace longer ones."""


def random_id(prefix: str) -> str:
    return f"{prefix}_{os.urandom(_BYTES).hex()}"


def short_id(prefix: str) -> str:
    """A random id of at most :data:`SHORT_ID` characters; ``prefix`` has at most 7."""
    return f"{prefix}_{os.urandom(_SHORT_BYTES).hex()}"


class Ids:
    """Ids of one response's parts: for the same response they are the same in the same order."""

    def __init__(self, response: str) -> None:
        self._response = response
        self._count = 0

    def new(self, prefix: str) -> str:
        self._count += 1
        name = f"{self._response}:{self._count}"
        return f"{prefix}_{hashlib.blake2b(name.encode(), digest_size=_BYTES).hexdigest()}"
