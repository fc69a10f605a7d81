"""The constraint of one sequence: its grammar, its thinking budget and its parameters, combined."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from stentor.protocols.ipc.actors import Fault, Submit
from stentor.protocols.ipc.sampling import SamplingParams

from .matcher import Matcher
from .repeats import RepeatedSequences
from .thinking import ThinkingBudget
from .token_sets import set_of

Endings = Mapping[int, Sequence[tuple[tuple[int, ...], int]]]
"""Banned sequences by their last but one token: (all tokens but the last, last token)."""


def endings_of(sequences: Iterable[Sequence[int]]) -> Endings:
    """Index banned sequences of two or more tokens; shared by all sequences of a request."""
    found: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for sequence in sequences:
        *before, last = sequence
        if before:
            found.setdefault(before[-1], []).append((tuple(before), last))
    return found


class BadWords:
    """Tracks one sequence's output tokens to ban the ends of bad words. Prompt tokens do not count."""

    __slots__ = ("_endings", "_longest", "_tail")

    def __init__(self, endings: Endings) -> None:
        self._endings = endings
        self._longest = max((len(before) for some in endings.values() for before, _ in some), default=0)
        self._tail: list[int] = []

    def take(self, token: int) -> None:
        """Record a token of the sequence."""
        self._tail.append(token)
        if len(self._tail) > 2 * self._longest:
            del self._tail[: -self._longest]

    def banned(self, size: int) -> int:
        """Tokens that must not come next, as a set of :mod:`.token_sets`. ``size`` is that of the vocabulary."""
        tail = self._tail
        if not tail or tail[-1] not in self._endings:
            return 0
        return set_of((last for before, last in self._endings[tail[-1]] if tuple(tail[-len(before) :]) == before), size)

    def copy(self) -> "BadWords":
        twin = BadWords(self._endings)
        twin._tail = self._tail.copy()
        return twin

    def may_ban(self, ahead: int, size: int) -> bool:
        """Whether a token may be banned after up to ``ahead`` further tokens, not known yet."""
        return bool(self._endings) and (ahead > 0 or bool(self.banned(size)))


class ConstraintBroken(Exception):
    """The sequence cannot go on. The message is one line; ``fault`` names the part of the request that caused it."""

    def __init__(self, why: str, fault: Fault = "") -> None:
        super().__init__(why)
        self.fault: Final[Fault] = fault


class Complete(Exception):
    """The grammar is complete, and no token can follow."""


def is_constrained(submit: Submit) -> bool:
    """Whether the allowed tokens depend on the tokens drawn before: the sequences need a :class:`TokenConstraint`."""
    params = submit.params
    bans = bool(params.banned_sequences) or params.no_repeat is not None
    return bool(submit.grammar) or bans or submit.thinking is not None


class ParameterSets:
    """Token sets that follow from a request's parameters; shared by its sequences."""

    __slots__ = (
        *("early", "endings", "ends", "eos", "ids", "ignores_eos", "limited_by", "min_tokens"),
        *("no_repeat", "size"),
    )

    def __init__(self, params: SamplingParams, size: int, eos: Sequence[int]) -> None:
        """``size`` is that of the vocabulary, ``eos`` the tokens that end a grammar. Ids of ``size`` and above are not
        allowed."""
        self.size: Final = size
        self.min_tokens: Final = params.min_tokens
        whole = (1 << size) - 1
        allowed = whole if params.allowed_token_ids is None else set_of(params.allowed_token_ids, size)
        self.limited_by: Final[Fault] = "bad_words" if params.allowed_token_ids is None else "allowed_token_ids"
        self.ids: Final = allowed & ~set_of(params.banned_token_ids, size)
        self.endings: Final[Endings] = endings_of(params.banned_sequences)
        self.no_repeat: Final = params.no_repeat
        self.ends: Final = frozenset(params.eos_token_ids)
        self.eos: Final = set_of((*eos, *params.eos_token_ids), size)
        """Allowed where a grammar is complete."""
        self.ignores_eos: Final = not params.eos_token_ids
        self.early: Final = self.eos | set_of(params.stop_token_ids, size)
        """Banned below ``min_tokens``."""

    def bans(self) -> list[BadWords | RepeatedSequences]:
        """What bans tokens of a new sequence by those before."""
        found: list[BadWords | RepeatedSequences] = [BadWords(self.endings)] if self.endings else []
        return found if self.no_repeat is None else [*found, RepeatedSequences(self.no_repeat)]


class TokenConstraint:
    """The constraint of one sequence. It accepts exactly the delivered tokens; drafts are tried on a copy."""

    __slots__ = ("_bans", "_budget", "_count", "_matcher", "_sets", "ended")

    def __init__(self, sets: ParameterSets, matcher: Matcher | None, budget: ThinkingBudget | None) -> None:
        self._sets = sets
        self._matcher = matcher
        self._budget = budget
        self._bans = sets.bans()
        self._count = 0
        self.ended = False
        """Whether the grammar allows no further token."""

    def restricts(self, least: int, most: int) -> bool:
        """Whether the token after ``least`` to ``most`` further tokens, not known yet, may be restricted."""
        if self._matcher is not None or self._count + least < self._sets.min_tokens:
            return True
        if any(ban.may_ban(most, self._sets.size) for ban in self._bans):
            return True
        return self._budget is not None and self._budget.may_be_due(most)

    def copy(self) -> "TokenConstraint":
        """An independent copy. Takes microseconds, or more if the grammar's lexer has grown large."""
        twin = TokenConstraint(
            self._sets,
            None if self._matcher is None else self._matcher.copy(),
            None if self._budget is None else self._budget.copy(),
        )
        twin._bans = [ban.copy() for ban in self._bans]
        twin._count, twin.ended = self._count, self.ended
        return twin

    def allowed_behind(self, allowed: int | None, drafts: Sequence[int]) -> Iterator[int | None]:
        """The results of :meth:`allowed` after each draft in turn, given that it is ``allowed`` before the first.

        Ends at a draft that is not allowed, or that nothing can follow.
        """
        if not drafts:
            return
        twin = self.copy()
        for draft in drafts:
            if allowed is not None and not allowed >> draft & 1:
                return
            try:
                twin.accept(draft)
                allowed = twin.allowed()
            except (Complete, ConstraintBroken):
                return
            yield allowed

    def accept(self, token: int) -> None:
        """Advance by a drawn token. Raises :class:`ConstraintBroken`; the object is unusable afterwards."""
        self._count += 1
        if self._budget is not None:
            self._budget.take(token)
        for ban in self._bans:
            ban.take(token)
        matcher = self._matcher
        if matcher is None:
            return
        if token in self._sets.ends and matcher.accepting():
            self.ended = True
            return
        if not matcher.consume(token):
            raise _broken_by(matcher.error())
        self.ended = matcher.stopped()
        if self.ended and (why := matcher.error()):
            raise _broken_by(why)

    def allowed(self) -> int | None:
        """The tokens allowed next, at least one; None for all that the parameters allow.

        Raises :class:`ConstraintBroken` if none is left, and :class:`Complete` if the grammar needs none.
        """
        sets, matcher = self._sets, self._matcher
        due = None if self._budget is None else self._budget.due
        if matcher is None:
            if due is not None:
                return self._left(1 << due)
            banned = self._banned()
            if self._count >= sets.min_tokens and not banned:
                return None
            return self._left(self._without(banned, self._late_enough(sets.ids)))
        if self.ended:
            raise Complete
        # a character that is half drawn must be completed first if the grammar works on characters
        if due is not None and matcher.allows(due):
            return self._left(1 << due)
        tokens = matcher.allowed()
        if why := matcher.error():
            raise _broken_by(why)
        accepting = matcher.accepting()
        if accepting:
            tokens = (tokens & ~sets.eos or tokens) if sets.ignores_eos else tokens | sets.eos
        tokens = self._without(self._banned(), self._late_enough(tokens))
        if accepting and not tokens & sets.ids:
            raise Complete
        return self._left(tokens)

    def _banned(self) -> int:
        banned = 0
        for ban in self._bans:
            banned |= ban.banned(self._sets.size)
        return banned

    def _without(self, banned: int, tokens: int) -> int:
        """Remove banned tokens, unless no other token is left."""
        if not banned:
            return tokens
        spared = tokens & ~banned
        return spared if spared & self._sets.ids else tokens

    def _late_enough(self, tokens: int) -> int:
        """Remove the tokens that end a sequence while it is below min_tokens, unless the grammar allows no others."""
        if self._count >= self._sets.min_tokens:
            return tokens
        return tokens & ~self._sets.early or tokens

    def _left(self, tokens: int) -> int:
        left = tokens & self._sets.ids
        if not left:
            raise ConstraintBroken(
                "no token is left to draw: the grammar or the thinking budget asks for what allowed_token_ids or "
                "banned tokens exclude",
                self._sets.limited_by,
            )
        return left


def _broken_by(why: str | None) -> ConstraintBroken:
    reason = why or "it does not allow the token that was drawn"
    return ConstraintBroken(f"the grammar cannot be followed any further: {reason}", "grammar" if why else "")
