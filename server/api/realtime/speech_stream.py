"""Text that is spoken, as the pieces of audio in which it is sent."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final, NamedTuple

from stentor.protocols.openai.realtime.session import AudioOutput

from ...audio.resample import Resampler
from ...tts.model import SpeechModel
from .formats import Wire

PIECE_MS: Final = 200


class Piece(NamedTuple):
    audio: bytes
    """In the session's format; empty where a sentence has nothing to say."""
    ms: float
    said: str
    """The sentence that begins here; empty in the middle of one."""


class SpeechStream:
    """Says one message in the voice and the format of a session."""

    def __init__(self, speech: SpeechModel, output: AudioOutput) -> None:
        self._speech = speech
        self._output = output

    async def speak(self, text: AsyncIterator[str]) -> AsyncGenerator[Piece, None]:
        """Raises as the speech model does."""
        wire = Wire.of(self._output.format)
        resampler = Resampler(self._speech.sample_rate, wire.rate)
        said = self._speech.speak(text, voice=self._output.voice, speed=self._output.speed)
        async with aclosing(said):
            async for spoken in said:
                pcm = resampler.finish(spoken.pcm) if spoken.last else resampler.push(spoken.pcm)
                for piece in _cut(wire, pcm, spoken.text):
                    yield piece
                if spoken.last:
                    return
            for piece in _cut(wire, resampler.finish(), ""):
                yield piece


def _cut(wire: Wire, pcm: bytes, said: str) -> list[Piece]:
    step = wire.rate * PIECE_MS // 1000 * 2
    pieces = []
    for begin in range(0, len(pcm) or (1 if said else 0), step):
        part = pcm[begin : begin + step]
        pieces.append(Piece(wire.encode(part), len(part) / 2 / wire.rate * 1000, said if begin == 0 else ""))
    return pieces
