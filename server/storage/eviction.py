"""Whose rows make room when the store is full.

The store's bound is divided by max-min fairness: whoever holds less than an equal part leaves the rest to the others.
An owner that holds no more than its fair share loses nothing to others; those that ask for more pay first.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from .table import Row


def fair_share(held: Iterable[int], most: int) -> float:
    """What each owner may hold, so that all of them together hold ``most``; infinite where they hold less."""
    left, rest = float(most), sorted(held)
    for place, size in enumerate(rest):
        share = left / (len(rest) - place)
        if size > share:
            return share
        left -= size
    return math.inf


def rows_to_evict(
    held: Mapping[str, int], asking: Sequence[str], most: int, rows: Callable[[str], Iterator[Row]]
) -> list[Row] | None:
    """What must go so that no more than ``most`` are held; None where there is no room to be made.

    ``held`` has the bytes of every owner, with what those who are ``asking`` add; ``rows`` are an owner's that may go,
    in the order in which they do. Those who ask lose rows while they are above their fair share, then whoever is most
    above it, and at last those who ask again, whatever they hold.
    """
    left = dict(held)
    share = fair_share(left.values(), most)
    need = sum(left.values()) - most
    lines: dict[str, Iterator[Row]] = {}
    chosen: list[Row] = []

    def take(owner: str) -> bool:
        nonlocal need
        row = next(lines.setdefault(owner, rows(owner)), None)
        if row is None:
            return False
        chosen.append(row)
        left[owner] -= row.bytes
        need -= row.bytes
        return True

    for owner in asking:
        while need > 0 and left[owner] > share and take(owner):
            pass
    above = {owner for owner in left if left[owner] > share}
    while need > 0 and above:
        owner = max(above, key=left.__getitem__)
        if not take(owner) or left[owner] <= share:
            above.discard(owner)
    for owner in asking:
        while need > 0 and take(owner):
            pass
    return None if need > 0 else chosen
