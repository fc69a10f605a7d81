"""Sends a model's vocabulary to the engine in pieces."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from stentor.protocols.ipc.actors import Vocabulary

PIECE_BYTES: Final = 128 << 10
"""Approximate size of one message: a small part of a channel's ring."""
_TOKEN_BYTES: Final = 4
"""Approximate size of a token in a message beyond its own bytes."""


class VocabularyError(ValueError):
    """A piece does not continue the one before."""


class TokenBytes(msgspec.Struct, frozen=True):
    """All tokens, indexed by id."""

    tokens: list[bytes]
    special: list[int]
    eos: list[int]


def pieces_of(tokens: Sequence[bytes], special: frozenset[int], eos: frozenset[int]) -> Iterator[Vocabulary]:
    """Split a vocabulary into messages."""
    start = 0
    while start < len(tokens):
        end = start
        size = 0
        while end < len(tokens) and (size < PIECE_BYTES or end == start):
            size += len(tokens[end]) + _TOKEN_BYTES
            end += 1
        ids = range(start, end)
        yield Vocabulary(
            start,
            len(tokens),
            list(tokens[start:end]),
            [id for id in ids if id in special],
            [id for id in ids if id in eos],
        )
        start = end


class VocabularyReader:
    """Joins the pieces."""

    def __init__(self) -> None:
        self._tokens: list[bytes] = []
        self._special: list[int] = []
        self._eos: list[int] = []

    def take(self, piece: Vocabulary) -> TokenBytes | None:
        """Add a piece; returns all tokens after the last one. A first piece starts anew. Raises
        :class:`VocabularyError`."""
        if piece.start == 0:
            self._tokens, self._special, self._eos = [], [], []
        if piece.start != len(self._tokens) or not piece.tokens:
            raise VocabularyError(
                f"a piece of the vocabulary begins at token {piece.start}; expected was {len(self._tokens)}"
            )
        self._tokens += piece.tokens
        self._special += piece.special
        self._eos += piece.eos
        if len(self._tokens) < piece.total:
            return None
        return TokenBytes(self._tokens, self._special, self._eos)
