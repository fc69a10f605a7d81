"""Ids of responses and of what belongs to them."""

import hashlib
import os
from typing import Final

_BYTES: Final = 24


def random_id(prefix: str) -> str:
    return f"{prefix}_{os.urandom(_BYTES).hex()}"


class Ids:
    """The ids of what one response makes: drawn again for the same response, they are the same in the same order."""

    def __init__(self, response: str) -> None:
        self._response = response
        self._count = 0

    def new(self, prefix: str) -> str:
        self._count += 1
        name = f"{self._response}:{self._count}"
        return f"{prefix}_{hashlib.blake2b(name.encode(), digest_size=_BYTES).hexdigest()}"
