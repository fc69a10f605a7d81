"""The grammars of one engine: the vocabulary, the cache of compiled grammars, and the constraints of a request."""

from collections import OrderedDict
from typing import Final

import msgspec

from stentor.protocols.ipc.actors import Submit, Vocabulary

from .constraint import ConstraintBroken, ParameterSets, TokenConstraint
from .matcher import Compiler, GrammarError, GuidanceMatcher
from .thinking import ThinkingBudget
from .vocabulary import TokenBytes, VocabularyReader

_CACHED: Final = 64
_CACHED_BYTES: Final = 8 << 20
"""Bytes of cached grammar sources. The compiled form is larger by a bounded factor (:mod:`.matcher`)."""


class RequestConstraints(msgspec.Struct, frozen=True):
    """The constraints of a request's sequences."""

    sequences: list[TokenConstraint | None]
    broken: dict[int, str]
    """Why a sequence cannot go on after its resumed tokens, by index."""


class StructuredOutputManager:
    """Makes constraints. The loop adds the vocabulary; :meth:`constraints_of` may run in another thread, one call at a
    time."""

    def __init__(self) -> None:
        self._reader = VocabularyReader()
        self._vocabulary: TokenBytes | None = None
        self._compiler: Compiler | None = None
        self._compiled: OrderedDict[str, GuidanceMatcher] = OrderedDict()
        self._compiled_bytes = 0

    def take(self, piece: Vocabulary) -> bool:
        """Add a piece of the vocabulary; True for the last one. Raises :class:`.vocabulary.VocabularyError`."""
        whole = self._reader.take(piece)
        if whole is None:
            return False
        self._vocabulary = whole
        self._compiler = None
        self._compiled.clear()
        self._compiled_bytes = 0
        return True

    def warm_up(self) -> None:
        """Prepare the compiler for the first grammar. Holds the interpreter's lock for most of about 100 ms.

        Raises :class:`.matcher.GrammarError`.
        """
        if self._compiler is None and self._vocabulary is not None:
            self._compiler = Compiler(self._vocabulary)

    def constraints_of(self, submit: Submit) -> RequestConstraints:
        """Compile a request's grammar, unless it is cached, and replay the tokens of a resumed request.

        Takes milliseconds, or much longer for a large grammar. Raises :class:`.matcher.GrammarError`.
        """
        vocabulary = self._vocabulary
        if vocabulary is None:
            raise GrammarError("the engine did not get this model's tokens: it cannot follow grammars or thinking")
        size = len(vocabulary.tokens)
        if submit.thinking is not None and not all(0 <= token < size for token in submit.thinking.end):
            raise GrammarError(f"thinking would end with tokens {submit.thinking.end}; ids lie in [0, {size})")
        template = self._template(submit.grammar, vocabulary) if submit.grammar else None
        sets = ParameterSets(submit.params, size, vocabulary.eos)
        ended = () if submit.resumed is None else submit.resumed.ended
        constraints = RequestConstraints([], {})
        for index in range(len(submit.seeds)):
            constraint = None
            if index not in ended:
                budget = None if submit.thinking is None else ThinkingBudget(submit.thinking)
                constraint = TokenConstraint(sets, None if template is None else template.copy(), budget)
                try:
                    for token in [] if submit.resumed is None else submit.resumed.outputs[index]:
                        constraint.accept(token)
                except ConstraintBroken as broken:
                    constraints.broken[index] = str(broken)
            constraints.sequences.append(constraint)
        return constraints

    def _template(self, source: str, vocabulary: TokenBytes) -> GuidanceMatcher:
        found = self._compiled.get(source)
        if found is not None:
            self._compiled.move_to_end(source)
            return found
        compiler = self._compiler = self._compiler or Compiler(vocabulary)
        made = compiler.compile(source)
        self._compiled[source] = made
        self._compiled_bytes += len(source)
        while len(self._compiled) > _CACHED or self._compiled_bytes > _CACHED_BYTES:
            oldest, _ = self._compiled.popitem(last=False)
            self._compiled_bytes -= len(oldest)
        return made
