"""Prompt lookup: proposes what followed an earlier occurrence of a row's last tokens."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Final

import numpy as np

from stentor.protocols.ipc.steps import NewRow

from .ngram_hash import hash_of, hashes_of
from .proposer import row_at

CANDIDATES: Final = 8
"""Most earlier occurrences that one lookup compares, the latest first."""
_LEAST_BITS: Final = 10
_MOST_SKIPPED: Final = 31


class NgramIndex:
    """The last position of each n-gram of a growing text, and the ones before: heads and links, as in LZ77.

    The cost of a token does not depend on the text's length: constant time, and 10 to 16 bytes. N-grams with one hash
    share a chain; positions are compared by their tokens.

    An n-gram whose continuation was wrong from its first token on is skipped at its next occurrence, then 3 times, 7,
    15 and 31 times, until it is right again.
    """

    __slots__ = ("_asked", "_bits", "_heads", "_least", "_links", "_most", "_penalties", "_skips", "_tokens")

    def __init__(self, tokens: Sequence[int], least: int, most: int) -> None:
        """At least ``least`` tokens must match; longer matches, up to ``most``, are preferred."""
        self._least, self._most = least, most
        self._tokens = array("i", tokens)
        self._asked = -1
        """The chain of the last proposal."""
        self._build(max(_LEAST_BITS, len(tokens).bit_length()))

    def append(self, token: int) -> None:
        self._tokens.append(token)
        at = len(self._tokens) - 1
        if at >> self._bits:
            self._build(self._bits + 1)
        elif at + 1 < self._least:
            self._links.append(-1)
        else:
            chain = self._chain(at)
            self._links.append(self._heads[chain])
            self._heads[chain] = at

    @property
    def tokens(self) -> Sequence[int]:
        """The text."""
        return self._tokens

    def propose(self, most: int) -> list[int]:
        """The expected continuation; empty if the end of the text has not occurred before, or was wrong lately."""
        _, found = self.places(1)
        if not found or self.passes_over():
            return []
        return list(islice(self.behind(found[0], most), most))

    def places(self, most: int) -> tuple[int, list[int]]:
        """(matching tokens, positions): the earlier occurrences with the longest match, latest first, at most
        ``most``."""
        last, longest = len(self._tokens) - 1, self._least - 1
        found: list[int] = []
        place = self._links[last]
        for _ in range(CANDIDATES):
            if place < 0 or (longest == self._most and len(found) >= most):
                break
            if (same := self._same(place, last)) > longest:
                found, longest = [place], same
            elif found and same == longest:
                found.append(place)
            place = self._links[place]
        return longest, found[:most]

    def behind(self, place: int, most: int) -> Iterator[int]:
        """The tokens behind a position, up to ``most``, then the same again, as in a text that begins to repeat
        itself."""
        return cycle(self._tokens[place + 1 : place + 1 + most])

    def passes_over(self) -> bool:
        """Whether to skip the proposal because it was wrong lately; otherwise :meth:`verified` refers to it."""
        chain = self._chain(len(self._tokens) - 1)
        if self._skips[chain]:
            self._skips[chain] -= 1
            return True
        self._asked = chain
        return False

    def verified(self, accepted: int) -> None:
        """Record how many tokens of the last proposal were accepted."""
        penalty = 0 if accepted else min(2 * self._penalties[self._asked] + 1, _MOST_SKIPPED)
        self._penalties[self._asked] = self._skips[self._asked] = penalty

    def _same(self, place: int, last: int) -> int:
        """Matching tokens up to both positions, at most ``self._most``."""
        tokens, most = self._tokens, min(self._most, place + 1)
        for back in range(most):
            if tokens[place - back] != tokens[last - back]:
                return back
        return most

    def _chain(self, at: int) -> int:
        """Chain of the n-gram that ends at a position."""
        return hash_of(self._tokens[at + 1 - self._least : at + 1]) >> (32 - self._bits)

    def _build(self, bits: int) -> None:
        """Rebuild with 2^bits chains."""
        self._bits = bits
        tokens = np.frombuffer(self._tokens, dtype=np.int32)
        chains = hashes_of(tokens, self._least) >> (32 - bits)
        ends = np.arange(self._least - 1, self._least - 1 + len(chains), dtype=np.int32)
        heads = np.full(1 << bits, -1, dtype=np.int32)
        links = np.full(len(tokens), -1, dtype=np.int32)
        order = np.argsort(chains, kind="stable")
        in_order = chains[order]
        heads[in_order] = ends[order]
        same = in_order[1:] == in_order[:-1]
        links[ends[order[1:][same]]] = ends[order[:-1][same]]
        self._heads, self._links = array("i", heads.tobytes()), array("i", links.tobytes())
        self._penalties, self._skips = bytearray(1 << bits), bytearray(1 << bits)


class NgramProposer:
    """See :class:`.proposer.Proposer`: looks up each row's prompt and answer so far."""

    def __init__(self, slots: int, most: int, least_same: int, most_same: int) -> None:
        """``most``: drafts for a row at once; for the others see :class:`NgramIndex`."""
        self.most = most
        self._same = least_same, most_same
        self._rows: list[NgramIndex | None] = [None] * slots

    def enter(self, new: NewRow) -> None:
        self._rows[new.slot] = NgramIndex(new.tokens, *self._same)

    def remove(self, slot: int) -> None:
        self._rows[slot] = None

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        row = row_at(self._rows, slot)
        for token in tokens:
            row.append(token)

    def propose(self, wanted: Mapping[int, int]) -> dict[int, list[int]]:
        found = {slot: row_at(self._rows, slot).propose(most) for slot, most in wanted.items()}
        return {slot: drafts for slot, drafts in found.items() if drafts}

    def verified(self, slot: int, drafted: int, accepted: int) -> None:
        row_at(self._rows, slot).verified(accepted)
