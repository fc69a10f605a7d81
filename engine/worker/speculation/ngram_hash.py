"""32-bit hashes of n-grams, of one or of all in a text; the upper bits are mixed best."""

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

_MULTIPLIER: Final = 0x9E3779B1
_WORD: Final = 0xFFFFFFFF
_MIX: Final = 15


def hash_of(tokens: Iterable[int], seed: int = 0) -> int:
    """Hash of one n-gram; another ``seed`` gives other hashes."""
    value = seed
    for token in tokens:
        value = (value + token) * _MULTIPLIER & _WORD
        value ^= value >> _MIX
    return value


def hashes_of(tokens: NDArray[np.int32], length: int, seed: int = 0) -> NDArray[np.int64]:
    """:func:`hash_of` each n-gram of ``length`` tokens, by position; empty for a shorter text."""
    wide = tokens.astype(np.uint64)
    count = max(0, len(wide) + 1 - length)
    values = np.full(count, seed, dtype=np.uint64)
    for offset in range(length):
        values = (values + wide[offset : offset + count]) * np.uint64(_MULTIPLIER) & np.uint64(_WORD)
        values ^= values >> np.uint64(_MIX)
    return values.astype(np.int64)
