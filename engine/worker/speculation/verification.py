"""Verifies drafts: a row gains the tokens that it would have sampled without them."""

from collections.abc import Callable, Sequence

Draw = Callable[[int, list[int]], list[int]]
"""``draw(behind, rows)``: samples a token for each of ``rows``, ``behind`` drafts after their own token."""


def verify(drafts: Sequence[Sequence[int]], limits: Sequence[int], draw: Draw) -> list[list[int]]:
    """The tokens that each row gains, given its drafts and limit, at least one.

    A row samples at each position as if the tokens before had been sampled one a step: with the same logits and noise,
    and with penalties and masks that know them. It continues while its samples equal the drafts, since only then are
    the next logits valid. So the text is the same with any drafts, for every way of sampling, and no distribution needs
    correction.
    """
    found: list[list[int]] = [[] for _ in drafts]
    rows = list(range(len(drafts)))
    behind = 0
    while rows:
        drawn = draw(behind, rows)
        for row, token in zip(rows, drawn, strict=True):
            found[row].append(token)
        behind += 1
        rows = [
            row
            for row in rows
            if len(drafts[row]) >= behind and limits[row] > behind and found[row][-1] == drafts[row][behind - 1]
        ]
    return found
