"""Which tests run.

``make test`` runs every test that is quick, a tenth of those that are slow (:mod:`.slow_tests`), which are all in
``make every``, and a fiftieth of those that are marked ``proof`` or compile kernels, which are all in ``make proof``.
Of the tests of kernels and of those marked ``sampled`` it takes as many cases as have each value of every parameter;
all pairs are ``make proof``. The *turn*, which is the number of commits, chooses the tenth, the fiftieth and the
cases: one commit always runs the same tests, ten have run every slow one, and fifty each value of every parameter of
the tier. Each tenth and each fiftieth takes about as long, by what was measured (:mod:`.proof_seconds`).
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

from stentor.tests.support.proof_seconds import SECONDS, FileSeconds, read_seconds
from stentor.tests.support.slow_tests import SLOW_TESTS, file_of, name_of, read_slow_tests

TESTS = Path(__file__).resolve().parent.parent

SHARES = 50
"""Turns that run a test of the tier `proof` once."""
WAITING = ("browser", "chaos", "e2e", "loadtest", "test_readme.py")
"""Folders and files whose tests mostly wait for processes that they have started."""
ONE_SERVER = "e2e"
"""Folder whose tests share a server."""
SAMPLED = ("triton", "compiles")
"""Marks of kernels that are interpreted or only compiled: slow where there is no GPU."""
SAMPLED_IN_TURNS = (*SAMPLED, "sampled")
"""What `make test` takes a sample of."""
TENTHS = 10
"""Turns that run a slow test once: `make test` takes at most ten minutes on two cores."""
_BETWEEN = 4
"""Files of other folders between two of these: they take about as long."""


class Portion(NamedTuple):
    """What runs in one turn as a whole: a file's tests of the tier, or those of one value of the parameter that takes
    turns."""

    file: str
    value: int | None


def beyond_the_share(
    items: Iterable[pytest.Item], turn: int, seconds: Mapping[str, FileSeconds] | None = None
) -> set[pytest.Item]:
    """Tests of the tier that are another turn's. ``seconds``: what files have taken, by default as it was recorded."""
    portions = {item: portion_of(item) for item in items if in_proof(item)}
    dealt = deal(portions.values(), _recorded() if seconds is None else seconds)
    return {item for item, portion in portions.items() if dealt[portion] != turn % SHARES}


def deal(portions: Iterable[Portion], seconds: Mapping[str, FileSeconds]) -> dict[Portion, int]:
    """The turn of each, such that turns take about as long: what takes longest first, each in the turn that has least.
    Those that share a server are dealt before the others, since one process runs them. What has not been measured is
    taken to be as long as most."""
    values: dict[str, int] = defaultdict(int)
    for portion in (portions := set(portions)):
        values[portion.file] += portion.value is not None
    usual = median(each.whole for each in seconds.values()) if seconds else 1.0

    def cost(portion: Portion) -> float:
        known = seconds.get(portion.file)
        if portion.value is None:
            return known.whole if known else usual
        return (known.by_value if known else usual) / values[portion.file]

    def order(portion: Portion) -> tuple[bool, float, str, int]:
        return unit_of(portion.file) == portion.file, -cost(portion), portion.file, portion.value or 0

    dealt = {}
    load = [0.0] * SHARES
    for portion in sorted(portions, key=order):
        dealt[portion] = turn = load.index(min(load))
        load[turn] += cost(portion)
    return dealt


@cache
def _recorded() -> dict[str, FileSeconds]:
    return read_seconds(SECONDS)


def _test_of(item: pytest.Item) -> tuple[Path, str]:
    return item.path, getattr(item, "originalname", item.name)


def in_proof(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("proof", "compiles"))


def portion_of(item: pytest.Item) -> Portion:
    """Of a test of the tier."""
    path = item.path.relative_to(TESTS.parent) if item.path.is_relative_to(TESTS) else item.path
    mark = item.get_closest_marker("proof")
    each: str | None = mark.kwargs.get("each") if mark else None
    if each is None:
        return Portion(str(path), None)
    spec: Any = getattr(item, "callspec", None)
    if spec is None or each not in spec.indices:
        raise pytest.UsageError(f"{item.name} is proof(each={each!r}), and has no parameter of this name")
    return Portion(str(path), spec.indices[each])


def beyond_the_tenth(
    items: Iterable[pytest.Item], turn: int, seconds: Mapping[str, float] | None = None
) -> set[pytest.Item]:
    """Cases of slow tests, and slow files, that are another turn's. ``seconds``: by default as recorded.

    ``items`` are all tests, whatever else leaves them out, so that a case keeps its turn. What takes longest is dealt
    first, each to the turn that has least.
    """
    known = read_slow_tests(SLOW_TESTS) if seconds is None else seconds
    slow: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not in_proof(item) and (name := name_of(item.nodeid)) in known:
            slow[name].append(item)
    portions: list[tuple[float, str, int, list[pytest.Item]]] = []
    for name, group in slow.items():
        parts = [group] if name == file_of(name) else [[item] for item in group]
        portions += [(known[name] / len(parts), name, place, part) for place, part in enumerate(parts)]
    left_out: set[pytest.Item] = set()
    load = [0.0] * TENTHS
    for cost, _, _, part in sorted(portions, key=lambda each: (-each[0], each[1:3])):
        least = load.index(min(load))
        load[least] += cost
        if least != turn % TENTHS:
            left_out.update(part)
    return left_out


def beyond_the_sample(items: Iterable[pytest.Item], turn: int, marks: Sequence[str] = SAMPLED) -> set[pytest.Item]:
    """Cases of tests with one of ``marks`` that are not in the sample, which has each value of every parameter; the
    same one in turns that divide it."""
    cases: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if any(map(item.get_closest_marker, marks)):
            cases[_test_of(item)].append(item)
    left_out: set[pytest.Item] = set()
    for (path, name), group in cases.items():
        draw = random.Random(f"{turn // TENTHS} {path.name} {name}")
        left_out.update(set(group) - _cover(group, draw))
    return left_out


def _cover(cases: Sequence[pytest.Item], draw: random.Random) -> set[pytest.Item]:
    """Few of them, such that each value that any of them has is among theirs."""
    values = {case: _values(case) for case in draw.sample(cases, len(cases))}
    chosen: set[pytest.Item] = set()
    missing = set().union(*values.values())
    while missing:
        # of those that have most of what is missing, the first as they were drawn
        best = max(values, key=lambda case: len(missing & values[case]))
        chosen.add(best)
        missing -= values.pop(best)
    return chosen or set(cases[:1])


def _values(case: pytest.Item) -> set[tuple[str, str]]:
    """Name of a parameter, and its value; what has no text of its own goes by its place."""
    spec = getattr(case, "callspec", None)
    if spec is None:
        return set()
    texts = {name: repr(value) for name, value in spec.params.items()}
    return {(name, str(spec.indices[name]) if " at 0x" in text else text) for name, text in texts.items()}


def unit_of(file: str) -> str:
    """What one process runs as a whole: a file, or those that share a server, which takes 14 CPU seconds to start and
    2 GB. ``file`` begins at the repository root."""
    top = f"{TESTS.name}/{ONE_SERVER}"
    return top if file.startswith(f"{top}/") else file


def is_alone(item: pytest.Item) -> bool:
    return bool(item.get_closest_marker("alone"))


def in_turns(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """File by file, with others between those that wait, so that each process that runs tests has both to do; what is
    alone comes last."""
    files: dict[Path, list[pytest.Item]] = defaultdict(list)
    last = []
    for item in items:
        if is_alone(item):
            last.append(item)
        else:
            files[item.path].append(item)
    waiting = [path for path in files if _top(path) in WAITING]
    others = iter([path for path in files if _top(path) not in WAITING])
    order = [path for each in waiting for path in (each, *islice(others, _BETWEEN))]
    return [item for path in (*order, *others) for item in files[path]] + last


def _top(path: Path) -> str:
    """The folder or file below `tests`."""
    return path.resolve().relative_to(TESTS).parts[0]
