"""Turns of speakers in an answer: between marks of MOSS-Transcribe-Diarize, or in JSON of VibeVoice ASR."""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeGuard

_MOST_MARK: Final = 34
"""Characters of a mark with its brackets, at most."""
_TIME: Final = re.compile(r"\d{1,9}(?::\d{1,2}){0,2}(?:\.\d{1,9})?")
_SPEAKER: Final = re.compile(r"S(\d{1,15})")
_LETTERS: Final = 26
_DECODER: Final = json.JSONDecoder()
_KEYS: Final = (("Start", "Start time"), ("End", "End time"), ("Speaker", "Speaker ID"))
"""Names in an entry of JSON of when it begins and ends, and who speaks."""


class Turn(NamedTuple):
    """What one speaker says without a break; times in seconds of the audio."""

    speaker: int
    """0 for the first one who speaks, then 1 and so on."""
    start: float
    end: float
    text: str


class TurnReader:
    """Reads ``[0.00][S01]Hello.[1.52][1.80][S02]…`` piece by piece. Text outside of turns is text too."""

    def __init__(self, seconds: float, offset: float = 0.0) -> None:
        """``seconds``: the length of the audio, within which all times are; ``offset``: where it begins."""
        self._seconds, self._offset = seconds, offset
        self._held = ""
        """Of a mark that is not whole yet."""
        self._start = 0.0
        self._speaker: int | None = None
        """Of the current turn."""
        self._said: list[str] = []
        """Its text."""
        self._numbers: dict[int, int] = {}
        """Speakers by the numbers that the answer gives them."""
        self._begun = False
        self._gap = False
        """Whether a turn has ended, after which text is apart."""
        self._turns: list[Turn] = []

    def add(self, text: str) -> str:
        """New text of the answer → new text of the transcript."""
        self._held += text
        made = []
        while self._held:
            before, bracket, rest = self._held.partition("[")
            made.append(self._text(before))
            self._held = bracket + rest
            if not bracket:
                break
            mark, closed, behind = rest.partition("]")
            if not closed and len(rest) < _MOST_MARK and "[" not in rest:
                break
            if closed and self._marks(mark):
                self._held = behind
            else:
                made.append(self._text("["))
                self._held = rest
        return "".join(made)

    def ended(self) -> list[Turn]:
        """The turns that have ended since it was last asked."""
        found, self._turns = self._turns, []
        return found

    def end(self) -> str:
        """The rest at the end of the answer; a turn without an end lasts until that of the audio."""
        rest, self._held = self._text(self._held), ""
        self._close(self._seconds)
        return rest

    def _marks(self, mark: str) -> bool:
        """Read what stands between brackets; False if it is text."""
        if (found := _SPEAKER.fullmatch(mark)) is not None:
            self._close(self._start)
            number = int(found[1])
            self._speaker = self._numbers.setdefault(number, len(self._numbers))
            return True
        if _TIME.fullmatch(mark) is None:
            return False
        time = 0.0
        for part in mark.split(":"):
            time = 60 * time + float(part)
        time = min(time, self._seconds)
        if self._speaker is not None:
            self._close(time)
        self._start = time
        return True

    def _text(self, text: str) -> str:
        if self._gap or not self._begun:
            text = text.lstrip()
        if not text:
            return ""
        if self._speaker is not None:
            self._said.append(text)
        apart, self._gap, self._begun = self._gap, False, True
        return f" {text}" if apart else text

    def _close(self, end: float) -> None:
        said = "".join(self._said).strip()
        if self._speaker is not None and said:
            start, end = self._offset + self._start, self._offset + max(self._start, end)
            self._turns.append(Turn(self._speaker, start, end, said))
        self._speaker, self._said, self._gap = None, [], self._begun


class JsonTurnReader:
    """Reads an answer as VibeVoice ASR writes it: ``[{"Start":0.0,"End":7.56,"Speaker":0,"Content":"Hello."},…]``.

    An entry is read once it is whole. One without a speaker is text alone, as sounds are that are no speech; what is no
    such entry is text as it stands.
    """

    def __init__(self, seconds: float, offset: float = 0.0) -> None:
        """As for :class:`TurnReader`."""
        self._seconds, self._offset = seconds, offset
        self._held = ""
        """Of an entry that is not whole yet."""
        self._is_json: bool | None = None
        """Whether the answer begins as a list; None before it begins."""
        self._numbers: dict[object, int] = {}
        """Speakers by what the answer calls them."""
        self._begun = False
        self._turns: list[Turn] = []

    def add(self, text: str) -> str:
        """New text of the answer → new text of the transcript."""
        self._held += text
        if self._is_json is None:
            self._held = self._held.lstrip()
            if not self._held:
                return ""
            self._is_json = self._held.startswith("[")
            self._held = self._held.removeprefix("[")
        if not self._is_json:
            made, self._held = self._held, ""
            return made
        return self._entries() if "}" in text else ""

    def ended(self) -> list[Turn]:
        """The turns that have ended since it was last asked."""
        found, self._turns = self._turns, []
        return found

    def end(self) -> str:
        """The rest at the end of the answer. An entry that is cut off is left out, as in transformers, unless it is the
        only one."""
        rest, self._held = self._held.strip(" \t\r\n,]"), ""
        return rest if rest and not self._begun else ""

    def _entries(self) -> str:
        made = []
        while (rest := self._held.lstrip(" \t\r\n,")).startswith("{"):
            try:
                entry, behind = _DECODER.raw_decode(rest)
            except (ValueError, RecursionError):
                break  # it is not whole
            self._held = rest[behind:]
            made.append(self._read(entry, rest[:behind]))
        return "".join(made)

    def _read(self, entry: dict[str, object], written: str) -> str:
        content = entry.get("Content")
        said = content.strip() if isinstance(content, str) else written
        if not said:
            return ""
        start, end, speaker = (next((entry[name] for name in names if name in entry), None) for names in _KEYS)
        if isinstance(content, str) and isinstance(speaker, int | str) and _is_time(start) and _is_time(end):
            number = self._numbers.setdefault(speaker, len(self._numbers))
            first = min(float(start), self._seconds)
            last = min(max(first, float(end)), self._seconds)
            self._turns.append(Turn(number, self._offset + first, self._offset + last, said))
        apart, self._begun = " " if self._begun else "", True
        return apart + said


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


Reader = TurnReader | JsonTurnReader
READERS: Final[Mapping[str, Callable[[float, float], Reader]]] = {"marks": TurnReader, "json": JsonTurnReader}
"""By how an answer says who speaks (:attr:`.asking.Asking.diarizes`)."""


def label(speaker: int) -> str:
    """``A`` to ``Z``, then ``AA`` and so on, as OpenAI names speakers."""
    name, left = "", speaker + 1
    while left:
        left, place = divmod(left - 1, _LETTERS)
        name = chr(ord("A") + place) + name
    return name
