"""Prompt lookup: what followed the last few tokens of a row where these stood in it before."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Final

import numpy as np

from stentor.protocols.ipc.steps import NewRow

from .ngram_hash import hash_of, hashes_of

CANDIDATES: Final = 8
"""Earlier places that one lookup compares at most, the latest first."""
_LEAST_BITS: Final = 10
_MOST_SKIPPED: Final = 31


class NgramIndex:
    """Where each n-gram of a growing text stood last, and where before that: heads and links, as in LZ77.

    A token costs the same however long the text is, in time and in memory: 10 to 16 bytes. N-grams of one hash share a
    chain, and a place counts only where its tokens are the same.

    An n-gram whose continuation was wrong from its first token on is passed over the next time that it comes, then 3
    times, 7, 15 and 31 times, until it is right again.
    """

    __slots__ = ("_asked", "_bits", "_heads", "_least", "_links", "_most", "_penalties", "_skips", "_tokens")

    def __init__(self, tokens: Sequence[int], least: int, most: int) -> None:
        """At least ``least`` tokens must be the same; of places where more are, up to ``most``, the longest counts."""
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
        """What is expected next; nothing where the text's end has not stood in it before, or was wrong lately."""
        _, found = self.places(1)
        if not found or self.passes_over():
            return []
        return list(islice(self.behind(found[0], most), most))

    def places(self, most: int) -> tuple[int, list[int]]:
        """Of the places where the text's end has stood before those where most tokens are the same, the latest first,
        at most so many; and how many tokens are."""
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
        """What has followed one, up to so many tokens; then that again, as a text that has begun to repeat itself goes
        on."""
        return cycle(self._tokens[place + 1 : place + 1 + most])

    def passes_over(self) -> bool:
        """Whether what follows the text's end is not to be proposed, for it was wrong lately; else it is what
        :meth:`verified` speaks of."""
        chain = self._chain(len(self._tokens) - 1)
        if self._skips[chain]:
            self._skips[chain] -= 1
            return True
        self._asked = chain
        return False

    def verified(self, accepted: int) -> None:
        """So many tokens of the last proposal were right."""
        penalty = 0 if accepted else min(2 * self._penalties[self._asked] + 1, _MOST_SKIPPED)
        self._penalties[self._asked] = self._skips[self._asked] = penalty

    def _same(self, place: int, last: int) -> int:
        """How many tokens up to both places are the same, as far as they count."""
        tokens, most = self._tokens, min(self._most, place + 1)
        for back in range(most):
            if tokens[place - back] != tokens[last - back]:
                return back
        return most

    def _chain(self, at: int) -> int:
        """Of the n-gram that ends at a place."""
        return hash_of(self._tokens[at + 1 - self._least : at + 1]) >> (32 - self._bits)

    def _build(self, bits: int) -> None:
        """Anew, with 2^bits chains."""
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
    """See :class:`.proposer.Proposer`: of each row its prompt and its own answer so far."""

    def __init__(self, slots: int, most: int, least_same: int, most_same: int) -> None:
        """``most`` drafts for a row at once; for the others see :class:`NgramIndex`."""
        self.most = most
        self._same = least_same, most_same
        self._rows: list[NgramIndex | None] = [None] * slots

    def enter(self, new: NewRow) -> None:
        self._rows[new.slot] = NgramIndex(new.tokens, *self._same)

    def remove(self, slot: int) -> None:
        self._rows[slot] = None

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        row = self._row(slot)
        for token in tokens:
            row.append(token)

    def propose(self, wanted: Mapping[int, int]) -> dict[int, list[int]]:
        found = {slot: self._row(slot).propose(most) for slot, most in wanted.items()}
        return {slot: drafts for slot, drafts in found.items() if drafts}

    def verified(self, slot: int, drafted: int, accepted: int) -> None:
        self._row(slot).verified(accepted)

    def _row(self, slot: int) -> NgramIndex:
        row = self._rows[slot]
        if row is None:
            raise ValueError(f"slot {slot} holds no row; one must enter before tokens are proposed for it")
        return row
