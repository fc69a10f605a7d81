"""Limits how far sent audio is ahead of the client's playback, and estimates what was heard."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import anyio

AHEAD_SECONDS: Final = 5.0
"""Seconds of audio that a client may have before playback."""


class PlaybackPacer:
    """Paces the audio of one response, which plays from the moment it is sent, without a break while there is some.

    A client that does not read delays the sender; this delays a sender faster than playback, so that an interruption
    discards little.
    """

    def __init__(self, ahead_seconds: float = AHEAD_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._ahead = ahead_seconds
        self._clock = clock
        self._played_at = 0.0
        """When all that was sent will have been played."""

    @property
    def unplayed_ms(self) -> float:
        """Sent audio that has not been played, in ms; at least, since a client may begin later."""
        return max(0.0, self._played_at - self._clock()) * 1000

    async def admit(self, ms: float) -> None:
        """Returns once ``ms`` of audio may be sent: at once if none is unplayed."""
        seconds = ms / 1000
        while (excess := self._played_at + seconds - self._clock() - self._ahead) > 0:
            if self._played_at <= self._clock():
                break  # one piece that is longer than may be ahead
            await anyio.sleep(min(excess, self._played_at - self._clock()))
        self._played_at = max(self._played_at, self._clock()) + seconds


class _Said(NamedTuple):
    text: str
    end_ms: float


class SpokenText:
    """Times of the sentences in the audio of one content part."""

    def __init__(self) -> None:
        self._said: list[_Said] = []

    @property
    def duration_ms(self) -> float:
        return self._said[-1].end_ms if self._said else 0.0

    @property
    def text(self) -> str:
        return "".join(said.text for said in self._said)

    def add(self, text: str, ms: float) -> None:
        """The next ``ms`` of audio speak ``text``, which includes the space before it; "" continues the text before."""
        if not text and self._said:
            last = self._said[-1]
            self._said[-1] = last._replace(end_ms=last.end_ms + ms)
        else:
            self._said.append(_Said(text, self.duration_ms + ms))

    def until(self, ms: float) -> str:
        """Text spoken by then: whole sentences, and of the last one its share of whole words."""
        played, begin = [], 0.0
        for said in self._said:
            if said.end_ms <= ms:
                played.append(said.text)
                begin = said.end_ms
                continue
            played.append(_share_of(said.text, (ms - begin) / (said.end_ms - begin)))
            break
        return "".join(played)


def _share_of(text: str, share: float) -> str:
    """The words that lie within that share of all characters."""
    count = int(len(text) * max(share, 0.0) + 1e-9)
    if count >= len(text) or text[count].isspace():
        return text[:count].rstrip()
    cut = max((place for place in range(count) if text[place].isspace()), default=0)
    return text[:cut].rstrip()
