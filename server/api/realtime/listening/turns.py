"""Turn detection: a caller's speech, pauses and turn ends, from the speech probability of each 32 ms.

::

    SILENT ──two stretches of speech──► SPEAKING ──one below the lower threshold──► PAUSED
      ▲                                     ▲────────speech again─────────────────────┘ │
      └───────────────────────────the pause has lasted long enough──────────────────────┘

Positions are milliseconds of audio since the session began, never of the clock, so equal audio gives equal events,
however it arrives.
"""

from enum import Enum
from typing import Final

import msgspec

STRETCH_MS: Final = 32
MIN_STRETCHES: Final = 2
"""Stretches of speech that begin a turn: a click is shorter."""
HYSTERESIS: Final = 0.15
"""A pause begins so far below the threshold."""
SEMANTIC_MAX_MS: Final = {"low": 8000, "medium": 4000, "high": 2000, "auto": 4000}
"""The longest pause by eagerness."""
MAX_TURN_MS: Final = 300_000


class TurnRules(msgspec.Struct, frozen=True):
    """Thresholds of turn detection."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_ms: int = 500
    """Length of a pause that ends a turn; the longest, if :meth:`TurnDetector.judge` may shorten it."""
    idle_timeout_ms: int | None = None
    notice_ms: int = 160
    """A pause of this length is reported as :class:`TurnPaused`."""
    max_turn_ms: int = MAX_TURN_MS
    """A turn that is longer is ended as if there had been a pause."""

    @classmethod
    def server(
        cls,
        threshold: float = 0.5,
        prefix_padding_ms: int = 300,
        silence_duration_ms: int = 500,
        idle_timeout_ms: int | None = None,
    ) -> "TurnRules":
        """``server_vad``: a pause of a fixed length ends the turn."""
        notice = max(STRETCH_MS, min(160, silence_duration_ms // 3))
        return cls(threshold, prefix_padding_ms, silence_duration_ms, idle_timeout_ms, notice)

    @classmethod
    def semantic(cls, eagerness: str = "auto") -> "TurnRules":
        """``semantic_vad``: how long a pause must be is judged each time."""
        return cls(silence_ms=SEMANTIC_MAX_MS[eagerness])


class TurnStarted(msgspec.Struct, frozen=True):
    """``start_ms`` includes the padding."""

    start_ms: int


class TurnPaused(msgspec.Struct, frozen=True):
    """The caller is silent, and may be going on."""

    longest_ms: int
    """The longest pause of this turn after which the caller went on."""


class TurnResumed(msgspec.Struct, frozen=True):
    """After a :class:`TurnPaused` the caller went on."""


class TurnEnded(msgspec.Struct, frozen=True):
    """The turn is over. ``end_ms`` includes the silence that ended it; speech itself ended at ``voiced_end_ms``."""

    start_ms: int
    end_ms: int
    voiced_end_ms: int


class IdleTimedOut(msgspec.Struct, frozen=True):
    """No speech from ``start_ms`` to ``end_ms``."""

    start_ms: int
    end_ms: int


TurnEvent = TurnStarted | TurnPaused | TurnResumed | TurnEnded | IdleTimedOut


class _State(Enum):
    SILENT = "silent"
    SPEAKING = "speaking"
    PAUSED = "paused"


class TurnDetector:
    """Takes one probability for each 32 ms of audio, from position ``at_ms`` on."""

    def __init__(self, rules: TurnRules, at_ms: int = 0) -> None:
        self._rules = rules
        self._now = at_ms
        self._floor = at_ms
        self._idle_from: int | None = None
        self._reset()

    def _reset(self) -> None:
        self._state = _State.SILENT
        self._run = 0
        self._run_began = 0
        self._start = 0
        self._pause = 0
        self._noticed = False
        self._longest = 0
        self._wait = self._rules.silence_ms

    @property
    def now_ms(self) -> int:
        """Position up to which audio has been judged."""
        return self._now

    @property
    def speaking(self) -> bool:
        """Inside a turn, pauses included."""
        return self._state is not _State.SILENT

    @property
    def keep_from_ms(self) -> int:
        """Position before which audio will belong to no turn."""
        if self.speaking:
            return self._start
        begin = (self._run_began if self._run else self._now) - self._rules.prefix_padding_ms
        if self._idle_from is not None and self._rules.idle_timeout_ms is not None:
            begin = min(begin, self._idle_from)
        return max(self._floor, begin)

    def change(self, rules: TurnRules) -> None:
        """Takes effect with the next chunk of audio; a turn that has begun continues."""
        self._rules = rules
        self._wait = rules.silence_ms

    def await_speech(self, from_ms: int) -> None:
        """The idle timeout runs from there: where the last response's audio has been played."""
        self._idle_from = from_ms

    def stop_waiting(self) -> None:
        """No idle timeout until :meth:`await_speech`."""
        self._idle_from = None

    def judge(self, wait_ms: int) -> TurnEnded | None:
        """The last reported pause ends the turn once it has lasted ``wait_ms``, or now."""
        if self._state is not _State.PAUSED:
            return None
        self._wait = min(wait_ms, self._rules.silence_ms)
        if self._now - self._pause < self._wait:
            return None
        return self._stop(self._now)

    def push(self, probability: float) -> list[TurnEvent]:
        """Takes the speech probability of the next stretch."""
        began, self._now = self._now, self._now + STRETCH_MS
        events: list[TurnEvent] = []
        if self._state is _State.SILENT:
            self._while_silent(probability, began, events)
        else:
            self._in_turn(probability, began, events)
        return events

    def _while_silent(self, probability: float, began: int, events: list[TurnEvent]) -> None:
        rules = self._rules
        if probability >= rules.threshold:
            if not self._run:
                self._run_began = began
            self._run += 1
        elif probability < self._lower:
            self._run = 0
        if self._run >= MIN_STRETCHES:
            start = max(self._floor, self._run_began - rules.prefix_padding_ms, 0)
            self._reset()
            self._state, self._start = _State.SPEAKING, start
            self._idle_from = None
            events.append(TurnStarted(start))
        elif self._idle_from is not None and rules.idle_timeout_ms is not None and not self._run:
            end = self._idle_from + rules.idle_timeout_ms
            if self._now >= end:
                events.append(IdleTimedOut(max(self._idle_from, self._floor), end))
                self._floor, self._idle_from = end, None

    def _in_turn(self, probability: float, began: int, events: list[TurnEvent]) -> None:
        rules = self._rules
        if probability >= rules.threshold:
            if self._state is _State.PAUSED:
                self._longest = max(self._longest, began - self._pause)
                self._wait = rules.silence_ms
                if self._noticed:
                    events.append(TurnResumed())
            self._state, self._noticed = _State.SPEAKING, False
        elif self._state is _State.SPEAKING and probability < self._lower:
            self._state, self._pause = _State.PAUSED, began
        if self._state is _State.PAUSED:
            silent = self._now - self._pause
            if silent >= self._wait:
                events.append(self._stop(max(self._pause + self._wait, began)))
                return
            if not self._noticed and silent >= rules.notice_ms:
                self._noticed = True
                events.append(TurnPaused(self._longest))
        if self._now - self._start >= rules.max_turn_ms:
            events.append(self._stop(self._now))

    @property
    def _lower(self) -> float:
        return max(self._rules.threshold - HYSTERESIS, 0.01)

    def _stop(self, end: int) -> TurnEnded:
        voiced = self._pause if self._state is _State.PAUSED else end
        stopped = TurnEnded(self._start, end, voiced)
        self._reset()
        self._floor = end
        return stopped
