"""Learns from results how long steps take, so that prompts delay decoding rows by a known time."""

import math
from typing import Final

from .draft_control import row_class

_KEEP: Final = 0.8
"""Decay of what was measured with each further step."""
_OUTLIER: Final = 2.0
"""The tokens of a step count as at most this multiple of their expected time."""
_LEAST_SHARE: Final = 0.25
"""Least share of a step's time that is attributed to its prompts."""


class StepTimes:
    """The time of decoding steps by the number of their rows, and of one more prompt token in a step.

    Both are sums: a decoding row costs in a step with prompts what it costs in one without. Rows whose steps have not
    been measured count as the next fewer that have, so the time of a prompt token is overestimated, not underestimated.
    """

    __slots__ = ("_decode", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._decode: dict[int, float] = {}
        """Seconds of steps without prompts, by class of row counts."""
        self._tokens = self._seconds = 0.0
        """Prompt tokens, and the seconds that they added; both fade."""

    def learn(self, decoding: int, prompt_tokens: int, seconds: float) -> None:
        """Record a step with so many decoding rows. Steps that took no time, as in tests, teach nothing."""
        if seconds <= 0.0:
            return
        if not prompt_tokens:
            known = self._decode.get(of := row_class(decoding), seconds)
            self._decode[of] = _KEEP * known + (1 - _KEEP) * min(seconds, _OUTLIER * known)
            return
        added = max(seconds - self._decode_seconds(decoding), _LEAST_SHARE * seconds)
        expected = prompt_tokens * self.token_seconds
        if expected > 0.0:
            if 2 * added < expected:  # what was measured before was disturbed, such as by a first call's compilation
                self._tokens = self._seconds = 0.0
            added = min(added, _OUTLIER * expected)
        self._tokens = _KEEP * self._tokens + prompt_tokens
        self._seconds = _KEEP * self._seconds + added

    @property
    def token_seconds(self) -> float:
        """Seconds that a prompt token adds to a step; 0 if unknown."""
        return self._seconds / self._tokens if self._tokens else 0.0

    def prompt_tokens(self, decoding: int, seconds: float) -> float:
        """The prompt tokens with which a step of so many decoding rows takes ``seconds``, or twice as long as without
        if that is longer; infinity if unknown.
        """
        if not self._tokens:
            return math.inf
        decode = self._decode_seconds(decoding)
        return max(seconds - decode, decode) / self.token_seconds

    def _decode_seconds(self, decoding: int) -> float:
        most = row_class(decoding)
        found = max((each for each in self._decode if each <= most), default=None)
        return 0.0 if found is None or not decoding else self._decode[found]
