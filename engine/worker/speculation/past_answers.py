"""An index of past answers by n-gram: a ring of answers, each of one domain."""

import mmap
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from .ngram import CANDIDATES
from .ngram_hash import hash_of, hashes_of

_END: Final = -1
"""Ends each answer."""
_LARGEST_PART: Final = 4
"""Only the end of an answer longer than this part of the ring is kept."""
_SPREAD: Final = 0x9E3779B1


class PastAnswers:
    """The latest answers, within limits on tokens and requests.

    ::

        answers  ...|a a a a -1|b b -1|c c c c c -1|          place p lies at p modulo the ring's size
        owners   ...|0 0 0 0  0|7 7  7|0 0 0 0 0  0|          the domain of each
        links        the place before whose n-gram has the same hash, and so on; heads: the latest of each hash

    A domain never finds another's answers: hashes include the domain, and owners are compared. A token takes 28 bytes,
    allocated when it is written. The oldest answer is dropped first; an answer that proposals were made from is
    generated again, so it is among the latest too.
    """

    __slots__ = (
        "_answers",
        "_bits",
        "_domains",
        "_end",
        "_heads",
        "_least",
        "_links",
        "_mask",
        "_most",
        "_most_answers",
        "_next_domain",
        "_owners",
        "_tokens",
    )

    def __init__(self, bits: int, most_answers: int, least: int, most: int) -> None:
        """A ring of 2^bits tokens. ``least``, ``most``: see :class:`.ngram.NgramIndex`."""
        size = 1 << bits
        self._bits, self._mask = bits, size - 1
        self._most_answers = most_answers
        self._least, self._most = least, most
        self._tokens = _zeros(size, "i")
        self._owners, self._links, self._heads = (_zeros(size, "q") for _ in range(3))
        self._end = 1
        """The next place to write; place 0 is not used."""
        self._answers: deque[tuple[int, bytes]] = deque()
        """(begin, domain) of each answer, the oldest first."""
        self._domains: dict[bytes, list[int]] = {}
        """Domains with answers: (number, count of answers)."""
        self._next_domain = 0

    def __len__(self) -> int:
        """Number of answers."""
        return len(self._answers)

    def add(self, domain: bytes, answer: Sequence[int]) -> None:
        """Add an answer; about 0.2 µs a token."""
        size = self._mask + 1
        text = np.array([*answer[-(size // _LARGEST_PART) :], _END], dtype=np.int32)
        if len(text) <= self._least or not self._most_answers:
            return
        known = self._domains.setdefault(domain, [self._next_domain, 0])
        self._next_domain += known[1] == 0
        known[1] += 1
        begin, self._end = self._end, self._end + len(text)
        self._answers.append((begin, domain))
        while len(self._answers) > self._most_answers or self._answers[0][0] < self._end - size:
            self._forget()
        places = np.arange(begin, self._end)
        at = places & self._mask
        tokens, owners, links, heads = map(np.asarray, (self._tokens, self._owners, self._links, self._heads))
        tokens[at] = text
        owners[at] = known[0]
        chains = hashes_of(text[:-1], self._least, known[0] * _SPREAD & 0xFFFFFFFF) >> (32 - self._bits)
        ends = places[self._least - 1 : -1]
        order = np.argsort(chains, kind="stable")
        in_order, ends_in_order = chains[order], ends[order]
        first = np.concatenate(([True], in_order[1:] != in_order[:-1]))
        before = np.concatenate(([0], ends_in_order[:-1]))
        before[first] = heads[in_order[first]]
        links[at] = 0
        links[ends_in_order & self._mask] = before
        heads[in_order] = ends_in_order

    def places(self, domain: bytes, text: Sequence[int]) -> tuple[int, list[int]]:
        """(matching tokens, positions): where answers of the domain have the longest match with the end of ``text``,
        latest first."""
        longest = self._least - 1
        found: list[int] = []
        known = self._domains.get(domain)
        if known is None or len(text) < self._least:
            return longest, found
        owner, mask, oldest = known[0], self._mask, self._answers[0][0]
        place = self._heads[hash_of(text[-self._least :], owner * _SPREAD & 0xFFFFFFFF) >> (32 - self._bits)]
        for _ in range(CANDIDATES):
            if place < oldest:
                break
            if self._owners[place & mask] == owner:
                if (same := self._same(place, text)) > longest:
                    found, longest = [place], same
                elif found and same == longest:
                    found.append(place)
            place = self._links[place & mask]
        return longest, found

    def behind(self, place: int, most: int) -> list[int]:
        """The tokens behind a place in its answer, up to ``most``."""
        found: list[int] = []
        for at in range(place + 1, place + 1 + most):
            if (token := self._tokens[at & self._mask]) == _END:
                break
            found.append(token)
        return found

    def _same(self, place: int, text: Sequence[int]) -> int:
        """Matching tokens up to a place and the end of a text; stops at the beginning of the answer."""
        tokens, mask, most = self._tokens, self._mask, min(self._most, len(text), place - self._answers[0][0] + 1)
        for back in range(most):
            if tokens[(place - back) & mask] != text[-1 - back]:
                return back
        return most

    def _forget(self) -> None:
        _, domain = self._answers.popleft()
        known = self._domains[domain]
        known[1] -= 1
        if not known[1]:
            del self._domains[domain]


def _zeros(count: int, kind: Literal["i", "q"]) -> memoryview:
    """Numbers in memory that is allocated when it is written."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return memoryview(mmap.mmap(-1, count * np.dtype(kind).itemsize, flags=private)).cast("B").cast(kind)
