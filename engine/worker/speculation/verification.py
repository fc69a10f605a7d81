"""Which of its drafts a row gains: as many as it would have drawn without."""

from collections.abc import Callable, Sequence

Draw = Callable[[int, list[int]], list[int]]
"""Draws, at so many drafts behind their own token, a token for each of some rows."""


def verify(drafts: Sequence[Sequence[int]], limits: Sequence[int], draw: Draw) -> list[list[int]]:
    """The tokens of each row, given its drafts and how many tokens it may gain at most, all at least one.

    A row draws at each position as it would if the tokens before had been drawn one a step: by the same logits, the
    same noise, and penalties and masks that know them. It goes on while what it has drawn is what was drafted, for
    only then are the next logits its own. So its text is the same with any drafts, for every way of drawing, and no
    distribution has to be corrected.
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
