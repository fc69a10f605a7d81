"""Speech that is made up, and a model and a voice detector that understand it exactly.

A word is some time of one loudness, which is its number; silence is between them. The model writes ``w7`` for a word
that it has heard whole, and something else for one that is cut off, as real ones do.
"""

import struct
from collections.abc import Callable

import anyio
from prometheus_client import CollectorRegistry

from stentor.server.api.realtime.common.interfaces import TokenProbability
from stentor.server.api.realtime.listening.hypotheses import Hypothesis, TranscriptionSettings
from stentor.server.observability.realtime_figures import PassFigures

WORD_MS = 480
_FRAME = 160
_LOUD = 500


def level(number: int) -> int:
    return 1000 + 100 * number


def word(number: int, rate: int = 16_000, ms: int = WORD_MS) -> bytes:
    return struct.pack("<h", level(number)) * (rate * ms // 1000)


def words(*numbers: int, rate: int = 16_000) -> bytes:
    return b"".join(word(number, rate) for number in numbers)


def silence(ms: int, rate: int = 16_000) -> bytes:
    return bytes(2 * (rate * ms // 1000))


def understood(pcm: bytes) -> list[str]:
    """The words of 16 kHz pcm."""
    samples = struct.unpack(f"<{len(pcm) // 2}h", pcm)
    frames = [
        round((samples[at] - 1000) / 100) if samples[at] > _LOUD else None for at in range(80, len(samples), _FRAME)
    ]
    found: list[str] = []
    begin = 0
    for at in range(1, len(frames) + 1):
        if at < len(frames) and frames[at] == frames[begin]:
            continue
        number, length = frames[begin], at - begin
        if number is not None and length >= 5:
            found.append(f"w{number}" if length >= WORD_MS // 10 - 8 else f"cut{length}")
        begin = at
    return found


class Model:
    """A transcriber of such words, which remembers what it was asked."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.calls: list[tuple[int, str, bool]] = []
        """Milliseconds of audio, what was given to go on after, and whether it was to be final."""
        self.dropped = 0
        self.error: Exception | None = None
        self.gate: anyio.Event | None = None

    async def __call__(self, pcm: bytes, settings: TranscriptionSettings, *, continued: str, final: bool) -> Hypothesis:
        self.calls.append((len(pcm) // 32, continued, final))
        try:
            if self.gate is not None:
                await self.gate.wait()
            await anyio.sleep(self.seconds)
        except anyio.get_cancelled_exc_class():
            self.dropped += 1
            raise
        if self.error is not None:
            raise self.error
        said = "".join(f" {word}" for word in understood(pcm))
        assert said.startswith(continued)
        said = said[len(continued) :]
        tokens = [TokenProbability(letter, -0.5, list(letter.encode())) for letter in said]
        return Hypothesis(said, tokens if settings.logprobs else ())

    async def asked_again(self, calls: int) -> None:
        """Waits until it has been asked more often than so."""
        await until(lambda: len(self.calls) > calls)

    @property
    def longest_ms(self) -> int:
        return max(ms for ms, _, _ in self.calls)


def passes() -> PassFigures:
    """Of nobody."""
    return PassFigures("model", CollectorRegistry())


class LoudnessDetector:
    """Surely speech where it is loud, surely none where it is not."""

    def __init__(self) -> None:
        self._waiting = b""

    def push(self, pcm: bytes) -> list[float]:
        pcm = self._waiting + pcm
        whole = len(pcm) - len(pcm) % 1024
        self._waiting = pcm[whole:]
        found = []
        for at in range(0, whole, 1024):
            samples = struct.unpack_from("<512h", pcm, at)
            found.append(0.95 if sum(map(abs, samples)) / 512 > _LOUD else 0.02)
        return found


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.002)


class DeliveredText:
    """What a transcription of a turn has told so far."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.tokens: list[TokenProbability] = []
        self.guesses: list[str] = []

    def tell(self, text: str, tokens: list[TokenProbability]) -> None:
        self.pieces.append(text)
        self.tokens += tokens

    @property
    def text(self) -> str:
        return "".join(self.pieces)
