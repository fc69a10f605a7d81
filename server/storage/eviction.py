"""Chooses the rows to delete when the store is full.

The limit is divided by max-min fairness: an owner below an equal part leaves the rest to others. An owner within its
fair share loses nothing to others; writing owners lose rows first.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from .table import Row


def fair_share(held: Iterable[int], most: int) -> float:
    """Share of each owner, so that all together hold ``most``; infinite if they hold less."""
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
    """Rows to delete so that at most ``most`` bytes are held; None if there is no way.

    ``held`` has the bytes of every owner, with the additions of the ``asking`` ones; ``rows`` are an owner's deletable
    rows, in order. Asking owners lose rows while above their fair share, then the owner furthest above it, and at last
    asking owners again.
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
