"""Detection of sequences that repeat themselves, token by token, by vLLM's definition."""

from collections.abc import Sequence
from typing import Final

from stentor.protocols.openai.sampling import RepetitionDetection


class RepetitionDetector:
    """Finds a pattern of tokens that is repeated at the end of one sequence, by the limits of a request."""

    STOP_REASON: Final = "repetition_detected"
    """Of a sequence that was ended for it; vLLM's name."""

    __slots__ = ("_count", "_least", "_longest", "_seen", "_sizes", "_tail")

    def __init__(self, detection: RepetitionDetection, min_tokens: int = 0) -> None:
        """``min_tokens``: a sequence with fewer is not ended."""
        self._sizes = range(max(1, detection.min_pattern_size), detection.max_pattern_size + 1)
        self._count = detection.min_count
        self._longest = detection.max_pattern_size * detection.min_count
        self._least = min_tokens
        self._seen = 0
        self._tail: list[int] = []
        """The last tokens, enough for the longest repetition."""

    def find(self, tokens: Sequence[int]) -> int | None:
        """Takes the next tokens. Returns the number of them up to the one that completes a repetition; None: none."""
        tail = self._tail
        if len(tail) > 2 * self._longest:
            del tail[: -self._longest]
        for number, token in enumerate(tokens, 1):
            tail.append(token)
            self._seen += 1
            if self._seen >= self._least and self._repeats():
                return number
        return None

    def _repeats(self) -> bool:
        tail, count = self._tail, self._count
        for size in self._sizes:
            if size * count > len(tail):
                return False
            # equal to itself a pattern later; most sizes differ in the last token already
            if tail[-1] == tail[-1 - size] and tail[-size * (count - 1) :] == tail[-size * count : -size]:
                return True
        return False
