"""What a plot shows, before anything is drawn: axes and marks over plain numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """The axis reaches all data, ``low`` and ``high`` too, and ends on round values.

    ``ticks`` says which values are labelled, and the axis then ends a little beyond the data. ``names`` makes it
    categorical: values are indices into it.
    """

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    names: Sequence[str] = ()
    ticks: Sequence[float] = ()


@dataclass(frozen=True)
class Line:
    """Points joined in order. ``colour`` counts series from 0; marks of one series share it."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    dashed: bool = False
    markers: bool = False
    labels: Sequence[str] = ()
    """A word beside each point, or none."""


@dataclass(frozen=True)
class Steps:
    """Each value holds until the next point: a distribution's CDF, or a count over time."""

    label: str
    points: Sequence[Point]
    colour: int = 0


@dataclass(frozen=True)
class Dots:
    """Points by themselves. ``cross`` draws them as crosses: what went wrong."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    cross: bool = False


@dataclass(frozen=True)
class Bars:
    """A histogram: ``counts[i]`` from ``edges[i]`` to ``edges[i + 1]``."""

    label: str
    edges: Sequence[float]
    counts: Sequence[float]
    colour: int = 0


@dataclass(frozen=True)
class Band:
    """The area between two curves over the same x."""

    label: str
    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    colour: int = 0


@dataclass(frozen=True)
class Heat:
    """How many values fell into each cell: ``counts[column][row]``, columns along x, rows along y upwards."""

    label: str
    x_edges: Sequence[float]
    y_edges: Sequence[float]
    counts: Sequence[Sequence[float]]
    colour: int = 0


@dataclass(frozen=True)
class Stretches:
    """Level bars, each ``(row, low, high)``: in the row of a categorical y axis from one x to another."""

    label: str
    stretches: Sequence[tuple[int, float, float]]
    colour: int = 0


@dataclass(frozen=True)
class Rule:
    """A limit: an upright line at ``value``, or a level one."""

    label: str
    value: float
    upright: bool = True


Mark = Line | Steps | Dots | Bars | Band | Heat | Stretches | Rule


@dataclass(frozen=True)
class Plot:
    """``name`` is what it is asked for by; ``about`` says in one sentence what it shows, also to a screen reader."""

    name: str
    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    about: str = ""

    @property
    def empty(self) -> bool:
        """No mark has a point to draw."""
        return not any(spans(mark) for mark in self.marks if not isinstance(mark, Rule))


def spans(mark: Mark) -> tuple[list[float], list[float]] | None:
    """The x and the y values that a mark reaches; None where it has none. A rule reaches nothing of its own."""
    values: tuple[list[float], list[float]] = [], []
    match mark:
        case Line(points=points) | Steps(points=points) | Dots(points=points):
            values = [x for x, _ in points], [y for _, y in points]
        case Bars(edges=edges, counts=counts):
            values = list(edges), [0.0, *counts]
        case Band(x=x, low=low, high=high):
            values = list(x), [*low, *high]
        case Heat(x_edges=x, y_edges=y):
            values = list(x), list(y)
        case Stretches(stretches=stretches):
            values = [x for _, *ends in stretches for x in ends], [float(row) for row, _, _ in stretches for _ in "ab"]
        case Rule():
            pass
    return values if values[0] else None
