"""Sets of tokens as integers: token t is bit t. Intersecting two sets of 150,000 tokens takes microseconds."""

from collections.abc import Iterable
from typing import Final

from stentor.protocols.ipc.steps import Masks, RowMask

FEW: Final = 16
"""Sets of at most this size are sent as ids."""
WORD_BYTES: Final = 4
MAX_BYTES: Final = 48 << 20
"""Most bytes of a step's sets, which travel in one frame: enough for 1,500 rows of a vocabulary of 256,000."""


def set_of(tokens: Iterable[int], size: int) -> int:
    """The set of those tokens that are below ``size``."""
    bits = bytearray(-(-size // 8))
    for token in tokens:
        if 0 <= token < size:
            bits[token >> 3] |= 1 << (token & 7)
    return int.from_bytes(bits, "little")


def ids_in(tokens: int) -> list[int]:
    """The tokens of a small set, ascending."""
    ids: list[int] = []
    while tokens:  # highest first, so that the rest gets shorter each time
        highest = tokens.bit_length() - 1
        ids.append(highest)
        tokens ^= 1 << highest
    ids.reverse()
    return ids


class MaskWriter:
    """Collects the sets of a step's rows into one message; equal sets are sent once."""

    def __init__(self) -> None:
        self._rows: list[RowMask] = []
        self._bits: dict[int, int] = {}
        self._bytes = 0

    def add(self, slot: int, tokens: int | None) -> bool:
        """Add the tokens that a row may draw at its next position; None: any. False if there is no space for another
        set."""
        if tokens is None:
            self._rows.append(RowMask(slot, [], -1))
            return True
        if tokens.bit_count() <= FEW:
            self._rows.append(RowMask(slot, ids_in(tokens), -1))
            return True
        place = self._bits.get(tokens)
        if place is None:
            self._bytes += tokens.bit_length() // 8
            if self._bytes > MAX_BYTES:
                return False
            place = self._bits[tokens] = len(self._bits)
        self._rows.append(RowMask(slot, [], place))
        return True

    def masks(self, epoch: int, step: int) -> Masks:
        return Masks(epoch, step, self._rows, [_words(tokens) for tokens in self._bits])


def _words(tokens: int) -> bytes:
    nbytes = -(-tokens.bit_length() // 8)
    return tokens.to_bytes(-(-nbytes // WORD_BYTES) * WORD_BYTES, "little")
