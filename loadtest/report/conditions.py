"""``--fail-if "itl.p99>1.1"``: a condition on the ratio of a figure, and nothing more of a language than that."""

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from .figures import known_figures

_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_FORM: Final = re.compile(r"\s*([a-z_0-9.]+)\s*(>=|<=|>|<)\s*([0-9.eE+-]+)\s*")


class ConditionError(ValueError):
    """A condition that cannot be read, or that has nothing to judge; the message is one line for the operator."""


@dataclass(frozen=True)
class Condition:
    """Holds where the ratio of ``figure`` stands in relation ``sign`` to ``bound``."""

    figure: str
    sign: str
    bound: float

    def holds(self, ratio: float) -> bool:
        return _OPERATORS[self.sign](ratio, self.bound)

    def __str__(self) -> str:
        return f"{self.figure}{self.sign}{self.bound:g}"


def parse_conditions(texts: Sequence[str]) -> list[Condition]:
    """Conditions out of options, each one or several with commas between. Raises :class:`ConditionError`."""
    return [_parse(part) for text in texts for part in text.split(",")]


def _parse(text: str) -> Condition:
    form = _FORM.fullmatch(text)
    if form is None:
        raise ConditionError(f"--fail-if {text.strip()!r}: expected FIGURE>RATIO or FIGURE<RATIO, such as itl.p99>1.1")
    figure, sign, bound = form.groups()
    known = known_figures()
    if figure not in known:
        near = get_close_matches(figure, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
        raise ConditionError(f"--fail-if {text.strip()!r}: no figure is called {figure}; {hint}")
    try:
        value = float(bound)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConditionError(f"--fail-if {text.strip()!r}: {bound} is no number: expected a ratio, such as 1.1")
    return Condition(figure, sign, value)
