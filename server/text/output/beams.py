"""Beam search as arithmetic: which sequences to continue, and which are the best.

The definition is vLLM's. A step ranks the ``2 * width`` most likely tokens of each running beam. Those that end a
sequence give results; of the others the ``width`` most likely sequences run on. A result's score is its log-probability
divided by ``length ** length_penalty``, where the length counts the prompt, and not the token that ended it.
"""

from collections.abc import Sequence
from itertools import count

from stentor.protocols.ipc.steps import TokenLogprobs

Ranked = Sequence[tuple[int, float]]
"""Tokens with their log-probabilities, best first."""


class Beam:
    """A sequence: another one and one more token."""

    __slots__ = ("_before", "entry", "length", "stop_token", "total")

    def __init__(
        self, before: "Beam | None", entry: TokenLogprobs | None, total: float, length: int, stop_token: int | None
    ) -> None:
        self._before = before
        self.entry = entry
        """The last token; None: the sequence is the prompt."""
        self.total = total
        """Sum of the log-probabilities of its tokens."""
        self.length = length
        """Tokens of prompt and sequence, without the one that ended it."""
        self.stop_token = stop_token
        """The token that ended it; None if it could go on."""

    def entries(self) -> list[TokenLogprobs]:
        """Its tokens, in order."""
        found, beam = [], self
        while beam.entry is not None and beam._before is not None:
            found.append(beam.entry)
            beam = beam._before
        return found[::-1]

    def continued(self, entry: TokenLogprobs, stop_token: int | None) -> "Beam":
        return Beam(self, entry, self.total + entry.logprob, self.length + (stop_token is None), stop_token)


class BeamSearch:
    """A running search. :meth:`advance` takes what the model says of each of :attr:`running`, until :attr:`done`."""

    def __init__(
        self,
        *,
        width: int,
        length_penalty: float,
        prompt_len: int,
        max_tokens: int,
        ends: frozenset[int],
        alternatives: int = 0,
    ) -> None:
        """``ends``: tokens that end a sequence. ``alternatives``: that many are kept beside each token."""
        self._width = width
        self._length_penalty = length_penalty
        self._longest = prompt_len + max_tokens
        self._ends = ends
        self._alternatives = alternatives
        self._ended: list[Beam] = []
        """The best results so far, best first, at most ``width``."""
        self.running = [Beam(None, None, 0.0, prompt_len, None)]
        """Sequences to continue, most likely first; all have the same length."""

    @property
    def done(self) -> bool:
        """Whether no further step can change the best results."""
        if not self.running or self.running[0].length == self._longest:
            return True
        if len(self._ended) < self._width:
            return False
        # Log-probabilities only fall. With a penalty above 0 the longest sequence would have the best score of equals,
        # otherwise the shortest, which ends with its next token.
        first = self.running[0]
        length = self._longest if self._length_penalty > 0 else first.length
        return self._divided(first.total, length) <= self.score(self._ended[-1])

    def advance(self, top_logprobs: Sequence[Ranked]) -> None:
        """``top_logprobs``: the ``2 * width`` most likely next tokens of each running beam, or more."""
        going: list[Beam] = []
        for beam, top in zip(self.running, top_logprobs, strict=True):
            shown = [*top[: self._alternatives]]
            for rank, (token, logprob) in zip(count(1), top[: 2 * self._width]):
                is_end = token in self._ends
                entry = TokenLogprobs(token, logprob, rank, shown)
                (self._ended if is_end else going).append(beam.continued(entry, token if is_end else None))
        going.sort(key=lambda beam: beam.total, reverse=True)
        self.running = going[: self._width]
        self._ended = self._best(self._ended)

    def best(self) -> list[Beam]:
        """The results, best first, at most ``width``; of equal ones, those that ended first."""
        return self._best([*self._ended, *self.running])

    def score(self, beam: Beam) -> float:
        return self._divided(beam.total, beam.length)

    def _divided(self, total: float, length: int) -> float:
        return float(total / length**self._length_penalty)

    def _best(self, beams: list[Beam]) -> list[Beam]:
        return sorted(beams, key=self.score, reverse=True)[: self._width]
