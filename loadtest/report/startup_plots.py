"""How long starts took, by phase, and how several servers or versions of one compare."""

import statistics
from collections.abc import Callable, Sequence
from typing import Final

from ..record import Startup
from .plot import Axis, Mark, Plot, Stretches


def kinds(startup: Startup) -> list[tuple[str, list[dict[str, float]]]]:
    """``cold`` and ``warm``, as far as they were measured, each with the phases of its rounds."""
    found = [
        ("cold" if cold else "warm", [one.phases for one in startup.rounds if one.cold == cold]) for cold in (1, 0)
    ]
    return [(kind, rounds) for kind, rounds in found if rounds]


def median_phases(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Seconds of each phase, the median over the rounds; one that a round did not have took it no time."""
    names = dict.fromkeys(name for phases in rounds for name in phases)
    return {name: statistics.median(phases.get(name, 0.0) for phases in rounds) for name in names}


def startup_phases(startups: Sequence[Startup]) -> Plot:
    """A row for each kind of start, a colour for each phase, one after the other."""
    rows: list[tuple[str, dict[str, float]]] = []
    for startup in startups:
        for kind, rounds in kinds(startup):
            rows.append((f"{startup.name}, {kind}" if len(startups) > 1 else kind, median_phases(rounds)))
    stretches: dict[str, list[tuple[int, float, float]]] = {name: [] for _, phases in rows for name in phases}
    rows.reverse()  # rows count from below
    for row, (_, phases) in enumerate(rows):
        end = 0.0
        for name, seconds in phases.items():
            stretches[name].append((row, end, end + seconds))
            end += seconds
    marks: list[Mark] = [Stretches(name, spans, index) for index, (name, spans) in enumerate(stretches.items())]
    about = "Medians of each phase, one after the other until ready."
    axes = Axis("seconds", low=0), Axis("", names=[name for name, _ in rows])
    return Plot("startup-phases", "From start to ready", *axes, marks, about)


STARTUP_PLOTS: Final[dict[str, Callable[[Sequence[Startup]], Plot]]] = {"startup-phases": startup_phases}
"""By the name that ``--svg`` takes."""
