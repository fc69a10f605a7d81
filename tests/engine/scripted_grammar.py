"""Grammars of twelve tokens that know all that was drawn before, so that a matcher fed wrongly allows other tokens."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from stentor.engine.core.grammar.constraint import ParameterSets, TokenConstraint
from stentor.engine.core.grammar.token_sets import set_of
from stentor.protocols.ipc.sampling import SamplingParams

VOCAB = 12
EOS = 0
"""The vocabulary's own; never a token of the text."""


def _hash(*parts: object) -> int:
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class ScriptedGrammar:
    """What may follow each text of tokens 1 to 11."""

    seed: int

    def allowed(self, tokens: Sequence[int]) -> set[int]:
        """One token at least."""
        drawn = _hash("allowed", self.seed, list(tokens))
        found = {token for token in range(1, VOCAB) if drawn >> token & 1 and drawn >> token + 16 & 1}
        return found or {1 + drawn % (VOCAB - 1)}

    def accepting(self, tokens: Sequence[int]) -> bool:
        return self.stopped(tokens) or (bool(tokens) and _hash("accepting", self.seed, list(tokens)) % 3 == 0)

    def stopped(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and _hash("stopped", self.seed, list(tokens)) % 9 == 0

    def ends_with(self, params: SamplingParams, tokens: Sequence[int], token: int) -> bool:
        """Whether ``token`` after ``tokens`` leaves nothing to draw."""
        if self.accepting(tokens) and token in {EOS, *params.eos_token_ids}:
            return True
        return self.stopped([*tokens, token])


def permitted(grammar: ScriptedGrammar, params: SamplingParams, tokens: Sequence[int]) -> set[int]:
    """What a sequence may draw after ``tokens``, from the definitions alone."""
    ends = set(params.eos_token_ids)
    found = grammar.allowed(tokens)
    if grammar.accepting(tokens) and ends:
        found |= {EOS, *ends}
    if not ends:
        found = found - {EOS} or found
    if len(tokens) < params.min_tokens:
        found = found - {EOS} - ends - set(params.stop_token_ids) or found
    return found


class ScriptedMatcher:
    """A matcher over such a grammar; ``breaks`` after so many tokens."""

    def __init__(self, grammar: ScriptedGrammar, tokens: Sequence[int] = (), breaks: int = 1000) -> None:
        self.grammar = grammar
        self.tokens = list(tokens)
        self.breaks = breaks
        self._ended = False
        self._error = ""

    def consume(self, token: int) -> bool:
        assert not self._error, "fed after an error"
        assert not self._ended, "fed after its end"
        if len(self.tokens) >= self.breaks:
            self._error = "it has become too complex"
        elif token == EOS and self.accepting():
            self._ended = True
        elif token in self.grammar.allowed(self.tokens):
            self.tokens.append(token)
        else:
            self._error = f"token {token} does not fit"
        return not self._error

    def allows(self, token: int) -> bool:
        return token in self.grammar.allowed(self.tokens) or (token == EOS and self.accepting())

    def accepting(self) -> bool:
        return self.grammar.accepting(self.tokens)

    def stopped(self) -> bool:
        return self._ended or bool(self._error) or self.grammar.stopped(self.tokens)

    def error(self) -> str:
        return self._error

    def allowed(self) -> int:
        tokens = self.grammar.allowed(self.tokens)
        return set_of(tokens | {EOS} if self.accepting() else tokens, VOCAB)

    def copy(self) -> "ScriptedMatcher":
        return ScriptedMatcher(self.grammar, self.tokens, self.breaks)


class WideMatcher:
    """Over any vocabulary: after each text few tokens, half of them, one, or nearly all; never an end."""

    def __init__(self, size: int, seed: int, tokens: Sequence[int] = ()) -> None:
        self.size = size
        self.seed = seed
        self.tokens = list(tokens)

    def consume(self, token: int) -> bool:
        fits = self.allows(token)
        self.tokens.append(token)
        return fits

    def allows(self, token: int) -> bool:
        return bool(self.allowed() >> token & 1)

    def accepting(self) -> bool:
        return False

    def stopped(self) -> bool:
        return False

    def error(self) -> str:
        return ""

    def allowed(self) -> int:
        rng = random.Random(f"{self.seed} {self.tokens}")
        some = rng.sample(range(self.size), rng.choice([1, 5, self.size // 2, self.size - 3]))
        return set_of(some, self.size)

    def copy(self) -> "WideMatcher":
        return WideMatcher(self.size, self.seed, self.tokens)


def wide_constraint(size: int, seed: int, params: SamplingParams) -> TokenConstraint:
    return TokenConstraint(ParameterSets(params, size, []), WideMatcher(size, seed), None)


def constraint_over(
    grammar: ScriptedGrammar, params: SamplingParams, outputs: Sequence[int] = (), breaks: int = 1000
) -> TokenConstraint:
    """What a sequence follows that has drawn ``outputs``."""
    constraint = TokenConstraint(ParameterSets(params, VOCAB, [EOS]), ScriptedMatcher(grammar, breaks=breaks), None)
    for token in outputs:
        constraint.accept(token)
    return constraint
