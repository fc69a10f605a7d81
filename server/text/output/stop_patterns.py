r"""Patterns that end a text, which arrives in pieces: the text ends where the first match of one of them does.

Glushkov's automaton of all patterns (doi:10.1070/RM1961v016n05ABEH004112) has a position for each character of theirs,
repetitions written out. Its state is a set of positions, held as the bits of a number. Each character is read once, and
costs a look-up, or as much as there are positions: no text and no pattern makes it longer. Positions, and the
transitions that are remembered, are bounded.

Only what the text so far decides is taken: no ``^``, ``$``, ``\b``, no look-around, no references to groups.
"""

import importlib
import re
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from .stop import StopMatcher

MAX_POSITIONS: Final = 256
"""Characters of all patterns of a request, repetitions written out."""
_MAX_OPTIONS: Final = 1024
"""Characters and ranges of all sets within them, likewise."""
_MAX_TRANSITIONS: Final = 4096

_parser: Final = importlib.import_module("re._parser")  # its types are unknown

Holds = Callable[[str], bool]
"""Whether a position takes a character."""


class PatternRefused(ValueError):
    """A pattern that cannot end a text; ``place`` in the list of them."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place: Final = place


class _Part(NamedTuple):
    """A part of a pattern: whether it may be empty, and the positions with which it begins and ends, as bits."""

    empty: bool
    first: int
    last: int


_NOTHING: Final = _Part(True, 0, 0)


class StopPatterns:
    """The patterns of one request, compiled; shared by its choices. Raises :class:`PatternRefused`."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns: Final = tuple(patterns)
        self._holds: list[Holds] = []
        """By position."""
        self._options = 0
        self._follow: list[int] = []
        self._first = 0
        self._last: list[int] = []
        """By pattern."""
        self._ends = 0
        self._transitions: dict[tuple[int, str], int] = {}
        for place, pattern in enumerate(patterns):
            try:
                part = self._read(_parsed(pattern))
            except (re.error, RecursionError, OverflowError) as error:
                raise PatternRefused(place, f"is no pattern: {str(error)[:120]}") from None
            except ValueError as error:
                raise PatternRefused(place, str(error)) from None
            if part.empty:
                raise PatternRefused(place, "matches the empty text, with which every text begins")
            self._first |= part.first
            self._last.append(part.last)
            self._ends |= part.last

    def step(self, state: int, character: str) -> int:
        """The state behind a character; that of an empty text is 0."""
        key = (state, character)
        found = self._transitions.get(key)
        if found is None:
            reached = self._first  # a match may begin anywhere
            for position in _bits(state):
                reached |= self._follow[position]
            found = sum(1 << position for position in _bits(reached) if self._holds[position](character))
            if len(self._transitions) >= _MAX_TRANSITIONS:
                self._transitions.clear()
            self._transitions[key] = found
        return found

    def matched(self, state: int) -> str | None:
        """The first pattern that a match of ends here."""
        if not state & self._ends:
            return None
        return next(own for own, last in zip(self.patterns, self._last, strict=True) if state & last)

    def _read(self, items: Any) -> _Part:
        """Items one behind the other."""
        whole = _NOTHING
        for operation, given in items:
            whole = self._behind(whole, self._item(str(operation), given))
        return whole

    def _item(self, operation: str, given: Any) -> _Part:
        match operation:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                return self._position(operation, given)
            case "BRANCH":
                read = [self._read(branch) for branch in given[1]]
                empty = any(part.empty for part in read)
                return _Part(empty, _union(part.first for part in read), _union(part.last for part in read))
            case "SUBPATTERN":
                _, added, removed, inner = given
                if added or removed:
                    raise ValueError("sets flags within, which is not supported")
                return self._read(inner)
            case "MAX_REPEAT" | "MIN_REPEAT":
                return self._repeated(*given)
            case _:
                raise ValueError(f"has {_NAMES.get(operation, operation)}, which is not supported")

    def _repeated(self, least: int, most: Any, inner: Any) -> _Part:
        whole, endless = _NOTHING, most is _parser.MAXREPEAT
        for number in range(max(least, 1) if endless else int(most)):
            part = self._read(inner)
            if not part.first:  # it matches the empty text alone
                break
            if endless and number >= least - 1:
                self._link(part.last, part.first)
            whole = self._behind(whole, part._replace(empty=part.empty or number >= least))
        return whole

    def _position(self, operation: str, given: Any) -> _Part:
        self._options += len(given) if operation == "IN" else 1
        if self._options > _MAX_OPTIONS:
            raise ValueError(f"has sets with more than {_MAX_OPTIONS} characters and ranges, repetitions written out")
        if len(self._holds) == MAX_POSITIONS:
            raise ValueError(f"has more than {MAX_POSITIONS} characters, repetitions written out")
        bit = 1 << len(self._holds)
        self._holds.append(_holds(operation, given))
        self._follow.append(0)
        return _Part(False, bit, bit)

    def _behind(self, one: _Part, other: _Part) -> _Part:
        self._link(one.last, other.first)
        first = one.first | other.first if one.empty else one.first
        last = one.last | other.last if other.empty else other.last
        return _Part(one.empty and other.empty, first, last)

    def _link(self, last: int, first: int) -> None:
        for position in _bits(last):
            self._follow[position] |= first


compiled_patterns: Final = lru_cache(maxsize=8)(StopPatterns)
"""Makes :class:`StopPatterns`, shared by all prompts of a request."""


class PatternMatcher:
    """Watches the text of one choice, as :class:`.stop.StopMatcher`, for patterns and for stop strings.

    What matches a pattern is part of the text, so nothing is held back for it.
    """

    __slots__ = ("_compiled", "_state", "_strings", "matched")

    def __init__(self, compiled: StopPatterns, strings: StopMatcher | None) -> None:
        self._compiled = compiled
        self._strings = strings
        self._state = 0
        self.matched: str | None = None
        """The pattern or stop string that ended the text."""

    def push(self, text: str, *, armed: bool = True) -> str:
        """Takes the next piece and returns the text that became final. A match that ends in a piece which is not
        ``armed`` does not count. After :attr:`matched` is set, it returns nothing."""
        if self.matched is not None:
            return ""
        found, end, step = None, len(text), self._compiled.step
        for place, character in enumerate(text, 1):
            self._state = step(self._state, character)
            if armed and (found := self._compiled.matched(self._state)) is not None:
                end = place
                break
        shown = text[:end] if self._strings is None else self._strings.push(text[:end], armed=armed)
        if self._strings is not None and self._strings.matched is not None:
            found = self._strings.matched  # it ends no later
        elif self._strings is not None and found is not None:
            shown += self._strings.finish()
        self.matched = found
        return shown

    def finish(self) -> str:
        """The text held back, which is final when no more can come."""
        return "" if self._strings is None else self._strings.finish()


Matcher = StopMatcher | PatternMatcher


def _parsed(pattern: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = _parser.parse(pattern)
    if read.state.flags & ~re.UNICODE:
        raise ValueError("sets flags, which is not supported")
    return read


_NAMES: Final = {
    "AT": "an anchor or a boundary of words",
    "ASSERT": "a look-around",
    "ASSERT_NOT": "a look-around",
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "a reference to a group",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repetition",
}
_CATEGORIES: Final[dict[str, Holds]] = {
    "DIGIT": str.isdecimal,
    "SPACE": str.isspace,
    "WORD": lambda character: character.isalnum() or character == "_",
}


def _holds(operation: str, given: Any) -> Holds:
    match operation:
        case "LITERAL":
            return chr(given).__eq__
        case "NOT_LITERAL":
            return chr(given).__ne__
        case "ANY":
            return "\n".__ne__
    negated, options = False, []
    for kind, value in given:
        match str(kind):
            case "NEGATE":
                negated = True
            case "RANGE":
                options.append(_in_range(*map(chr, value)))
            case "CATEGORY":
                options.append(_category(str(value)))
            case other:
                options.append(_holds(other, value))
    return lambda character: any(option(character) for option in options) is not negated


def _in_range(low: str, high: str) -> Holds:
    return lambda character: low <= character <= high


def _category(name: str) -> Holds:
    """``CATEGORY_DIGIT``, ``CATEGORY_NOT_DIGIT`` and so on."""
    own = _CATEGORIES[name.rpartition("_")[2]]
    return (lambda character: not own(character)) if "_NOT_" in name else own


def _union(sets: Any) -> int:
    found = 0
    for each in sets:
        found |= each
    return found


def _bits(positions: int) -> list[int]:
    found = []
    while positions:
        lowest = positions & -positions
        found.append(lowest.bit_length() - 1)
        positions ^= lowest
    return found
